# mypyc: compiled
"""The first bytes of a session, what precedes the frames in them, and trials: decoding them as a
given protocol, stopped early if that is wrong.

The first batch of a session is read once, for detection and for decoding (`PeekedSession`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from mypy_extensions import i64

from polymux.capture import StreamBatch, TcpSession
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, TcpEvents
from polymux.core.errors import CaptureError
from polymux.core.frames import VIOLATION_ROW, FrameRows
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.streams import StreamState
from polymux.protocols.registry import create

# The first EARLY_BYTES are fed in small steps, so that a wrong protocol is noticed early.
EARLY_BYTES: Final[i64] = 4096
EARLY_STEP_BYTES: Final[i64] = 256
FULL_SAMPLE_BYTES = 64 * 1024
SHORT_SAMPLE_BYTES = int(EARLY_BYTES)
GIVE_UP_AFTER_FRAMES = 256  # a trial stops after this many invalid frames, if 90 % are invalid
# For brief trials, which are repeated if no other protocol fits:
BRIEF_STEP_BYTES = 64
BRIEF_GIVE_UP_AFTER_FRAMES = 64

_MULTISTREAM = b"/multistream/1.0.0\n"
_MAX_NEGOTIATION_LINES = 16  # more lines are not a negotiation

# The ClientHello of TLS: positions, and the bytes that they can have.
_CLIENT_HELLO_START = ((0, (22,)), (1, (3,)), (2, range(5)), (5, (1,)))

SamplePiece = tuple[int, bytes, int]


def may_begin_client_hello(head: bytes) -> bool:
    """Whether a dialer's bytes so far may begin with the ClientHello of TLS."""
    for position, allowed in _CLIENT_HELLO_START:
        if position < len(head) and head[position] not in allowed:
            return False
    return bool(head)


