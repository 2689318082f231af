# mypyc: compiled
"""TLS records: split the bytes of one direction, and open those of application data.

`RecordReader` works through runs of captured bytes. Complete records of application data are opened
into a `PlainBatch` without leaving this module; any other record is handed to the caller. So is a
record that does not open, or a header that cannot be one.

`OffsetMap` leads from the opened bytes back to the captured ones.
"""

from collections.abc import Callable
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.tcp.reassembly import PAYLOAD, TcpEvents

# Content types.
CHANGE_CIPHER_SPEC: Final[i64] = 20
ALERT: Final[i64] = 21
HANDSHAKE: Final[i64] = 22
APPLICATION_DATA: Final[i64] = 23
HEARTBEAT: Final[i64] = 24

HEADER_BYTES: Final[i64] = 5
MAX_RECORD_BYTES: Final[i64] = 18432  # 2^14 and what TLS 1.2 allows a cipher to add
MIN_ENCRYPTED_BYTES: Final[i64] = 9  # content type and the shortest tag
EXPLICIT_NONCE_BYTES: Final[i64] = 8

# What `RecordReader.open_records` returns.
NEED_MORE: Final[i64] = 0  # the rest of the run is an incomplete record
RECORD: Final[i64] = 1  # a record that is not encrypted, in `kind` and `content`
INNER: Final[i64] = 2  # a record that was opened and is not application data, likewise
BAD_HEADER: Final[i64] = 3  # no record begins here
BAD_TAG: Final[i64] = 4  # the record does not open

# open(nonce, ciphertext with tag, associated data, buffer): fills the buffer with the content.
# Raises `RecordReader.tag_error` if the tag does not fit.
OpenInto = Callable[[bytes, bytes | memoryview, bytes, memoryview], int]
SMALL_RECORD_BYTES: Final[i64] = 4096  # up to which a copy is faster than a view


class OffsetMap:
    """Where the opened bytes of one direction stood on the wire.

    An entry (opened offset, wire offset) holds for the bytes up to the next entry.
    """

    def __init__(self) -> None:
        self.plain: vec[i64] = vec[i64]([0] * 64)
        self.wire: vec[i64] = vec[i64]([0] * 64)
        self.count: i64 = 0

    def add(self, plain: i64, wire: i64) -> None:
        """The byte `plain` of the opened bytes, and those after it, are at `wire` and after."""
        if self.count > 0 and self.plain[self.count - 1] == plain:
            self.count -= 1
        if self.count == i64(len(self.plain)):
            self.resize(self.count * 2)
        self.plain[self.count] = plain
        self.wire[self.count] = wire
        self.count += 1

    def resize(self, capacity: i64) -> None:
        """Make room for `capacity` entries."""
        plain = vec[i64]([0] * capacity)
        wire = vec[i64]([0] * capacity)
        for n in range(self.count):
            plain[n] = self.plain[n]
            wire[n] = self.wire[n]
        self.plain = plain
        self.wire = wire

    def to_wire(self, offset: i64) -> i64:
        """The offset on the wire of an opened byte."""
        if self.count == 0:
            return offset
        low: i64 = 0
        high = self.count
        while low + 1 < high:
            middle = (low + high) >> 1
            if self.plain[middle] <= offset:
                low = middle
            else:
                high = middle
        return self.wire[low] + offset - self.plain[low]

    def forget_before(self, start: i64, current: i64) -> None:
        """Drop entries that are not needed for offsets from `current` on, nor for `start` itself.

        `start` is that of the frame whose bytes are arriving, at most `current`. A long frame in
        many small records so takes no memory.
        """
        kept: i64 = 0
        for n in range(self.count):
            after = self.plain[n + 1] if n + 1 < self.count else current + 1
            plain = self.plain[n]
            if after > current or plain <= start < after:
                self.plain[kept] = plain
                self.wire[kept] = self.wire[n]
                kept += 1
        self.count = kept


