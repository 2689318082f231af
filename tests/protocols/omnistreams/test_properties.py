"""omnistreams: properties that hold for any messages, however their bytes are split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.frames import FrameHeader
from polymux.core.observer import Observer
from polymux.core.rules import CROSSED
from polymux.protocols.registry import create
from polymux.testing.properties import take_rows

SPEC, LEGACY = "omnistreams:carrier=length", "omnistreams:numbering=legacy,carrier=length"

# Few ids and short payloads, so that messages interact; undefined types too.
MESSAGE = st.one_of(
    st.tuples(st.integers(0, 8), st.integers(0, 2), st.binary(max_size=4)).map(
        lambda parts: bytes([parts[0], parts[1]]) + parts[2]
    ),
    st.binary(max_size=3),
)
TALK = st.lists(st.tuples(st.integers(0, 1), MESSAGE), max_size=40)
Messages = list[tuple[int, bytes]]


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def outcome(observer: Observer) -> tuple[object, ...]:
    observer.finish(9, True, True)
    assert observer.accounts_for_all_bytes()
    table = observer.protocol.streams
    return (
        take_rows(observer),
        [str(violation) for violation in observer.take_violations()],
        [stream.save() for stream in [*table.removed, *table.all()]],
    )


@pytest.mark.parametrize("text", [SPEC, LEGACY, "omnistreams"])
@given(conversation=TALK, data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_split_gives_the_same_rows(
    text: str, conversation: Messages, data: st.DataObject
) -> None:
    whole, cut = Observer(create(text)), Observer(create(text))
    for side, message in conversation:
        raw = framed(message)
        whole.feed(side, raw, 5)
        position = data.draw(st.integers(0, len(raw)))
        cut.feed(side, raw[:position], 5)
        cut.feed(side, raw[position:], 5)
    assert outcome(whole) == outcome(cut)


@given(conversation=TALK)
@settings(max_examples=50, deadline=None)
def test_as_encapsulated_messages_they_are_validated_the_same(conversation: Messages) -> None:
    data, messages = Observer(create(SPEC)), Observer(create("omnistreams:carrier=websocket"))
    offsets = [0, 0]
    for side, message in conversation:
        data.feed(side, framed(message), 5)
        size = len(message) + 4
        messages.connection.receive_message(side, message, 5, offsets[side], size)
        offsets[side] += size
    assert outcome(data) == outcome(messages)


@given(conversation=TALK)
@settings(max_examples=50, deadline=None)
def test_the_two_numberings_say_the_same_things(conversation: Messages) -> None:
    """For all messages but the writer's cancel, which the legacy numbering does not have."""
    types = {0: 5, 1: 0, 2: 1, 3: 2, 5: 4, 6: 3}
    spec, legacy = Observer(create(SPEC)), Observer(create(LEGACY))
    for side, message in conversation:
        if message and message[0] in types:
            spec.feed(side, framed(message), 5)
            legacy.feed(side, framed(bytes([types[message[0]]]) + message[1:]), 5)
    assert outcome(spec) == outcome(legacy)


@given(conversation=TALK, last=st.tuples(st.integers(0, 1), MESSAGE))
@settings(max_examples=50, deadline=None)
def test_validation_changes_nothing(conversation: Messages, last: tuple[int, bytes]) -> None:
    observer = Observer(create(SPEC))
    for side, message in conversation:
        observer.feed(side, framed(message), 5)
    p = observer.protocol
    head = FrameHeader()
    data = framed(last[1])
    start = p.decode_header(last[0], data, 0, len(data), head)
    p.decode_body(last[0], data, start, len(data), head)
    stream = p.streams.find(head.key) if head.opener != 255 else None
    before = repr(p.save())
    first = p.validate(last[0], head, stream)
    assert p.validate(last[0], head, stream) == first
    assert repr(p.save()) == before
    assert first & ~CROSSED < 1 << len(p.rules)


@given(conversation=TALK)
@settings(max_examples=50, deadline=None)
def test_the_credit_account_of_a_stream_is_what_passed(conversation: Messages) -> None:
    """Credit and data, counted independently, belong to the newest use of an id."""
    observer = Observer(create(SPEC))
    granted: dict[tuple[int, int], int] = {}
    spent: dict[tuple[int, int], int] = {}
    ended: set[tuple[int, int]] = set()
    for side, message in conversation:
        observer.feed(side, framed(message), 5)
        if len(message) < 2:
            continue
        kind, number = message[0], message[1]
        key = (side, number) if kind < 5 else (1 - side, number)
        if kind == 1:
            granted[key] = spent[key] = 0
            ended.discard(key)
        elif key not in granted:
            continue
        elif kind == 2 and key not in ended:
            spent[key] += 1
        elif kind in (3, 4):
            ended.add(key)
        elif kind == 5 and len(message) > 2:
            granted[key] += message[2]
    for stream in observer.protocol.streams.all():
        writer = stream.half(stream.opener)
        key = (stream.opener, stream.stream_id)
        assert (writer.credit_granted, writer.content_units) == (granted[key], spent[key])
        assert stream.half(1 - stream.opener).credit_granted == -1
