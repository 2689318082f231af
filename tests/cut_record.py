"""Cut the beginning off a recorded conversation, and compare what is left with the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from polymux.core.observer import Observer
from polymux.core.protocol import NO_STREAM, Protocol
from polymux.core.rules import Certainty, Severity

Record = list[tuple[int, bytes, int]]  # packets: side, bytes, timestamp
FrameKey = tuple[int, int, int]  # sender, byte offset, size
StreamKey = tuple[int, int]  # opener, stream id


@dataclass
class Tally:
    """Sums over many cuts; frames and streams are those after the cut."""

    cuts: int = 0
    frames: int = 0
    decoded: int = 0
    invented: int = 0  # decoded where the whole capture has no frame
    streams: int = 0
    listed: int = 0
    certain: list[str] = field(default_factory=list)  # violations that the whole does not have
    possible: list[str] = field(default_factory=list)

    @property
    def decoded_share(self) -> float:
        return self.decoded / max(1, self.frames)

    @property
    def listed_share(self) -> float:
        return self.listed / max(1, self.streams)


def frames_of(observer: Observer) -> dict[FrameKey, StreamKey]:
    """The frames that an observer has decoded, with their streams."""
    assert observer.rows is not None
    return {
        (int(b.sender[i]), int(b.byte_offset[i]), int(b.size[i])): (
            int(b.opener[i]),
            int(b.stream_id[i]),
        )
        for b in observer.rows.take()
        for i in range(b.used)
    }


def observed(make: Callable[[], Protocol], record: Iterable[tuple[int, bytes, int]],
             *, in_middle: bool) -> Observer:  # fmt: skip
    """An observer that has seen a record to its end."""
    observer = Observer(make())
    if in_middle:
        observer.begin_in_middle()
    at = 0
    for side, data, at in record:
        observer.feed(side, data, at)
    observer.finish(at, True, True)
    assert observer.accounts_for_all_bytes()
    return observer


def cut_randomly(
    make: Callable[[], Protocol], record: Record, cuts: int, seed: int, tally: Tally
) -> None:
    """Cut a record at random packets, and add what was found to the tally."""
    rng = Random(seed)
    whole = observed(make, record, in_middle=False)
    known = {v.rule.name for v in whole.take_violations()}
    whole_frames = frames_of(whole)
    for _ in range(cuts):
        at = rng.randrange(1, len(record))
        before = [sum(len(d) for s, d, _ in record[:at] if s == side) for side in (0, 1)]
        cut = observed(make, record[at:], in_middle=True)
        for violation in cut.take_violations():
            if violation.rule.name not in known and violation.rule.severity is not Severity.NOTE:
                text = f"cut {at}: {violation}"
                is_certain = violation.certainty is Certainty.CERTAIN
                (tally.certain if is_certain else tally.possible).append(text)
        expected = {key: s for key, s in whole_frames.items() if key[1] >= before[key[0]]}
        found = {(k[0], k[1] + before[k[0]], k[2]): s for k, s in frames_of(cut).items()}
        alive = {s for s in expected.values() if s[0] != NO_STREAM}
        listed = set(found.values())
        if whole.protocol.version() in ("1", "2"):  # which side has the odd ids was not seen
            alive = {(0, number) for _, number in alive}
            listed = {(0, number) for _, number in listed}
        tally.cuts += 1
        tally.frames += len(expected)
        tally.decoded += len(expected.keys() & found.keys())
        tally.invented += len(found.keys() - expected.keys())
        tally.streams += len(alive)
        tally.listed += len(alive & listed)
