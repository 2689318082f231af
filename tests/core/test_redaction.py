"""Redacted conversations: the same frames, streams and violations, and nothing of the content."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.protocols.test_vectors import VECTORS, Vector, cuts, label, load, observe, steps_of

from polymux.core.observer import Observer
from polymux.core.protocol import Protocol
from polymux.core.redaction import (
    ConversationRedactor,
    HeldBytes,
    RedactedSide,
    Redaction,
    Span,
)
from polymux.core.side import Vantage
from polymux.core.websocket.frames import encode_frame
from polymux.protocols.registry import create, protocol_names
from polymux.testing.conversations import MODELS
from polymux.testing.models.base import ModelConversation

KEY = bytes(range(32))
WINDOW = 8  # bytes of content in a row that must not survive; shorter ones appear by chance
SEEDS = 8
Pieces = list[tuple[int, bytes]]


def redact(
    protocol: Protocol, pieces: Pieces, redaction: Redaction, lost: frozenset[int] = frozenset()
) -> Pieces:
    """The pieces as they are after redaction; those in `lost` were not captured."""
    redactor = ConversationRedactor(Observer(protocol, False), redaction)
    new = [bytearray() for _ in pieces]
    for number, (side, data) in enumerate(pieces):
        if number in lost:
            redactor.gap(side, len(data), number)
            new[number] += bytes(len(data))
        else:
            redactor.feed(side, data, number, number << 32)
        for piece in redactor.take():
            assert len(new[piece.tag >> 32]) == piece.tag & 0xFFFFFFFF
            new[piece.tag >> 32] += piece.data
    redactor.finish()
    for piece in redactor.take():
        new[piece.tag >> 32] += piece.data
    assert [len(data) for data in new] == [len(data) for _, data in pieces]
    return [(side, bytes(data)) for (side, _), data in zip(pieces, new, strict=True)]


def vector_protocol(vector: Vector) -> Protocol:
    text = vector["protocol"].replace("tests/vectors", str(VECTORS))
    return create(text, vantage=Vantage[vector.get("vantage", "middle").upper()])


def without_texts(seen: dict[str, Any], names: bool) -> dict[str, Any]:
    """What an observer reports but the reasons of resets, which are content, and maybe names."""
    for stream in seen["streams"].values():
        del stream["error"]
        if not names and stream["name"] is not None:
            stream["name"] = "\ufffd" in stream["name"]  # whether it is text
    return seen


@pytest.mark.parametrize("name", protocol_names())
def test_every_vector_has_the_same_frames_streams_and_violations(name: str) -> None:
    chance = random.Random(name)
    redactions = [
        Redaction("none", KEY),
        Redaction("hash", KEY, keep_names=True),
        Redaction("head", KEY, 3),
        Redaction("none", KEY, keep_names=True),
        Redaction("hash", KEY),
    ]
    for number, vector in enumerate(load()):
        if not vector["file"].startswith(f"{name}/"):
            continue
        steps = steps_of(vector)
        faultless = not observe(vector, steps)["violations"]
        ways = cuts(steps)
        for pieces in [steps, *chance.sample(ways, min(2, len(ways))), *ways[-1:]]:
            number += 1
            redaction = redactions[number % len(redactions)]
            names = redaction.keep_names and faultless
            new = redact(vector_protocol(vector), pieces, redaction)
            expected = without_texts(observe(vector, steps), names)
            assert without_texts(observe(vector, new), names) == expected, label(vector)


def contents(conversation: ModelConversation) -> list[bytes]:
    """The content of every frame, as the models wrote it."""
    frames = [frame for direction in conversation.directions for frame in direction.frames]
    return [f.data[len(f.data) - f.payload_size :] for f in frames if f.payload_size]


def names_of(observer: Observer) -> list[bytes]:
    """The names of all streams that an observer has seen."""
    streams = [*observer.protocol.streams.removed, *observer.protocol.streams.all()]
    return [stream.name for stream in streams if stream.name]


def observed(make: Callable[[], Protocol], pieces: Pieces, lost: frozenset[int]) -> list[object]:
    """Frames, streams and violations of pieces of which some were not captured."""
    observer = Observer(make())
    for number, (side, data) in enumerate(pieces):
        if number in lost:
            observer.gap(side, len(data), number)
        else:
            observer.feed(side, data, number)
    observer.finish(len(pieces), True, True)
    assert observer.rows is not None
    rows = [
        (b.sender[i], b.kind[i], b.stream_id[i], b.byte_offset[i], b.size[i], b.amount[i])
        for b in observer.rows.take()
        for i in range(b.used)
    ]
    violations = [(v.rule.name, v.sender, v.frame_index, v.byte_offset, v.certainty)
                  for v in observer.take_violations()]  # fmt: skip
    streams = [*observer.protocol.streams.removed, *observer.protocol.streams.all()]
    sizes = [(s.label(), s.dialer.content_bytes, s.acceptor.content_bytes) for s in streams]
    return [rows, violations, sizes]


def windows(data: bytes) -> set[bytes]:
    return {data[n : n + WINDOW] for n in range(len(data) - WINDOW + 1)}


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_no_content_survives_in_random_conversations_with_and_without_gaps(
    name: str, loss: float
) -> None:
    """After a gap the start of a frame is searched for, which depends on the content a little."""
    unequal = 0
    for seed in range(SEEDS if name != "yamux" else 3):  # long ones
        conversation = ModelConversation(MODELS[name], seed)
        pieces = [(side, bytes(data)) for side, data in conversation.traces["middle"].chunks]
        chance = random.Random(seed)
        lost = frozenset(n for n in range(4, len(pieces)) if chance.random() < loss)
        whole = Observer(conversation.model.observer_protocol(Vantage.MIDDLE))
        for number, (side, data) in enumerate(pieces):
            whole.feed(side, data, number)

        def make(model: Any = conversation.model) -> Protocol:
            protocol: Protocol = model.observer_protocol(Vantage.MIDDLE)
            return protocol

        redaction = Redaction("none" if seed % 2 else "hash", KEY)
        new = redact(make(), pieces, redaction, lost)
        unequal += observed(make, new, lost) != observed(make, pieces, lost)
        kept = [b"".join(data for side, data in new if side == n) for n in (0, 1)]
        secret = set().union(*[windows(piece) for piece in contents(conversation)])
        names = set().union(*[windows(piece) for piece in names_of(whole)])
        for data in kept if name != "mplex" or not loss else ():  # a start found by mistake
            assert not (windows(data) & secret) - names - windows(b"\xff" * 20)
        if lost:
            strict = redact(make(), pieces, Redaction(redaction.payload, KEY, strict=True), lost)
            for side in (0, 1):
                data = b"".join(data for sender, data in strict if sender == side)
                assert not (windows(data) & secret) - names - windows(b"\xff" * 20)
    assert unequal <= (1 if loss else 0)


def mplex_frame(flag: int, body: bytes) -> bytes:
    return bytes([8 + flag, len(body)]) + body


def redacted_mplex(redaction: Redaction, *frames: bytes) -> list[bytes]:
    new = redact(create("mplex"), [(0, frame) for frame in frames], redaction)
    return [data for _, data in new]


OPENED = mplex_frame(0, b"accounts")


def test_the_head_of_each_frame_is_kept_and_no_more() -> None:
    frames = (OPENED, mplex_frame(2, b"secret words"), mplex_frame(2, b"abc"), b"\x80" * 10)
    new = redacted_mplex(Redaction("head", KEY, 6, keep_names=True), *frames, b"after the end")
    assert new[:3] == [OPENED, mplex_frame(2, b"secret" + b"\xff" * 6), frames[2]]
    assert new[3:] == [b"\xff" * 10, b"\xff" * 13]


def test_equal_contents_have_equal_filler_that_depends_on_the_key() -> None:
    frames = (OPENED, mplex_frame(2, b"same"), mplex_frame(2, b"same"), mplex_frame(2, b"sane"))
    new = redacted_mplex(Redaction("hash", KEY), *frames)
    other = redacted_mplex(Redaction("hash", bytes(32)), *frames)
    assert new[1] == new[2] != new[3]
    assert new[1] != other[1]
    assert new[1][:2] == frames[1][:2]


def test_names_are_hashed_and_stay_as_long_unless_they_are_to_be_kept() -> None:
    new = redacted_mplex(Redaction("none", KEY), OPENED, mplex_frame(0, b"\xfe\xfe"))
    assert new[0][:2] == OPENED[:2]
    assert len(new[0]) == len(OPENED)
    assert b"acc" not in new[0]
    new[0].decode("ascii")
    assert new[1][2] == 0xFF  # what was no text is none
    kept = redacted_mplex(Redaction("none", KEY, keep_names=True), OPENED)
    assert kept == [OPENED]


def second_name(*before: tuple[int, bytes], lost: frozenset[int] = frozenset()) -> bytes:
    """What a redaction that keeps names leaves of a name after other pieces."""
    pieces = [(0, OPENED), *before, (0, b"\x18\x06second" + b"\x1a\x01.")]
    new = redact(create("mplex"), pieces, Redaction("none", KEY, keep_names=True), lost)
    assert b"accounts" in new[0][1]
    return new[-1][1]


def test_a_name_is_kept_only_while_no_rule_was_broken_and_nothing_is_missing() -> None:
    content = mplex_frame(2, b"0123456789")
    assert b"second" in second_name((0, content))
    assert b"second" not in second_name((0, content), lost=frozenset({1}))
    assert b"second" not in second_name((0, b"\x5a\x01a"))  # content of no stream
    assert b"second" not in second_name((1, b"\x5a\x01a"))  # by the other side
    assert b"second" not in second_name((1, b"\xff" * 10))


def test_what_follows_a_length_that_is_too_short_does_not_survive_as_a_name() -> None:
    words = b"PLANTED secret content that is longer than its frame says, by far" * 3
    new = redacted_mplex(Redaction("none", KEY), OPENED, b"\x0a\x02" + words)
    assert not windows(new[1]) & windows(words)


@pytest.mark.parametrize("payload", ["full", "head", "hash", "none"])
@pytest.mark.parametrize("size", [3, 12])
def test_a_name_that_never_becomes_complete_is_hashed_too(payload: str, size: int) -> None:
    redaction = Redaction(payload, KEY, 100 if payload == "head" else 0)
    (new,) = redacted_mplex(redaction, b"\x08\x14the planted name of a"[: 2 + size])
    assert new[:2] == b"\x08\x14"
    assert b"the" not in new
    assert b"planted" not in new


UPGRADE = (
    b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
)


@pytest.mark.parametrize("step", [1, 50, 1000])
def test_an_upgrade_after_a_token_exchange_is_kept_and_its_proofs_are_not(step: int) -> None:
    nonce, proof = b"0a" * 16, b"1b" * 32
    tokens = (
        b"polymux-token 1 %s %s\n" % (nonce, proof),
        b"polymux-token 1 %s\npolymux-token 1 ok %s\n" % (nonce, proof),
    )
    opened = encode_frame(2, b"\x01\x05{}", b"\x01\x02\x03\x04")
    redactor = ConversationRedactor(
        Observer(create("omnistreams"), False),
        Redaction("none", KEY, keep_names=True),
        (len(tokens[0]), len(tokens[1])),
    )
    for side, data in ((1, tokens[1]), (0, tokens[0] + UPGRADE[0]), (1, UPGRADE[1]), (0, opened)):
        for at in range(0, len(data), step):
            redactor.feed(side, data[at : at + step], 0)
    redactor.finish()
    new = [b"", b""]
    for piece in redactor.take():
        new[piece.side] += piece.data
    zeros = [token.replace(proof, b"0" * 64) for token in tokens]
    assert new == [zeros[0] + UPGRADE[0] + opened, zeros[1] + UPGRADE[1]]


def test_half_a_token_exchange_has_no_proof_either() -> None:
    token = b"polymux-token 1 %s %s\n" % (b"0a" * 16, b"1b" * 32)
    redactor = ConversationRedactor(
        Observer(create("mplex"), False), Redaction("none", KEY), (len(token), 0)
    )
    redactor.feed(0, token[:80], 0)
    redactor.finish()
    assert [piece.data for piece in redactor.take()] == [token[:49] + b"0" * 31]


def test_strict_keeps_no_websocket_header_control_payload_or_partial_header_after_a_gap() -> None:
    mask = b"\x01\x02\x03\x04"
    message = encode_frame(2, b"\x02\x05" + b"content-" * 5, mask)
    opened = encode_frame(2, b"\x01\x05{}", mask)
    closed = encode_frame(8, b"\x03\xe8bye", mask)
    pieces = [(0, UPGRADE[0]), (1, UPGRADE[1]), (0, opened), (0, message)]
    pieces += [(0, message)] * 30 + [(0, encode_frame(9, b"ping", mask)), (0, closed)]
    pieces += [(0, b"\x82\xfe\x01")]
    loose = redact(create("omnistreams"), pieces, Redaction("none", KEY), frozenset({3}))
    assert loose[-4][1][:6] == message[:6]
    assert loose[-2][1][:8] == closed[:8]
    strict = redact(
        create("omnistreams"), pieces, Redaction("none", KEY, strict=True), frozenset({3})
    )
    assert strict[2][1] != b"\xff" * len(strict[2][1])
    assert all(data == b"\xff" * len(data) for _, data in strict[4:])


def test_strict_keeps_no_incomplete_header_after_a_gap() -> None:
    pieces = [(0, OPENED), (0, mplex_frame(2, bytes(40)))]
    pieces += [(0, mplex_frame(2, b"0123456789" * 4))] * 30 + [(0, b"\x0a\x20ab")]
    loose = redact(create("mplex"), pieces, Redaction("none", KEY), frozenset({1}))
    assert loose[-1][1] == b"\x0a\x20\xff\xff"
    strict = redact(create("mplex"), pieces, Redaction("none", KEY, strict=True), frozenset({1}))
    assert strict[-1][1] == b"\xff" * 4


def test_the_spans_of_many_frames_are_passed_over_once() -> None:
    """Many chunks that are released together: each looks at its own spans only."""
    own = RedactedSide(0, Redaction("none", KEY))
    spans = SpanReads()
    count = 5000
    for n in range(count):
        own.held.append(HeldBytes(4 * n, b"hdrc", n))
        spans.append(Span(4 * n, 4 * n + 3))
    own.spans = spans
    out: list[Any] = []
    own.release(4 * count, out)
    assert [piece.data for piece in out] == [b"hdr\xff"] * count
    assert spans.copied == 0
    own.add_span(4 * count, 4 * count + 3)
    own.held.append(HeldBytes(4 * count, b"hdrc", count))
    own.release(4 * count + 4, out)
    assert out[-1].data == b"hdr\xff"
    assert len(own.spans) == 1


class SpanReads(list[Span]):
    """Spans that count how many of them were copied."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, slice):
            self.copied += len(found)
        return found