class PlainBatch:
    """The opened bytes of a batch, and their events; a batch for `StreamBatch`.

    `events` has room for `rows` rows; content that arrives with the same event is one row.
    """

    def __init__(self, rows: i64, size: i64) -> None:
        self.events: TcpEvents = TcpEvents(rows)
        self.buffer: bytearray = bytearray(size)
        self.view: memoryview = memoryview(self.buffer)
        self.used: i64 = 0

    def add_row(self, side: i64, kind: i64, timestamp: i64, size: i64) -> None:
        """Add an event, or join it to the last one."""
        events = self.events
        last = events.count - 1
        if (
            kind == PAYLOAD
            and last >= 0
            and events.kind[last] == PAYLOAD
            and events.side[last] == side
            and events.timestamp[last] == timestamp
        ):
            events.size[last] += size
            events.payload_bytes += size
        else:
            if events.count == events.capacity:
                self.grow()
            self.events.add(side, kind, timestamp, size, 0, 0)

    def grow(self) -> None:
        """Double the room for events."""
        before = self.events
        after = TcpEvents(before.capacity * 2)
        for n in range(before.count):
            after.add(before.side[n], before.kind[n], before.timestamp[n], before.size[n], 0, 0)
        self.events = after

    def data(self) -> bytes:
        """All content."""
        return bytes(self.view[: self.used])


