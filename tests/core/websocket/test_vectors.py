"""Every WebSocket vector, fed whole, byte by byte, cut anywhere, and through a snapshot."""

import json
from pathlib import Path
from typing import Any

import pytest

from polymux.core.side import Side
from polymux.core.websocket.decoder import CLOSED, FAILED, FINISHED, LOST, READING, Decoder
from polymux.core.websocket.events import (
    Close,
    DecoderEvent,
    DecodingLost,
    FrameViolation,
    Message,
    Ping,
    Pong,
)
from polymux.core.websocket.rules import (
    AFTER_CLOSE,
    BAD_CODE,
    BAD_REASON,
    FRAME_RULES,
    SHORT_CLOSE,
    TRUNCATED,
)

VECTORS = Path(__file__).parent.parent.parent / "vectors" / "websocket"
TOPICS = ("framing", "control", "fragmentation", "closing", "limits", "lenient", "gaps")
STATES = {"reading": READING, "closed": CLOSED, "failed": FAILED, "lost": LOST, "over": FINISHED}
SIDES = {"dialer": Side.DIALER, "acceptor": Side.ACCEPTOR}
CASES = [
    pytest.param(case, id=f"{topic}: {case['name']}")
    for topic in TOPICS
    for case in json.loads((VECTORS / f"{topic}.json").read_text("utf-8"))["cases"]
]
Wire = list[bytes | int]


def raw_bytes(parts: Any) -> bytes:
    if isinstance(parts, str):
        return bytes.fromhex(parts)
    return b"".join(
        bytes.fromhex(p) if isinstance(p, str) else bytes.fromhex(p[0]) * p[1] for p in parts
    )


def wire_of(case: Any) -> Wire:
    """The wire of a case, with as few pieces as its gaps allow."""
    wire: Wire = []
    for part in case["wire"]:
        if isinstance(part, int):
            wire.append(part)
        elif wire and isinstance(wire[-1], bytes):
            wire[-1] += raw_bytes([part])
        else:
            wire.append(raw_bytes([part]))
    return wire


def byte_by_byte(wire: Wire) -> Wire:
    single: Wire = []
    for part in wire:
        single.extend([1] * part if isinstance(part, int) else [bytes([o]) for o in part])
    return single


def decoder_for(case: Any) -> Decoder:
    limit, lenient = case.get("limit", 1024 * 1024), case.get("lenient", False)
    return Decoder(SIDES[case.get("sender", "acceptor")], limit, lenient)


def put(decoder: Decoder, part: bytes | int) -> None:
    if isinstance(part, int):
        decoder.gap(part)
    else:
        decoder.feed(part)


def check(case: Any, decoder: Decoder, items: list[DecoderEvent]) -> None:
    """The end of a run: the expected items and state, and no byte lost or counted twice."""
    if case.get("finish"):
        decoder.finish()
        items = items + decoder.take()
    found = [described(item) for item in items]
    expected = [dict(find) for find in case["finds"]]
    for find in expected:
        for kind in ("message", "ping", "pong"):
            if kind in find:
                find[kind] = raw_bytes(find[kind])
    assert len(found) == len(expected), found
    for got, find in zip(found, expected, strict=True):
        assert {name: got.get(name) for name in find} == find
    assert decoder.state == STATES[case.get("state", "reading")]
    total = sum(part if isinstance(part, int) else len(part) for part in wire_of(case))
    assert decoder.offset == total
    counted = (
        decoder.delivered_bytes
        + decoder.control_bytes
        + decoder.skipped_bytes
        + decoder.missing_bytes
    )
    assert counted + decoder.pending() == total
    assert decoder.delivered_bytes == sum(
        item.wire_bytes for item in items if isinstance(item, Message)
    )
    if case.get("finish"):
        assert decoder.pending() == 0