class SessionSample:
    """The first bytes of a session, up to the first gap, as pieces (side, bytes, timestamp).

    `from_start`: the start of the connection was captured, so that byte 0 begins a frame. `size` is
    the total number of bytes. Samples are equal if both are.
    """

    def __init__(self, pieces: tuple[SamplePiece, ...], from_start: bool = True) -> None:
        self.pieces = pieces
        self.from_start = from_start
        heads: tuple[list[bytes], list[bytes]] = ([], [])
        size = 0
        for side, data, _ in pieces:
            heads[side].append(data)
            size += len(data)
        self.size: int = size
        self._dialer_head = b"".join(heads[0])
        self._acceptor_head = b"".join(heads[1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionSample):
            return NotImplemented
        return self.pieces == other.pieces and self.from_start == other.from_start

    def __hash__(self) -> int:
        return hash((self.pieces, self.from_start))

    def head(self, side: int) -> bytes:
        """The first bytes of one side."""
        return self._dialer_head if side == 0 else self._acceptor_head

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
    return int(_add_pieces(pieces, batch.events, batch.data, remaining))


def _add_pieces(pieces: list[SamplePiece], events: TcpEvents, data: bytes, remaining: i64) -> i64:
    start: i64 = 0
    for n in range(events.count):
        kind = events.kind[n]
        if kind == GAP:
            return 0
        if kind == PAYLOAD:
            size = events.size[n]
            stop = start + size if size < remaining else start + remaining
            pieces.append((int(events.side[n]), data[start:stop], int(events.timestamp[n])))
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

    def only_batch(self) -> StreamBatch | None:
        """The first batch if it has all bytes of the session, None otherwise."""
        if len(self._first) != 1:
            return None
        first = self._first[0]
        return first if sum(self._session.reassembled_bytes) == len(first.data) else None

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

    @property
    def is_undecided(self) -> bool:
        """Whether no frame has begun, and nothing says that none can: a longer sample may tell."""
        return not self.frame_count and not self.decode_error


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
    batches = observer.rows.take()
    invalid_bytes = 0
    if feed.violating_frames:
        for batch in batches:
            invalid_bytes += int(feed.violating_bytes(batch))
    trial = _trial_of(protocol, observer, batches, observer.take_removed_streams())
    trial.violations_by_rule = Counter(feed.violations_by_rule)
    trial.stopped_early = feed.stopped_early
    trial.valid_frames = max(0, trial.frame_count - len(feed.violating_frames))
    connection = observer.connection
    for direction in (connection.dialer, connection.acceptor):
        invalid_bytes += int(direction.undecoded_bytes)
        trial.decode_error = trial.decode_error or direction.stop_reason
    trial.explained_share = max(0.0, 1 - invalid_bytes / max(1, int(feed.bytes_fed)))
    return trial


def perfect_trial(protocol: str, observer: Observer, batches: Sequence[FrameRows]) -> Trial | None:
    """What `try_protocol` returns for a sample that an observer has decoded without any violation.

    None if there was a violation, or decoding stopped. The observer goes on as if this had not been
    called.

    Args:
        protocol: the protocol string of the observer's protocol.
        observer: has been fed the whole sample, from the start of the connection, and not finished.
        batches: the rows that it has written.
    """
    connection = observer.connection
    if connection.dialer.stop_reason or connection.acceptor.stop_reason:
        return None
    for violation in connection.violations:
        if violation.rule.severity is not Severity.NOTE:
            return None
    done = observer.finished_streams()
    trial = _trial_of(protocol, observer, batches, done)
    trial.valid_frames = trial.frame_count
    trial.explained_share = 1.0
    return trial


def _trial_of(
    protocol: str, observer: Observer, batches: Sequence[FrameRows], removed: list[StreamState]
) -> Trial:
    """A trial with all but what depends on violations. `removed` streams come before the others."""
    largest = (0, 0)
    for batch in batches:
        first, second = largest_payloads(batch)
        largest = (max(largest[0], first), max(largest[1], second))
    trial = Trial(protocol, int(frame_count(observer)))
    trial.largest_payloads = largest
    trial.streams = [*removed, *observer.protocol.streams.all()]
    trial.dialect_evidence = observer.protocol.dialect_evidence()
    trial.websocket_path = observer.websocket.path if observer.websocket is not None else ""
    return trial


class TrialFeed:
    """Feeds bytes to an observer until all are fed or the trial is stopped.

    `violating_frames` holds sender and index of the frames that violated a rule which is not
    excused, `violations_by_rule` how often each rule was violated. The trial stops after
    `give_up_after` violating frames if they are nine tenths of all frames.
    """

    def __init__(
        self, observer: Observer, excused_rules: tuple[str, ...], give_up_after: i64
    ) -> None:
        self.observer: Observer = observer
        self.excused_rules: tuple[str, ...] = excused_rules
        self.give_up_after: i64 = give_up_after
        self.bytes_fed: i64 = 0
        self.violating_frames: set[tuple[int, int]] = set()
        self.violations_by_rule: dict[str, int] = {}
        self.stopped_early: bool = False

    def feed(self, pieces: tuple[tuple[int, bytes, int], ...], step: i64) -> None:
        """Feed pieces (side, bytes, timestamp); the first bytes are fed `step` at a time."""
        early: i64 = 0
        for side, data, at in pieces:
            size: i64 = len(data)
            start: i64 = 0
            while early < EARLY_BYTES and size - start > step:
                self.feed_chunk(side, data[start : start + step], at)
                if self.stopped_early:
                    return
                start += step
                early += step
                if early >= EARLY_STEP_BYTES:
                    step = EARLY_STEP_BYTES
            self.feed_chunk(side, data if start == 0 else data[start:], at)
            if self.stopped_early:
                return

    def feed_chunk(self, side: i64, data: bytes, timestamp: i64) -> None:
        self.observer.feed(side, data, timestamp)
        self.bytes_fed += len(data)
        for violation in self.observer.take_violations():
            rule = violation.rule
            if rule.severity is not Severity.NOTE and rule.name not in self.excused_rules:
                self.violating_frames.add((violation.sender, violation.frame_index))
                self.violations_by_rule[rule.name] = self.violations_by_rule.get(rule.name, 0) + 1
        violating: i64 = len(self.violating_frames)
        if violating >= self.give_up_after and violating * 10 >= frame_count(self.observer) * 9:
            self.stopped_early = True

    def violating_bytes(self, batch: FrameRows) -> i64:
        """Total size of the violating frames among these rows."""
        found: i64 = 0
        for i in range(batch.used):
            if (
                batch.verdict[i] == VIOLATION_ROW
                and (int(batch.sender[i]), int(batch.frame_index[i])) in self.violating_frames
            ):
                found += batch.size[i]
        return found


def frame_count(observer: Observer) -> i64:
    """Frames of both sides, incomplete ones included."""
    causality = observer.protocol.causality
    return causality.frames_sent(0) + causality.frames_sent(1)


def largest_payloads(batch: FrameRows) -> tuple[int, int]:
    """Payload size of the largest frame of each side."""
    first: i64 = 0
    second: i64 = 0
    for i in range(batch.used):
        size = batch.payload_bytes[i]
        if batch.sender[i] == 0:
            if size > first:
                first = size
        elif size > second:
            second = size
    return first, second


def multistream_size(head: bytes) -> int:
    """Size of the multistream-select lines that one side begins with; 0 if there are none."""
    position = 0
    for _ in range(_MAX_NEGOTIATION_LINES):
        if position + 2 > len(head):
            break
        size, start = head[position], position + 1
        if size & 0x80:
            size, start = (size & 0x7F) | (head[position + 1] << 7), position + 2
        line = head[start : start + size]
        if len(line) != size or line[-1:] != b"\n" or (position == 0 and line != _MULTISTREAM):
            break
        if line not in (b"na\n", b"ls\n") and not line.startswith(b"/"):
            break
        position = start + size
    return position


def preamble_size(preamble: str, head: bytes) -> int:
    """Size of the preamble (hex, or `multistream`) if a direction begins with it, else 0."""
    if preamble == "multistream":
        return multistream_size(head)
    data = preamble_bytes(preamble)
    return len(data) if head.startswith(data) else 0


def preamble_bytes(preamble: str) -> bytes:
    """The bytes of a preamble in hex; b"" for `multistream`. ValueError if it is neither."""
    if preamble == "multistream":
        return b""
    try:
        return bytes.fromhex(preamble)
    except ValueError:
        raise ValueError(f"preamble is 'multistream' or bytes in hex, not {preamble!r}") from None