class RecordReader:
    """Reads the records of one direction.

    While `open_into` is None records are handed over as they are. Counters: `records` read,
    `overhead_bytes` of records that are not content.
    """

    def __init__(self, side: i64) -> None:
        self.side: i64 = side
        self.offsets: OffsetMap = OffsetMap()
        self.wire_offset: i64 = 0  # of the next record
        self.plain_offset: i64 = 0
        self.records: i64 = 0
        self.opened: i64 = 0  # records that were encrypted
        self.overhead_bytes: i64 = 0
        # The keys.
        self.open_into: OpenInto | None = None
        self.tag_error: type[Exception] = ValueError
        self.is_tls13: bool = False
        self.explicit_nonce: bool = False
        self.tag_bytes: i64 = 16
        self.iv = 0  # as a number of 96 bits; of an explicit nonce, the salt in its upper 32
        self.sequence: i64 = 0
        # The record that was handed over.
        self.kind: i64 = 0
        self.content: bytes = b""
        self.record_bytes: i64 = 0  # its size with the header
        self.timestamp: i64 = 0  # of its last byte
        # The run.
        self.pending: bytes = b""  # the beginning of an incomplete record
        self.data: bytes = b""
        self.view: memoryview = memoryview(b"")
        self.pos: i64 = 0
        self.end: i64 = 0
        self.events: TcpEvents | None = None
        self.event: i64 = 0
        self.event_end: i64 = 0  # where the event `event` ends in `data`

    def set_keys(
        self,
        open_into: OpenInto,
        iv: int,
        is_tls13: bool,
        explicit_nonce: bool,
        tag_bytes: i64,
        sequence: i64,
        tag_error: type[Exception],
    ) -> None:
        """Open the following records with these keys.

        `sequence` is the number of the next one; `open_into` raises `tag_error` if a tag is wrong.
        """
        self.open_into = open_into
        self.tag_error = tag_error
        self.iv = iv
        self.is_tls13 = is_tls13
        self.explicit_nonce = explicit_nonce
        self.tag_bytes = tag_bytes
        self.sequence = sequence

    def start_run(
        self, data: bytes, view: memoryview, start: i64, end: i64, events: TcpEvents, event: i64
    ) -> None:
        """Read `data[start:end]` next: the payload of events from number `event` on."""
        self.data = data
        self.view = view
        self.pos = start
        self.end = end
        self.events = events
        self.event = event
        self.event_end = start + events.size[event]

    def start_bytes(self, data: bytes, timestamp: i64) -> None:
        """Read `data`, which became available at one time."""
        self.data = data
        self.view = memoryview(data)
        self.pos = 0
        self.end = len(data)
        self.events = None
        self.timestamp = timestamp

    def take_rest(self) -> bytes:
        """Remove and return what was not read, the beginning of an incomplete record included."""
        rest = self.pending + self.data[self.pos : self.end]
        self.pending = b""
        self.pos = self.end
        return rest

    def drop_run(self) -> None:
        """Let go of the run's memory."""
        self.data = b""
        self.view = memoryview(b"")
        self.pos = 0
        self.end = 0
        self.events = None

    def time_of(self, end: i64) -> i64:
        """The timestamp of the byte before position `end` of the run."""
        events = self.events
        if events is None:
            return self.timestamp
        while self.event_end < end:
            self.event += 1
            self.event_end += events.size[self.event]
        return events.timestamp[self.event]

    def open_records(self, out: PlainBatch) -> i64:
        """Open application data until another record, an error, or the end of the run.

        One loop, because it runs for every record. Its phases: find the record, nonce and
        associated data, open, count.
        """
        while True:
            # Find the record: in the run, or begun in `pending`.
            data, view, start = self.data, self.view, self.pos
            from_pending: i64 = len(self.pending)
            if from_pending > 0:
                if not self.complete_pending():
                    return NEED_MORE
                data = self.pending
                view = memoryview(data)
                start = 0
                if i64(len(data)) < HEADER_BYTES:
                    return NEED_MORE
            elif self.end - start < HEADER_BYTES:
                self.pending = data[start : self.end]
                self.pos = self.end
                return NEED_MORE
            kind = i64(data[start])
            length = (i64(data[start + 3]) << 8) | i64(data[start + 4])
            if not is_header(data, start):
                self.unread(from_pending)
                return BAD_HEADER
            size = HEADER_BYTES + length
            if from_pending > 0:
                if i64(len(data)) < size:
                    return NEED_MORE
            elif self.end - start < size:
                self.pending = data[start : self.end]
                self.pos = self.end
                return NEED_MORE
            self.kind = kind
            self.record_bytes = size
            opener = self.open_into
            if opener is None or (self.is_tls13 and kind != APPLICATION_DATA):
                self.content = data[start + HEADER_BYTES : start + size]
                self.finish_record(from_pending, size)
                self.overhead_bytes += size
                return RECORD
            # Nonce and associated data.
            body = start + HEADER_BYTES
            inner = length - self.tag_bytes
            if self.explicit_nonce:
                body += EXPLICIT_NONCE_BYTES
                inner -= EXPLICIT_NONCE_BYTES
            if inner < 0 or (self.is_tls13 and inner == 0):
                self.finish_record(from_pending, size)
                return BAD_TAG
            target = out.view[out.used : out.used + inner]
            sealed = part_of(data, view, body, start + size)
            # Open.
            try:
                if self.is_tls13:
                    nonce = (self.iv ^ int(self.sequence)).to_bytes(12, "big")
                    opener(nonce, sealed, data[start:body], target)
                else:
                    self.open_tls12(opener, data, sealed, start, body, inner, target)
            except Exception as problem:
                if not isinstance(problem, self.tag_error):
                    raise
                self.finish_record(from_pending, size)
                return BAD_TAG
            # Count.
            self.sequence += 1
            self.opened += 1
            wire = self.wire_offset + body - start
            self.finish_record(from_pending, size)
            if self.is_tls13:
                inner -= 1
                if out.buffer[out.used + inner] != 23:
                    self.take_inner(out, inner + 1)
                    if self.kind != APPLICATION_DATA:
                        self.overhead_bytes += size
                        return INNER
                    inner = len(self.content)  # application data with padding
            elif kind != APPLICATION_DATA:
                self.content = bytes(out.view[out.used : out.used + inner])
                self.overhead_bytes += size
                return INNER
            self.overhead_bytes += size - inner
            if inner > 0:
                self.offsets.add(self.plain_offset, wire)
                self.plain_offset += inner
                out.used += inner
                out.add_row(self.side, PAYLOAD, self.timestamp, inner)

    def open_tls12(
        self,
        opener: OpenInto,
        data: bytes,
        sealed: bytes | memoryview,
        start: i64,
        body: i64,
        inner: i64,
        target: memoryview,
    ) -> None:
        """Open a record of TLS 1.2 at `data[start]`; raises if the tag does not fit."""
        sequence = int(self.sequence)
        if self.explicit_nonce:
            salt = self.iv.to_bytes(12, "big")[:4]
            nonce = salt + data[start + HEADER_BYTES : body]
        else:
            nonce = (self.iv ^ sequence).to_bytes(12, "big")
        added = (
            sequence.to_bytes(8, "big") + data[start : start + 3] + int(inner).to_bytes(2, "big")
        )
        opener(nonce, sealed, added, target)

    def take_inner(self, out: PlainBatch, size: i64) -> None:
        """Strip padding and content type of TLS 1.3 from `size` opened bytes.

        They stay in the buffer of `out`; `kind` and `content` are set.
        """
        opened = bytes(out.view[out.used : out.used + size]).rstrip(b"\0")
        if len(opened) == 0:
            self.kind = ALERT  # no content type at all, which a receiver rejects
            self.content = b""
            return
        self.kind = i64(opened[len(opened) - 1])
        self.content = opened[: len(opened) - 1]

    def complete_pending(self) -> bool:
        """Add bytes of the run to `pending` until it has the whole record; False if too few."""
        while True:
            have: i64 = len(self.pending)
            need = HEADER_BYTES
            if have >= HEADER_BYTES:
                if not is_header(self.pending, 0):
                    return True
                need += (i64(self.pending[3]) << 8) | i64(self.pending[4])
            if have >= need:
                return True
            missing = need - have
            left = self.end - self.pos
            part = missing if missing < left else left
            self.pending = self.pending + self.data[self.pos : self.pos + part]
            self.pos += part
            if part < missing:
                return False

    def unread(self, from_pending: i64) -> None:
        """Put the bytes of `pending` that belong to the run back."""
        if from_pending > 0:
            self.pos -= i64(len(self.pending)) - from_pending
            self.pending = self.pending[:from_pending]

    def finish_record(self, from_pending: i64, size: i64) -> None:
        """The record is read: go on after it."""
        if from_pending > 0:
            self.pending = b""
        else:
            self.pos += size
        self.timestamp = self.time_of(self.pos)
        self.records += 1
        self.wire_offset += size

    def try_open(self, record: bytes, sequence: i64) -> bool:
        """Whether a record opens with the keys and this sequence number. Changes nothing."""
        opener = self.open_into
        body = HEADER_BYTES
        inner = i64(len(record)) - HEADER_BYTES - self.tag_bytes
        if self.explicit_nonce:
            body += EXPLICIT_NONCE_BYTES
            inner -= EXPLICIT_NONCE_BYTES
        if opener is None or inner < 0:
            return False
        target = memoryview(bytearray(inner))
        before = self.sequence
        self.sequence = sequence
        try:
            if self.is_tls13:
                nonce = (self.iv ^ int(sequence)).to_bytes(12, "big")
                opener(nonce, record[body:], record[:body], target)
            else:
                self.open_tls12(opener, record, record[body:], 0, body, inner, target)
        except Exception as problem:
            if not isinstance(problem, self.tag_error):
                raise
            return False
        finally:
            self.sequence = before
        return True


