"""The first octets of a session, and what a protocol makes of them when it is tried on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from polymux.analysis.detection.trial import EARLY, STEP, Feeding, frames_of, largest_payloads
from polymux.capture import Batch, TcpSession
from polymux.capture.tcp.events import GAP, OCTETS
from polymux.core.observer import Observer
from polymux.core.streams import Stream
from polymux.protocols.registry import create

LOOK = 64 * 1024
GLANCE = int(EARLY)
HOPELESS = 256  # broken rules, by nine frames of ten: no later octets make up for these
# For a first look, after which it is tried again if no other protocol is the right one:
FIRST_STEP = 64
FIRST_HOPELESS = 64

Piece = tuple[int, bytes, int]


@dataclass(frozen=True)
class Sample:
    """Pieces (side, octets, instant) as they passed; a hole ends it.

    `started`: the connection's beginning was captured, so that octet 0 begins a frame.
    """

    pieces: tuple[Piece, ...]
    started: bool = True

    def head(self, side: int) -> bytes:
        """The first octets of one side."""
        return self._heads[side]

    @cached_property
    def _heads(self) -> tuple[bytes, bytes]:
        heads: tuple[list[bytes], list[bytes]] = ([], [])
        for side, data, _ in self.pieces:
            heads[side].append(data)
        return b"".join(heads[0]), b"".join(heads[1])

    @cached_property
    def octets(self) -> int:
        return sum(len(data) for _, data, _ in self.pieces)

    def first(self, octets: int) -> Sample:
        """The beginning of it."""
        kept: list[Piece] = []
        for side, data, at in self.pieces:
            if octets <= 0:
                break
            kept.append((side, data[:octets], at))
            octets -= len(data)
        return Sample(tuple(kept), self.started)

    def without(self, skip: tuple[int, int]) -> Sample:
        """The same behind the first `skip` octets of each side."""
        if skip == (0, 0):
            return self
        left = list(skip)
        kept: list[Piece] = []
        for side, data, at in self.pieces:
            cut = min(left[side], len(data))
            left[side] -= cut
            if cut < len(data):
                kept.append((side, data[cut:], at))
        return Sample(tuple(kept), self.started)

    def only(self, side: int) -> Sample:
        return Sample(tuple(piece for piece in self.pieces if piece[0] == side), self.started)

    def boundaries(self, side: int) -> Iterator[int]:
        """Where the pieces of one side begin."""
        offset = 0
        for sender, data, _ in self.pieces:
            if sender == side:
                yield offset
                offset += len(data)


def take_sample(session: TcpSession, octets: int = LOOK) -> Sample:
    """The first octets of a session, up to the first hole."""
    pieces: list[Piece] = []
    left = octets
    for batch in session.alone(octets):
        left = add_pieces(pieces, batch, left)
        if left <= 0:
            break
    return Sample(tuple(pieces), session.saw_syn)


def add_pieces(pieces: list[Piece], batch: Batch, left: int) -> int:
    """Those of a batch, `left` octets at most; how many more are wanted, none behind a hole."""
    start = 0
    for n in range(batch.count):
        kind, size = batch.kind[n], batch.size[n]
        if kind == GAP:
            return 0
        if kind == OCTETS:
            data = batch.data[start : start + min(size, left)]
            pieces.append((int(batch.side[n]), data, int(batch.at[n])))
            start += size
            left -= size
            if left <= 0:
                return 0
    return left


@dataclass(slots=True)
class Trial:
    """What became of a sample. `fitting` frames broke no rule, `explained` is the share of the
    octets in them or in frames still passing. `given_up`: not all of it was looked at."""

    text: str
    frames: int = 0
    fitting: int = 0
    explained: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    lost: str = ""
    streams: list[Stream] = field(default_factory=list)
    largest: tuple[int, int] = (0, 0)
    path: str = ""
    given_up: bool = False

    @property
    def share(self) -> float:
        """How well it fits: its share of frames; where the next one was lost, of octets too."""
        if not self.frames:
            return 0.0
        fitting = self.fitting / self.frames
        return fitting * self.explained if self.lost else fitting


def attempt(text: str, sample: Sample, excused: tuple[str, ...] = (), brief: bool = False) -> Trial:
    """Decode the sample as this protocol. Rules in `excused` are not held against it.

    Octets of another protocol may be thousands of tiny broken frames: those are not all looked at,
    and where it is to be `brief`, only some dozens.
    """
    observer = Observer(create(text))
    if not sample.started:
        observer.doubt()
    feeding = Feeding(observer, excused, FIRST_HOPELESS if brief else HOPELESS)
    feeding.feed(sample.pieces, FIRST_STEP if brief else STEP)
    assert observer.rows is not None
    largest, bad = (0, 0), 0
    for batch in observer.rows.take():
        first, second = largest_payloads(batch)
        largest = (max(largest[0], first), max(largest[1], second))
        if feeding.held:
            bad += feeding.broken_octets(batch)
    trial = Trial(text, faults=Counter(feeding.faults), given_up=feeding.given_up)
    conversation = observer.conversation
    for direction in (conversation.dialer, conversation.acceptor):
        bad += int(direction.undecoded)
        trial.lost = trial.lost or direction.reason
    trial.frames = frames_of(observer)
    trial.fitting = max(0, trial.frames - len(feeding.held))
    trial.explained = max(0.0, 1 - bad / max(1, feeding.octets))
    trial.largest = largest
    streams = observer.protocol.streams
    trial.streams = [*observer.take_gone(), *streams.all()]
    trial.path = observer.carrier.path if observer.carrier is not None else ""
    return trial
