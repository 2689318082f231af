"""The first bytes of a session, and trials: decoding them as a given protocol.

The first batch of a session is read once, for detection and for decoding (`PeekedSession`).
"""

from __future__ import annotations

import itertools
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
from polymux.capture.tcp.reassembly import GAP, PAYLOAD
from polymux.core.errors import CaptureError
from polymux.core.observer import Observer
from polymux.core.streams import StreamState
from polymux.protocols.registry import create

FULL_SAMPLE_BYTES = 64 * 1024
SHORT_SAMPLE_BYTES = int(EARLY_BYTES)
GIVE_UP_AFTER_FRAMES = 256  # a trial stops after this many invalid frames, if 90 % are invalid
# For brief trials, which are repeated if no other protocol fits:
BRIEF_STEP_BYTES = 64
BRIEF_GIVE_UP_AFTER_FRAMES = 64

# The ClientHello of TLS: positions, and the bytes that they can have.
_CLIENT_HELLO_START = ((0, (22,)), (1, (3,)), (2, range(5)), (5, (1,)))

SamplePiece = tuple[int, bytes, int]


def may_begin_client_hello(head: bytes) -> bool:
    """Whether a dialer's bytes so far may begin with the ClientHello of TLS."""
    for position, allowed in _CLIENT_HELLO_START:
        if position < len(head) and head[position] not in allowed:
            return False
    return bool(head)


@dataclass(frozen=True)
class SessionSample:
    """The first bytes of a session, up to the first gap, as pieces (side, bytes, timestamp).

    `from_start`: the start of the connection was captured, so that byte 0 begins a frame.
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
        """Total number of bytes."""
        return sum(len(data) for _, data, _ in self.pieces)

    def first(self, max_bytes: int) -> SessionSample:
        """The first `max_bytes` bytes of the sample."""
        kept: list[SamplePiece] = []
        for side, data, at in self.pieces:
            if max_bytes <= 0:
                break
            kept.append((side, data[:max_bytes], at))
            max_bytes -= len(data)
        return SessionSample(tuple(kept), self.from_start)

    def at_time(self, timestamp: int) -> SessionSample:
        """The same bytes, all of them at one time."""
        pieces = tuple((side, data, timestamp) for side, data, _ in self.pieces)
        return SessionSample(pieces, self.from_start)

    def skipping(self, skip_bytes: tuple[int, int]) -> SessionSample:
        """The sample without the first `skip_bytes` bytes of each side."""
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


def take_sample(session: TcpSession, max_bytes: int = FULL_SAMPLE_BYTES) -> SessionSample:
    """Read the first bytes of a session, up to the first gap."""
    pieces: list[SamplePiece] = []
    left = max_bytes
    for batch in session.unshared_batches(max_bytes):
        left = add_pieces(pieces, batch, left)
        if left <= 0:
            break
    return SessionSample(tuple(pieces), session.saw_syn)


def add_pieces(pieces: list[SamplePiece], batch: StreamBatch, remaining: int) -> int:
    """Append at most `remaining` bytes of a batch. Return how many are left; 0 after a gap."""
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


class PeekedSession:
    """The batches of a scanned session, about `batch_bytes` each; the first is already read."""

    def __init__(self, session: TcpSession, batch_bytes: int) -> None:
        self._session = session
        self._rest = session.batches(batch_bytes)
        self._first: list[StreamBatch] = []
        try:
            self._first += itertools.islice(self._rest, 1)
        except CaptureError:
            self._rest = session.batches(batch_bytes)  # raises again when the batches are read

    def sample(self) -> SessionSample:
        """The first bytes of the session; CaptureError if they cannot be read."""
        pieces: list[SamplePiece] = []
        left = FULL_SAMPLE_BYTES
        for batch in self._first:
            left = add_pieces(pieces, batch, left)
        if left > 0 and sum(self._session.reassembled_bytes) > sum(
            len(batch.data) for batch in self._first
        ):
            return take_sample(
                self._session
            )  # read again: a batch of many small packets is too short
        return SessionSample(tuple(pieces), self._session.saw_syn)

    def batches(self) -> Iterator[StreamBatch]:
        """All batches, once; none is kept."""
        while self._first:
            yield self._first.pop()
        yield from self._rest


@dataclass(slots=True)
class Trial:
    """The result of decoding a sample as one protocol.

    `valid_frames` violate no rule; `explained_share` is the share of the bytes in valid or
    incomplete frames. `stopped_early`: not the whole sample was decoded.
    """

    protocol: str
    frame_count: int = 0
    valid_frames: int = 0
    explained_share: float = 0.0
    violations_by_rule: Counter[str] = field(default_factory=Counter)
    decode_error: str = ""
    streams: list[StreamState] = field(default_factory=list)
    largest_payloads: tuple[int, int] = (0, 0)
    websocket_path: str = ""
    dialect_evidence: str = ""  # what shows the protocol's dialect
    stopped_early: bool = False

    @property
    def fit(self) -> float:
        """The share of valid frames; where decoding stopped, times the share of explained bytes."""
        if not self.frame_count:
            return 0.0
        valid = self.valid_frames / self.frame_count
        return valid * self.explained_share if self.decode_error else valid


def try_protocol(
    protocol: str, sample: SessionSample, excused_rules: tuple[str, ...] = (), brief: bool = False
) -> Trial:
    """Decode the sample as this protocol.

    Bytes of another protocol may be thousands of tiny invalid frames: the trial stops after some
    hundred of them or, if `brief`, after some dozen. Violations of `excused_rules` do not count.
    """
    observer = Observer(create(protocol))
    if not sample.from_start:
        observer.begin_in_middle()
    feed = TrialFeed(
        observer, excused_rules, BRIEF_GIVE_UP_AFTER_FRAMES if brief else GIVE_UP_AFTER_FRAMES
    )
    step = BRIEF_STEP_BYTES if brief else EARLY_STEP_BYTES
    if not sample.from_start:
        step = FULL_SAMPLE_BYTES  # frames are searched for where packets begin
    feed.feed(sample.pieces, step)
    observer.decide_boundaries()
    assert observer.rows is not None
    largest, invalid_bytes = (0, 0), 0
    for batch in observer.rows.take():
        first, second = largest_payloads(batch)
        largest = (max(largest[0], first), max(largest[1], second))
        if feed.violating_frames:
            invalid_bytes += feed.violating_bytes(batch)
    trial = Trial(
        protocol,
        violations_by_rule=Counter(feed.violations_by_rule),
        stopped_early=feed.stopped_early,
    )
    connection = observer.connection
    for direction in (connection.dialer, connection.acceptor):
        invalid_bytes += int(direction.undecoded_bytes)
        trial.decode_error = trial.decode_error or direction.stop_reason
    trial.frame_count = frame_count(observer)
    trial.valid_frames = max(0, trial.frame_count - len(feed.violating_frames))
    trial.explained_share = max(0.0, 1 - invalid_bytes / max(1, feed.bytes_fed))
    trial.largest_payloads = largest
    streams = observer.protocol.streams
    trial.streams = [*observer.take_removed_streams(), *streams.all()]
    trial.dialect_evidence = observer.protocol.dialect_evidence()
    trial.websocket_path = observer.websocket.path if observer.websocket is not None else ""
    return trial