def part_of(data: bytes, view: memoryview, start: i64, end: i64) -> bytes | memoryview:
    """`data[start:end]`, as bytes or as a part of `view`, whichever is faster to get."""
    if end - start <= SMALL_RECORD_BYTES:
        return data[start:end]
    return view[start:end]


def is_header(data: bytes, pos: i64) -> bool:
    """Whether the header of a record can begin at `pos`, where there are 5 bytes or more."""
    kind = i64(data[pos])
    length = (i64(data[pos + 3]) << 8) | i64(data[pos + 4])
    return (
        CHANGE_CIPHER_SPEC <= kind <= HEARTBEAT
        and data[pos + 1] == 3
        and data[pos + 2] <= 4
        and length <= MAX_RECORD_BYTES
    )


def find_application_header(data: bytes, start: i64, end: i64) -> i64:
    """The first position from `start` at which a header of encrypted data may begin; -1: none.

    Its last bytes may lie beyond `end`: then the position of the part that is there.
    """
    pos = start
    while pos < end:
        at = i64(data.find(b"\x17", int(pos), int(end)))
        if at < 0:
            return -1
        left = end - at
        if (left < 2 or data[at + 1] == 3) and (left < 3 or data[at + 2] == 3):
            if left < HEADER_BYTES:
                return at
            length = (i64(data[at + 3]) << 8) | i64(data[at + 4])
            if MIN_ENCRYPTED_BYTES <= length <= MAX_RECORD_BYTES:
                return at
        pos = at + 1
    return -1


def run_end(events: TcpEvents, first: i64) -> i64:
    """The number after the last event of the payload run that begins with event `first`."""
    side = events.side[first]
    n = first
    while n < events.count and events.kind[n] == PAYLOAD and events.side[n] == side:
        n += 1
    return n


def run_bytes(events: TcpEvents, first: i64, stop: i64) -> i64:
    """Payload bytes of these events."""
    total: i64 = 0
    for n in range(first, stop):
        total += events.size[n]
    return total
