"""The first bytes of a session, and what a protocol makes of them when it is tried on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from polymux.analysis.detection.trial import (
    EARLY_BYTES,
    EARLY_STEP_BYTES,
    TrialFeed,
    frame_count,
    largest_payloads,
)
from polymux.capture import StreamBatch, TcpSession
from polymux.capture.tcp.events import GAP, PAYLOAD
from polymux.core.observer import Observer
from polymux.core.streams import StreamState
from polymux.protocols.registry import create

FULL_SAMPLE_BYTES = 64 * 1024
SHORT_SAMPLE_BYTES = int(EARLY_BYTES)
GIVE_UP_AFTER_FRAMES = 256  # broken rules, by nine frames of ten: no later bytes make up for these
# For a first look, after which it is tried again if no other protocol is the right one:
BRIEF_STEP_BYTES = 64
BRIEF_GIVE_UP_AFTER_FRAMES = 64

SamplePiece = tuple[int, bytes, int]


@dataclass(frozen=True)
class SessionSample:
    """Pieces (side, bytes, instant) as they passed; a hole ends it.

    `started`: the connection's beginning was captured, so that byte 0 begins a frame.
    """

    pieces: tuple[SamplePiece, ...]
    from_start: bool = True

    def head(self, side: int) -> bytes:
        """The first bytes of one side."""
        return self._heads[side]

    @cached_property
    def _heads(self) -> tuple[bytes, bytes]:
        heads: tuple[list[bytes], list[bytes]] = ([], [])
        for side, data, _ in self.pieces:
            heads[side].append(data)
        return b"".join(heads[0]), b"".join(heads[1])

    @cached_property
    def size(self) -> int:
        return sum(len(data) for _, data, _ in self.pieces)

    def first(self, max_bytes: int) -> SessionSample:
        """The beginning of it."""
        kept: list[SamplePiece] = []
        for side, data, at in self.pieces:
            if max_bytes <= 0:
                break
            kept.append((side, data[:max_bytes], at))
            max_bytes -= len(data)
        return SessionSample(tuple(kept), self.from_start)

    def skipping(self, skip_bytes: tuple[int, int]) -> SessionSample:
        """The same behind the first `skip` bytes of each side."""
        if skip_bytes == (0, 0):
            return self
        left = list(skip_bytes)
        kept: list[SamplePiece] = []
        for side, data, at in self.pieces:
            cut = min(left[side], len(data))
            left[side] -= cut
            if cut < len(data):
                kept.append((side, data[cut:], at))
        return SessionSample(tuple(kept), self.from_start)

    def only(self, side: int) -> SessionSample:
        return SessionSample(
            tuple(piece for piece in self.pieces if piece[0] == side), self.from_start
        )

    def boundaries(self, side: int) -> Iterator[int]:
        """Where the pieces of one side begin."""
        offset = 0
        for sender, data, _ in self.pieces:
            if sender == side:
                yield offset
                offset += len(data)


def take_sample(session: TcpSession, max_bytes: int = FULL_SAMPLE_BYTES) -> SessionSample:
    """The first bytes of a session, up to the first hole."""
    pieces: list[SamplePiece] = []
    left = max_bytes
    for batch in session.unshared_batches(max_bytes):
        left = add_pieces(pieces, batch, left)
        if left <= 0:
            break
    return SessionSample(tuple(pieces), session.saw_syn)


def add_pieces(pieces: list[SamplePiece], batch: StreamBatch, remaining: int) -> int:
    """Those of a batch, `left` bytes at most; how many more are wanted, none behind a hole."""
    start = 0
    for n in range(batch.count):
        kind, size = batch.kind[n], batch.size[n]
        if kind == GAP:
            return 0
        if kind == PAYLOAD:
            data = batch.data[start : start + min(size, remaining)]
            pieces.append((int(batch.side[n]), data, int(batch.timestamp[n])))
            start += size
            remaining -= size
            if remaining <= 0:
                return 0
    return remaining


@dataclass(slots=True)
class Trial:
    """What became of a sample. `fitting` frames broke no rule, `explained` is the share of the
    bytes in them or in frames still passing. `given_up`: not all of it was looked at."""

    protocol: str
    frame_count: int = 0
    valid_frames: int = 0
    explained_share: float = 0.0
    violations_by_rule: Counter[str] = field(default_factory=Counter)
    decode_error: str = ""
    streams: list[StreamState] = field(default_factory=list)
    largest_payloads: tuple[int, int] = (0, 0)
    websocket_path: str = ""
    stopped_early: bool = False

    @property
    def fit(self) -> float:
        """How well it fits: its share of frames; where the next one was lost, of bytes too."""
        if not self.frame_count:
            return 0.0
        fitting = self.valid_frames / self.frame_count
        return fitting * self.explained_share if self.decode_error else fitting


def try_protocol(
    protocol: str, sample: SessionSample, excused_rules: tuple[str, ...] = (), brief: bool = False
) -> Trial:
    """Decode the sample as this protocol. Rules in `excused` are not held against it.

    Bytes of another protocol may be thousands of tiny broken frames: those are not all looked at,
    and where it is to be `brief`, only some dozens.
    """
    observer = Observer(create(protocol))
    if not sample.from_start:
        observer.mark_uncertain()
    feeding = TrialFeed(
        observer, excused_rules, BRIEF_GIVE_UP_AFTER_FRAMES if brief else GIVE_UP_AFTER_FRAMES
    )
    feeding.feed(sample.pieces, BRIEF_STEP_BYTES if brief else EARLY_STEP_BYTES)
    assert observer.rows is not None
    largest, bad = (0, 0), 0
    for batch in observer.rows.take():
        first, second = largest_payloads(batch)
        largest = (max(largest[0], first), max(largest[1], second))
        if feeding.violating_frames:
            bad += feeding.violating_bytes(batch)
    trial = Trial(
        protocol,
        violations_by_rule=Counter(feeding.violations_by_rule),
        stopped_early=feeding.stopped_early,
    )
    conversation = observer.connection
    for direction in (conversation.dialer, conversation.acceptor):
        bad += int(direction.undecoded_bytes)
        trial.decode_error = trial.decode_error or direction.stop_reason
    trial.frame_count = frame_count(observer)
    trial.valid_frames = max(0, trial.frame_count - len(feeding.violating_frames))
    trial.explained_share = max(0.0, 1 - bad / max(1, feeding.bytes_fed))
    trial.largest_payloads = largest
    streams = observer.protocol.streams
    trial.streams = [*observer.take_removed_streams(), *streams.all()]
    trial.websocket_path = observer.websocket.path if observer.websocket is not None else ""
    return trial