def test_an_empty_frame_does_not_let_undecodable_bytes_through_as_its_head() -> None:
    broken = b"\xff" * 9 + b"secret after the failure"
    new = redacted_mplex(Redaction("head", KEY, 100), OPENED, mplex_frame(2, b"") + broken)
    assert new[1] == mplex_frame(2, b"") + b"\xff" * len(broken)


def test_http_heads_keep_only_what_the_upgrade_depends_on() -> None:
    request = (
        b"GET /chat?token=topsecret HTTP/1.1\r\nHost: inner.example\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nCookie: id=topsecret\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    response = (
        b"HTTP/1.1 101 Hello Secret\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Server: topsecret\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    )
    opened = encode_frame(2, b"\x01\x05{}", b"\x01\x02\x03\x04")
    closed = encode_frame(8, b"\x03\xe8topsecret", b"\x01\x02\x03\x04")
    ping = encode_frame(9, b"topsecret")
    pieces = [(0, request), (1, response), (0, opened), (1, ping), (0, closed)]
    new = redact(create("omnistreams"), pieces, Redaction("none", KEY, keep_names=True))
    assert new[0][1].startswith(
        b"GET /chatxxxxxxxxxxxxxxxx HTTP/1.1\r\nxxxx: xxxxxxxxxxxxx\r\nUpgrade"
    )
    assert b"dGhlIHNhbXBsZSBub25jZQ==" in new[0][1]
    assert new[2][1] == opened
    assert new[3][1] == encode_frame(9, b"x" * 9)
    assert new[4][1] == encode_frame(8, b"\x03\xe8" + b"x" * 9, b"\x01\x02\x03\x04")
    assert all(word not in data for _, data in new for word in (b"topsecret", b"inner", b"Secret"))
    hashed = redact(create("omnistreams"), pieces, Redaction("none", KEY))
    assert b"chat" not in hashed[0][1]


def test_a_frame_with_which_a_side_ends_stays_incomplete() -> None:
    partial = b"\x0a\x20secret that never came to its e"
    assert redacted_mplex(Redaction("none", KEY), OPENED, partial)[1] == partial[:2] + b"\xff" * 31
    yamux = redact(create("yamux"), [(0, b"\x00\x00\x00\x01\x00")], Redaction("none", KEY))
    assert yamux == [(0, bytes(5))]


@pytest.mark.parametrize(
    ("payload", "key", "head"), [("some", KEY, 0), ("none", b"short", 0), ("head", KEY, -1)]
)
def test_a_redaction_that_cannot_be_meant_is_refused(payload: str, key: bytes, head: int) -> None:
    with pytest.raises(ValueError, match="head"):
        Redaction(payload, key, head)
