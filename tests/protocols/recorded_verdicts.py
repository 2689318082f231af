"""Random but reproducible conversations, and digests of what polymux reports about them.

The digests are in tests/vectors/recorded_verdicts.json. When a change of behaviour is intended,
`python -m tests.protocols.recorded_verdicts` writes them again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.attacks import raw_frames as words
from tests.fuzz.seeds import conversations, mutated
from tests.fuzz.test_credit import POOLS

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.protocols.registry import create
from polymux.testing.properties import new_middle_observer, split_randomly, take_rows
from polymux.testing.simulator import Simulation

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "tests" / "vectors" / "recorded_verdicts.json"
PROTOCOLS = ["mplex", "mplex:ids=counting", "nerdbank:version=1", "nerdbank:version=2",
             "nerdbank:version=3", "omnistreams:carrier=length",
             "omnistreams:carrier=length,numbering=legacy", "streamux",
             "streamux:length_bits=10,id_bits=4", "minmux",
             "minmux:profile=tests/attacks/profile.toml", "yamux"]  # fmt: skip
BATCHES = 8
CASES = 12  # of each batch
TIGHT = Limits(
    max_frame_bytes=1024,
    max_control_bytes=1024,
    max_metadata_bytes=1024,
    max_prehandshake_bytes=1024,
    max_name_bytes=512,
)

Found = tuple[object, ...]


def seen(observer: Observer) -> Found:
    """Return all that an observer reports, except message texts."""
    observer.finish(10**15, True, False)
    violations = sorted(
        (v.rule.name, int(v.sender), v.frame_index, v.byte_offset, v.stream, str(v.certainty))
        for v in observer.take_violations()
    )
    streams = [
        s.save() for s in (*observer.take_removed_streams(), *observer.protocol.streams.all())
    ]
    return take_rows(observer), violations, streams, observer.accounts_for_all_bytes()


def lived(protocol: str, chance: Random) -> Found:
    """Two honest endpoints: what they write, and what a middle observer reports."""
    world = Simulation(protocol, chance.randrange(10**6))
    world.run(20)
    chunks = [(side, data) for side, data, _ in world.record]
    return chunks, seen(world.middle_observer), [end.counters.hits for end in world.ends]


def damaged(protocol: str, chance: Random) -> Found:
    """The same with some bytes changed, in pieces of any size, by either side."""
    world = Simulation(protocol, chance.randrange(10**6))
    world.run(20)
    watcher = new_middle_observer(protocol)
    at = 0
    for side, data, _ in world.record:
        raw = bytearray(data)
        if raw and chance.random() < 0.1:
            raw[chance.randrange(len(raw))] = chance.choice([0, 1, 2, 127, 128, 255])
        for piece in split_randomly(bytes(raw), chance):
            at += 7
            watcher.feed(side, piece, at)
        if chance.random() < 0.03:
            watcher.gap(side, chance.randrange(1, 50), at)
    return seen(watcher)


def twisted(protocol: str, chance: Random) -> Found:
    """The conversations of the vectors, split: observed, and received by an endpoint."""
    seeds = conversations(protocol.partition(":")[0])
    data = mutated(chance, seeds)
    watcher = Observer(create(protocol, TIGHT))
    side = chance.getrandbits(1)
    for at, piece in enumerate(split_randomly(data, chance)):
        watcher.feed(side, piece, at)
        side ^= chance.random() < 0.3
    return seen(watcher), answered(protocol, hello(protocol) + mutated(chance, seeds), chance)


def at_the_edge(protocol: str, chance: Random) -> Found:
    """Frames with numbers of every size, in any order."""
    frames = chance.choices(pool(protocol), k=40)
    watcher = Observer(create(protocol, Limits()))
    watcher.feed(0, hello(protocol), 0)
    watcher.feed(1, hello(protocol).replace(words.ODD, bytes(16)), 0)
    for at, frame in enumerate(frames):
        watcher.feed(chance.getrandbits(1), frame, at)
    return seen(watcher), answered(protocol, hello(protocol) + b"".join(frames), chance)


def answered(protocol: str, data: bytes, chance: Random) -> Found:
    """A live endpoint: its events, bytes and counters."""
    end = Endpoint(create(protocol, TIGHT, vantage=1), 1)
    end.start(bytes(16))
    out: list[object] = []
    try:
        for piece in split_randomly(data, chance):
            for event in end.receive(piece, 1.0):
                out.append((type(event).__name__, event.stream.label() if event.stream else ""))
                if event.stream is not None and chance.random() < 0.2:
                    end.abort(event.stream, b"enough")
            out.append(end.data_to_send())
    except PolymuxError as problem:
        out.append(type(problem).__name__)
    return out, end.counters.hits


def hello(protocol: str) -> bytes:
    if protocol.startswith("nerdbank"):
        return words.HELLO[int(protocol[-1])]
    if protocol == "streamux":
        return words.INITIATOR
    return bytes([1, 10, 4, 50]) if protocol.startswith("streamux") else b""


def pool(protocol: str) -> list[bytes]:
    name = protocol.partition(":")[0]
    if protocol in POOLS:
        return POOLS[protocol]
    if name == "mplex":
        numbers = [n for bits in (0, 4, 11, 28, 59, 60) for n in (2**bits - 1, 2**bits)]
        frames = [words.mplex(n, flag, b"abc"[: n % 4]) for n in numbers for flag in range(8)]
        return frames + [words.uvarint(8 * n + 1) + b"\x80\x80\x01" for n in numbers]
    if name == "streamux":
        frames = [
            words.streamux(n, bytes(size), last, reply)
            for n in range(4)
            for size in (0, 1, 3)
            for last in (False, True)
            for reply in (False, True)
        ]
        if protocol != "streamux":  # two bytes: 10 bits of length, 4 of id
            frames = [
                int.to_bytes(flags << 14 | len(body) << 4 | n, 2, "little") + body
                for n in range(4)
                for body in (b"", b"a", b"abc")
                for flags in range(4)
            ]
        return frames
    if name == "yamux":
        return [words.yamux(kind, flags, n, length) for kind in range(4) for flags in range(16)
                for n in (0, 1, 2, 5) for length in (0, 1, 3, 2**31, 2**32 - 1)
                if kind or length < 4]  # fmt: skip
    if name == "nerdbank":
        wire = words.Nerdbank(1)
        return [wire.frame(code, n, b"x" * size) for code in range(10) for n in (0, 1, 2, 3, 2**31)
                for size in (0, 1, 30)]  # fmt: skip
    return POOLS["minmux"] if name == "minmux" else POOLS["omnistreams:carrier=length"]


KINDS: dict[str, Callable[[str, Random], Found]] = {
    "lived": lived, "damaged": damaged, "twisted": twisted, "at the edge": at_the_edge,
}  # fmt: skip


def digests(protocol: str, kind: str) -> Iterator[str]:
    """One for each batch."""
    for batch in range(BATCHES):
        chance = Random(f"{protocol} {kind} {batch}")
        found = [repr(KINDS[kind](protocol, chance)) for _ in range(CASES)]
        yield hashlib.blake2b("\n".join(found).encode(), digest_size=6).hexdigest()


def main() -> None:
    every = {f"{protocol} {kind}": list(digests(protocol, kind))
             for protocol in PROTOCOLS for kind in KINDS}  # fmt: skip
    KNOWN.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()
