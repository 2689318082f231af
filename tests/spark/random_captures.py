"""Captures for the pipeline's tests: random honest conversations, as recorded in the middle."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import TableWriter, write_empty_tables
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import PcapngWriter, TcpConnectionWriter, hint_comment, read_sessions
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.testing.simulator import Simulation

START = 1_700_000_000_000_000_000
PROTOCOLS = ("mplex", "nerdbank", "nerdbank:version=1", "nerdbank:version=2")


def conversations(seed: int, count: int) -> list[tuple[str, Simulation]]:
    """Some conversations that have come to their end."""
    found = []
    for number in range(count):
        text = PROTOCOLS[number % len(PROTOCOLS)]
        world = Simulation(text, seed + number)
        world.run(80)
        found.append((text, world))
    return found


def record(
    paths: Sequence[Path], talks: list[tuple[str, Simulation]], seed: int = 0, port: int = 40_000
) -> None:
    """Write the conversations into these files, interleaved; each may span all of them.

    The dialers have the ports from `port` on.
    """
    rng = Random(seed)
    events = []
    for number, (_, world) in enumerate(talks):
        begun = START + number * 1_000_000
        events += [(begun + at, number, side, data) for side, data, at in world.record]
    events.sort(key=lambda event: event[0])
    cuts = sorted(rng.sample(range(1, len(events)), len(paths) - 1)) if len(paths) > 1 else []
    bounds = [0, *cuts, len(events)]
    scribes: dict[int, TcpConnectionWriter] = {}
    sink = Switch()
    last = START
    for path, begin, end in zip(paths, bounds[:-1], bounds[1:], strict=True):
        with PcapngWriter(str(path)) as writer:
            sink.turn_to(writer)
            for at, number, side, data in events[begin:end]:
                if number not in scribes:
                    scribes[number] = TcpConnectionWriter(
                        sink, ("192.0.2.1", port + number), ("198.51.100.2", 9000), at,
                        comment=hint_comment(talks[number][0], "middle"),
                    )  # fmt: skip
                scribes[number].data(side, data, at)
                last = at
            if path == paths[-1]:
                for scribe in scribes.values():
                    scribe.close(last + 1000)


def blocks_of(capture: Path) -> tuple[bytes, list[bytes]]:
    """The head of a pcapng file, and its packets as they stand in it."""
    data = capture.read_bytes()
    blocks, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        blocks.append(data[at : at + size])
        at += size
    packets = [block for block in blocks if block[0] == 6]
    return b"".join(blocks[: len(blocks) - len(packets)]), packets


def roughen(packets: list[bytes], seed: int) -> list[bytes]:
    """The same packets, some late by a few and some sent twice; the first dozen stay."""
    rng = Random(seed)
    places: list[tuple[float, bytes]] = []
    for number, packet in enumerate(packets):
        calm = number < 12
        late = rng.uniform(1.1, 6) if rng.random() < 0.1 and not calm else 0
        places.append((number + late, packet))
        if rng.random() < 0.05 and not calm:
            places.append((number + late + rng.uniform(0.1, 20), packet))
    return [packet for _, packet in sorted(places, key=lambda place: place[0])]


def rotate(head: bytes, packets: list[bytes], paths: Sequence[Path], seed: int) -> None:
    """Write packets into these files, one after another, cut anywhere."""
    cuts = sorted(Random(seed).sample(range(1, len(packets)), len(paths) - 1))
    for path, begin, end in zip(paths, [0, *cuts], [*cuts, len(packets)], strict=True):
        path.write_bytes(head + b"".join(packets[begin:end]))


class Switch:
    """Passes packets to whichever file is being written."""

    def __init__(self) -> None:
        self.comment_epoch = 0
        self._writer: PcapngWriter | None = None

    def turn_to(self, writer: PcapngWriter) -> None:
        self._writer = writer
        self.comment_epoch += 1

    def burst(self, burst: PacketBurst) -> None:
        assert self._writer is not None
        self._writer.burst(burst)


def without_spark(paths: Sequence[Path], out: Path) -> None:
    """The same tables, analyzed without Spark."""
    plan = AnalysisOptions().with_content()
    with TableWriter(out, "part-0") as writer, read_sessions(map(str, paths)) as reading:
        for session in reading:
            analyze_session(session, plan, writer.emit)
        writer.add_captures(reading.files)
    write_empty_tables(out)