def described(item: DecoderEvent) -> dict[str, Any]:
    match item:
        case Message():
            holes = [list(hole) for hole in item.holes]
            return {"message": item.data, "holes": holes, **place(item)}
        case Ping():
            return {"ping": item.data, "damaged": item.damaged, **place(item)}
        case Pong():
            return {"pong": item.data, "damaged": item.damaged, **place(item)}
        case Close():
            more = {"reason": item.reason, "damaged": item.damaged}
            return {"close": item.code, **more, **place(item)}
        case FrameViolation():
            assert item.rule.close_code == item.close_code
            name = item.rule.name.removeprefix("websocket.")
            return {"fault": name, "code": item.close_code, "offset": item.offset}
        case DecodingLost():
            return {"lost": item.offset}


def place(item: Message | Ping | Pong | Close) -> dict[str, int]:
    return {"offset": item.offset, "bytes": item.wire_bytes}


@pytest.mark.parametrize("case", CASES)
def test_vector_fed_whole(case: Any) -> None:
    decoder = decoder_for(case)
    for part in wire_of(case):
        put(decoder, part)
    check(case, decoder, decoder.take())


@pytest.mark.parametrize("case", CASES)
def test_vector_fed_byte_by_byte(case: Any) -> None:
    decoder = decoder_for(case)
    for part in byte_by_byte(wire_of(case)):
        put(decoder, part)
    check(case, decoder, decoder.take())


@pytest.mark.parametrize("case", CASES)
def test_vector_saved_and_restored_after_every_byte(case: Any) -> None:
    singles = byte_by_byte(wire_of(case))
    step = 1 + len(singles) // 500  # the long ones now and then
    decoder = decoder_for(case)
    items: list[DecoderEvent] = []
    for count, part in enumerate(singles):
        put(decoder, part)
        if count % step == 0:
            items += decoder.take()
            saved = decoder.snapshot()
            decoder = decoder_for(case)
            decoder.restore(saved)
            assert decoder.snapshot() == saved
    check(case, decoder, items + decoder.take())


@pytest.mark.parametrize("case", CASES)
def test_vector_cut_in_two_anywhere(case: Any) -> None:
    wire = wire_of(case)
    total = sum(part if isinstance(part, int) else len(part) for part in wire)
    for cut in range(1, min(total, 150)):
        decoder = decoder_for(case)
        for part in cut_at(wire, cut):
            put(decoder, part)
        check(case, decoder, decoder.take())


def cut_at(wire: Wire, cut: int) -> Wire:
    """The same wire with one more piece: the one that holds byte `cut` ends before it."""
    pieces: Wire = []
    for part in wire:
        size = part if isinstance(part, int) else len(part)
        if not 0 < cut < size:
            pieces.append(part)
        elif isinstance(part, int):
            pieces += [cut, part - cut]
        else:
            pieces += [part[:cut], part[cut:]]
        cut -= size
    return pieces


def test_every_rule_has_a_vector() -> None:
    texts = [(VECTORS / f"{topic}.json").read_text("utf-8") for topic in TOPICS]
    finds = [find for text in texts for case in json.loads(text)["cases"] for find in case["finds"]]
    rules = (*FRAME_RULES, SHORT_CLOSE, BAD_CODE, BAD_REASON, AFTER_CLOSE, TRUNCATED)
    names = {rule.name.removeprefix("websocket.") for rule in rules}
    assert {find["fault"] for find in finds if "fault" in find} == names


CODES = json.loads((VECTORS / "closing.json").read_text("utf-8"))


@pytest.mark.parametrize("code", CODES["allowed_codes"])
def test_close_code_that_may_be_sent_is_read(code: int) -> None:
    decoder = Decoder(Side.ACCEPTOR)
    decoder.feed(b"\x88\x02" + code.to_bytes(2, "big"))
    assert [described(item)["close"] for item in decoder.take()] == [code]
    assert decoder.state == CLOSED


@pytest.mark.parametrize("code", CODES["refused_codes"])
def test_close_code_that_may_not_be_sent_is_refused(code: int) -> None:
    decoder = Decoder(Side.ACCEPTOR)
    decoder.feed(b"\x88\x02" + code.to_bytes(2, "big"))
    assert [described(item)["fault"] for item in decoder.take()] == ["bad-close-code"]
    assert decoder.state == FAILED
