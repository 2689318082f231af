"""The WebSocket modules behave the same compiled and interpreted."""

import importlib
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import polymux.core
from polymux.core.websocket import decoder, frames, handshake

CORE = Path(polymux.core.__file__).parent
REASON = "runs interpreted: there is nothing to compare with"
compiled_only = pytest.mark.skipif(not frames.COMPILED, reason=REASON)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same modules, interpreted, under another name."""
    folder = tmp_path_factory.mktemp("interpreted")
    for source in CORE.rglob("*.py"):
        copy = folder / source.relative_to(CORE)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(source.read_text().replace("polymux.core", "interpreted_core"))
    package = ModuleType("interpreted_core")
    package.__path__ = [str(folder)]
    sys.modules["interpreted_core"] = package
    names = ("frames", "handshake", "decoder")
    modules: dict[str, Any] = {
        name: importlib.import_module(f"interpreted_core.websocket.{name}") for name in names
    }
    assert not modules["frames"].COMPILED
    return modules


def decoded_events(module: Any, seed: int) -> tuple[list[str], object]:
    """Feed a decoder frames, damage, gaps and cuts made from a seed; return its events."""
    chance = random.Random(seed)
    reader = module.Decoder(chance.randrange(2), chance.choice([100, 300]), seed % 2 == 0)
    wire = b""
    for _ in range(chance.randrange(1, 9)):
        key = chance.randbytes(4) if reader.sender == 0 else None
        opcode = chance.choice([0, 0, 1, 2, 2, 2, 2, 8, 9, 10, 12])
        size = chance.choice([0, 1, 2, 5, 40, 125, 126, 200])
        wire += frames.encode_frame(opcode, chance.randbytes(size), key, chance.random() < 0.6)
    if chance.random() < 0.5:
        damaged = bytearray(wire)
        damaged[chance.randrange(len(wire))] = chance.randrange(256)
        wire = bytes(damaged)
    found: list[str] = []
    while wire:
        size = chance.randrange(1, 60)
        if chance.random() < 0.1:
            reader.gap(min(size, len(wire)))
        else:
            reader.feed(wire[:size])
        wire = wire[size:]
        found += [repr(item) for item in reader.take()]
        found.append(f"{reader.state} {reader.message_start_offset()} {reader.pending()}")
    saved = reader.snapshot()
    reader.finish()
    return found + [repr(item) for item in reader.take()], saved


@compiled_only
def test_decoders_agree(plain: dict[str, Any]) -> None:
    for seed in range(5000):
        assert decoded_events(decoder, seed) == decoded_events(plain["decoder"], seed), (
            f"seed {seed}"
        )


@compiled_only
def test_decoders_agree_on_noise(plain: dict[str, Any]) -> None:
    chance = random.Random(7)
    for _ in range(20000):
        noise = chance.randbytes(chance.randrange(1, 30))
        side, lenient = chance.randrange(2), chance.random() < 0.5
        here = decoder.Decoder(side, 64, lenient)
        there = plain["decoder"].Decoder(side, 64, lenient)
        assert here.feed(noise) == there.feed(noise)
        assert repr(here.take()) == repr(there.take()), noise.hex()
        assert here.snapshot() == there.snapshot(), noise.hex()


@compiled_only
def test_encoders_agree(plain: dict[str, Any]) -> None:
    chance = random.Random(11)
    for size in [*range(40), 125, 126, 4095, 4096, 4097, 65535, 65536]:
        payload, key = chance.randbytes(size), chance.randbytes(4)
        for used in (None, key):
            ours, theirs = (
                frames.encode_frame(2, payload, used),
                plain["frames"].encode_frame(2, payload, used),
            )
            assert ours == theirs


@compiled_only
def test_upgrade_detectors_agree(plain: dict[str, Any]) -> None:
    chance = random.Random(13)
    request = (
        b"GET /x HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    response = (
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + handshake.accept_key("a").encode() + b"\r\n\r\n"
    )
    assert handshake.detect_upgrade(request, response).outcome == handshake.IS_UPGRADE
    for _ in range(5000):
        heads = []
        for head in (request, response):
            damaged = bytearray(head[: chance.choice([len(head), chance.randrange(len(head))])])
            for _ in range(chance.randrange(3)):
                damaged[chance.randrange(len(damaged) or 1) : 1] = chance.randbytes(1)
            heads.append(bytes(damaged))
        here = handshake.detect_upgrade(heads[0], heads[1])
        there = plain["handshake"].detect_upgrade(heads[0], heads[1])
        names = (
            "outcome", "reason", "path", "request_size", "response_size", "undecodable_reason",
        )  # fmt: skip
        assert [getattr(here, n) for n in names] == [getattr(there, n) for n in names], heads
