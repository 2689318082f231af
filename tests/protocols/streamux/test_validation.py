"""Streamux observed: held bytes, eviction, and rows that do not depend on splits."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.rules import Certainty, Severity
from polymux.core.side import Vantage
from polymux.core.streams import StreamState
from polymux.protocols import registry
from polymux.protocols.registry import create
from polymux.protocols.streamux.rules import RULES

HELLO = bytes.fromhex("010a0464")  # 10/4
Pieces = list[tuple[int, bytes]]


def observe(
    pieces: Pieces, vantage: int = Vantage.MIDDLE, limits: Limits | None = None
) -> Observer:
    observer = Observer(create("streamux", limits, vantage=vantage))
    for side, data in pieces:
        observer.feed(side, data, 0)
    return observer


def rows_of(observer: Observer) -> list[tuple[int, ...]]:
    assert observer.rows is not None
    return [
        (
            b.sender[i],
            b.frame_index[i],
            b.byte_offset[i],
            b.size[i],
            b.kind[i],
            b.opener[i],
            b.stream_id[i],
            b.incarnation[i],
            b.payload_bytes[i],
            b.verdict[i],
        )
        for b in observer.rows.take()
        for i in range(b.used)
    ]


def everything(observer: Observer) -> tuple[object, ...]:
    """Finish the observer and return all its reports in comparable form."""
    observer.finish(1, True, True)
    assert observer.accounts_for_all_bytes()
    streams = [*observer.protocol.streams.removed, *observer.protocol.streams.all()]
    return (
        rows_of(observer),
        sorted(str(violation) for violation in observer.take_violations()),
        sorted(repr(stream.save()) for stream in streams),
        [observer.connection.direction(side).stop_reason for side in (0, 1)],
    )


def names(observer: Observer) -> list[str]:
    return [violation.rule.name for violation in observer.take_violations()]


def test_each_bit_stands_for_the_rule_it_is_named_after() -> None:
    text = (Path(registry.__file__).parent / "streamux" / "rules.py").read_text()
    bits = re.findall(r"^([A-Z_]+): Final\[i64\] = (0x[0-9A-F]+)$", text, re.M)
    assert [(name.lower().replace("_", "-"), int(bit, 16)) for name, bit in bits] == [
        (rule.name.removeprefix("streamux."), 2**place) for place, rule in enumerate(RULES)
    ]


# Bytes held until both initiators are known


def test_held_bytes_are_read_in_the_order_of_their_arrival() -> None:
    observer = observe([(0, HELLO + b"\x11\x00a"), (0, b"\x22\x80bb\x31")])
    assert len(rows_of(observer)) == 1
    observer.feed(1, HELLO + b"\x41\x80cccc", 0)
    observer.feed(0, b"\x80ddd", 0)
    passed = [(row[0], row[6], row[8]) for row in rows_of(observer)]  # sender, id, bytes
    assert passed == [(1, 0, 0), (0, 1, 1), (0, 2, 2), (1, 1, 4), (0, 1, 3)]
    assert names(observer) == []


def test_bytes_are_held_only_up_to_the_limit() -> None:
    observer = observe([(0, HELLO)], limits=Limits(max_prehandshake_bytes=100))
    observer.feed(0, bytes(90), 0)
    assert not observer.connection.dialer.decoding_stopped
    observer.feed(0, bytes(20), 0)
    assert observer.connection.dialer.decoding_stopped
    assert observer.connection.dialer.stop_reason == "the other direction's handshake never arrived"
    observer.feed(1, HELLO, 0)
    assert observer.accounts_for_all_bytes()
    assert names(observer) == []


def test_mixed_header_sizes_say_why_nothing_more_is_read() -> None:
    observer = observe([(0, HELLO), (1, bytes.fromhex("01110d32"))])
    reasons = [observer.connection.direction(side).stop_reason for side in (0, 1)]
    assert reasons == [
        "mixed header sizes: 2 bytes here, 4 the other way",
        "mixed header sizes: 4 bytes here, 2 the other way",
    ]
    (violation,) = observer.take_violations()
    assert "01 11 0d 32: the other side's headers have 2 bytes" in str(violation)


# Splits do not matter

CHUNKS = st.builds(
    lambda side, flags, number, data: (
        side,
        ((flags << 14) + (len(data) << 4) + number).to_bytes(2, "little") + data,
    ),
    st.integers(0, 1),
    st.integers(0, 3),
    st.integers(0, 2),
    st.binary(max_size=6) | st.just(b""),
)
HELLOS = st.sampled_from([HELLO, HELLO, HELLO, HELLO, b"\x01\x0a\x05\x00", b"\x01\x11\x0d\x00"])


@st.composite
def conversations(draw: st.DrawFn) -> Pieces:
    """Any frames in any order on few ids, legal or not, after the initiators."""
    steps = draw(st.lists(CHUNKS, max_size=40))
    hellos = [(side, draw(HELLOS)) for side in draw(st.permutations([0, 1]))]
    late = [step for step in steps[: draw(st.integers(0, 3))] if step[0] == hellos[0][0]]
    tail = draw(st.sampled_from([b"", b"\x51", b"\x51\x80ab"]))
    return [hellos[0], *late, hellos[1], *steps[3:], (0, tail)]


def cut(pieces: Pieces, places: list[int]) -> Pieces:
    """The same bytes in the same order, split elsewhere."""
    out: Pieces = []
    turn = 0
    for side, data in pieces:
        while data:
            size = places[turn % len(places)]
            turn += 1
            out.append((side, data[:size]))
            data = data[size:]
    return out


@given(conversations(), st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_any_split_of_any_bytes_gives_the_same_rows(
    pieces: Pieces, places: list[int], vantage: int
) -> None:
    joined: Pieces = []
    for side, data in pieces:
        if joined and joined[-1][0] == side:
            joined[-1] = (side, joined[-1][1] + data)
        else:
            joined.append((side, data))
    whole = everything(observe(joined, vantage))
    assert everything(observe(cut(pieces, places), vantage)) == whole


@given(conversations(), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_an_observer_taken_apart_and_put_together_again_goes_on(pieces: Pieces, size: int) -> None:
    whole = everything(observe(cut(pieces, [size])))
    observer = observe([])
    rows: list[tuple[int, ...]] = []
    violations: list[str] = []
    gone: list[StreamState] = []
    for side, data in cut(pieces, [size]):
        observer.feed(side, data, 0)
        rows += rows_of(observer)
        violations += [str(violation) for violation in observer.take_violations()]
        gone += observer.take_removed_streams()
        saved = observer.snapshot()
        observer = observe([])
        observer.restore(saved)
    last = everything(observer)
    assert isinstance(last[0], list)
    assert isinstance(last[1], list)
    assert isinstance(last[2], list)
    streams = sorted(last[2] + [repr(stream.save()) for stream in gone])
    assert (rows + last[0], sorted(violations + last[1]), streams, last[3]) == whole


@given(conversations())
@settings(max_examples=100, deadline=None)
def test_whatever_passes_content_is_counted_once_and_never_on_a_locked_id(pieces: Pieces) -> None:
    observer = observe(pieces)
    rows = rows_of(observer)
    streams = [*observer.protocol.streams.removed, *observer.protocol.streams.all()]
    counted = sum(stream.half(side).content_bytes for stream in streams for side in (0, 1))
    assert counted <= sum(row[8] for row in rows)
    for stream in streams:
        asker, other = stream.half(stream.opener), stream.half(1 - stream.opener)
        assert asker.content_bytes <= asker.credit_spent
        assert other.content_bytes <= other.credit_spent
        assert asker.frames > 0


def test_an_end_inside_a_header_belongs_to_no_stream_however_it_was_cut() -> None:
    for wire in ([b"\x11\x00?\x51"], [b"\x11\x00", b"?", b"\x51"]):
        observer = observe([(0, HELLO), (1, HELLO), *((0, piece) for piece in wire)])
        observer.finish(1, True, True)
        (violation,) = observer.take_violations()
        assert (violation.rule.name, violation.stream) == ("streamux.truncated", "")


# Incomplete captures


def test_a_reply_to_a_request_that_was_forgotten_is_only_possibly_wrong() -> None:
    limits = Limits(closed_streams_remembered=1)
    both: Pieces = [(0, HELLO), (1, HELLO)]
    exchange: Pieces = [(0, b"\x11\x80?"), (1, b"\x01\xc0"), (0, b"\x12\x80?"), (1, b"\x02\xc0")]
    observer = observe(both + exchange, limits=limits)
    observer.feed(1, b"\x01\xc0", 0)
    (late,) = observer.take_violations()
    assert late.rule.name == "streamux.reply-unknown"
    assert late.certainty is Certainty.POSSIBLE
    observer.feed(1, b"\x02\xc0", 0)
    (known,) = observer.take_violations()
    assert known.certainty is Certainty.CERTAIN


def test_a_gap_makes_what_follows_only_possible() -> None:
    observer = observe([(0, HELLO), (1, HELLO), (0, b"\x51\x80")])
    observer.gap(0, 5, 0)
    observer.feed(1, b"\x02\xc0", 0)
    (violation,) = observer.take_violations()
    assert violation.certainty is Certainty.POSSIBLE


def test_an_ack_pending_without_an_observed_end_is_only_possibly_missing() -> None:
    observer = observe([(0, HELLO), (1, HELLO), (0, b"\x11\x80?\x01\x00")])
    observer.finish(1, True, False)
    (violation,) = observer.take_violations()
    assert violation.rule.name == "streamux.cancel-unanswered"
    assert violation.rule.severity is Severity.NOTE
    assert violation.certainty is Certainty.POSSIBLE
    assert "in reply to frame 2 of the other side" in violation.detail


@pytest.mark.parametrize("vantage", [0, 1, 2])
def test_a_chunk_at_the_limit_is_clean_and_one_byte_more_is_noted(vantage: int) -> None:
    hello = bytes.fromhex("01110d00")
    both: Pieces = [(0, hello), (1, hello)]
    for size, found in ((65536, []), (65537, ["streamux.chunk-too-long"])):
        wire = ((1 << 31) + (size << 13) + 1).to_bytes(4, "little") + bytes(size)
        observer = observe([*both, (0, wire), (1, b"\x01\x00\x00\xc0")], vantage)
        assert names(observer) == found
        (stream,) = observer.protocol.streams.all()
        assert stream.dialer.content_bytes == size
