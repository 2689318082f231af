"""The TLS layer of one session: captured bytes in, the opened bytes of both directions out.

`TlsLayer.open` takes a batch of TCP events and returns one of the same form whose payload is the
application data inside. The decoder of the protocol, the WebSocket layer included, works on that as
on a capture without TLS. Each opened byte keeps its place on the wire (`offsets`), its time is that
of its record's last byte, and all other bytes are counted: in each direction, wire bytes = opened +
gaps + `overhead_bytes` + `undecoded_bytes` + `missing_bytes`.

The keys follow the handshake. TLS 1.3: both directions change to the handshake keys with the
ServerHello, and each to its application keys with its own Finished; a KeyUpdate derives the next.
TLS 1.2: each direction changes to its keys with its ChangeCipherSpec.

Loss: after missing bytes, the next record is searched by its header, and its sequence number by
trial: only the right one opens. The number of lost records so becomes known, and with it the number
of lost content bytes, because every record of a suite has the same overhead. That is the size of
the gap that the decoder gets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polymux.analysis.tls.ciphers import make_cipher, tag_error
from polymux.analysis.tls.handshake import (
    CLIENT_HELLO,
    ENCRYPTED_EXTENSIONS,
    END_OF_EARLY_DATA,
    FINISHED,
    KEY_UPDATE,
    SERVER_HELLO,
    ClientHello,
    MalformedHandshake,
    MessageReader,
    ServerHello,
    parse_client_hello,
    parse_encrypted_extensions,
    parse_server_hello,
)
from polymux.analysis.tls.key_log import KeyLog, Secrets
from polymux.analysis.tls.key_schedule import TrafficKeys, key_block, traffic_keys, updated_secret
from polymux.analysis.tls.records import (
    BAD_TAG,
    CHANGE_CIPHER_SPEC,
    HANDSHAKE,
    HEADER_BYTES,
    INNER,
    MAX_RECORD_BYTES,
    NEED_MORE,
    RECORD,
    OffsetMap,
    PlainBatch,
    RecordReader,
    find_application_header,
    run_bytes,
    run_end,
)
from polymux.analysis.tls.secret_table import (
    CLIENT_EARLY,
    CLIENT_HANDSHAKE,
    CLIENT_TRAFFIC,
    MASTER_SECRET,
    SERVER_HANDSHAKE,
    SERVER_TRAFFIC,
)
from polymux.analysis.tls.suites import SUITES, TLS12, TLS13, Suite, suite_name, version_text
from polymux.capture import StreamBatch
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, UNDECODABLE
from polymux.core.errors import MissingExtra

CLIENT, SERVER = 0, 1  # the dialer is the client
NAMES = ("client", "server")
MAX_HELD_BYTES = 1 << 20  # of early data, until the server has answered
MAX_TRIALS = 100_000  # attempts to open a record after a hole, for a session
MAX_TICKETS = 4  # session tickets that a server sends before its first data
MAX_TICKET_BYTES = 1500
TLS12_FINISHED_BYTES = 16
EARLY_DATA_REASON = "early data (0-RTT) whose secret is not in the key log"

# Epochs of a direction.
PLAIN, EARLY, HANDSHAKING, APPLICATION = range(4)


@dataclass(slots=True)
class TlsFacts:
    """What is known of a session's TLS; "" and None for what is not.

    `records` counts those of both sides, `unopened` those that were lost or do not open;
    `handshake_ns` is the time from the ClientHello to the last Finished.
    """

    version: str = ""
    suite: str = ""
    server_name: str = ""
    alpn: str = ""
    records: int | None = None
    unopened: int | None = None
    handshake_ns: int | None = None

    @property
    def text(self) -> str | None:
        """Version and suite, as in the column `tls`."""
        return f"{self.version} {self.suite}" if self.version else None


@dataclass(slots=True)
class Hole:
    """Bytes of one direction after which its next record has not been found yet.

    `missing_bytes` of them were not captured; `unread` are the last captured ones. `epoch` is that
    of the direction before the hole.
    """

    missing_bytes: int
    skipped_bytes: int  # captured, and searched already
    epoch: int
    announced: int = 0  # size of the gap that the decoder got at once
    unread: bytes = b""
    position: int = 0  # of `unread`, from which the record is searched

    @property
    def size(self) -> int:
        """Bytes lost if the next record begins with `unread`."""
        return self.missing_bytes + self.skipped_bytes


@dataclass(slots=True)
class _Direction:
    reader: RecordReader
    messages: MessageReader = field(default_factory=MessageReader)
    epoch: int = PLAIN
    secret: bytes = b""  # of the application keys, for KeyUpdate
    held: bytes = b""  # early data that waits for the server's answer
    hole: Hole | None = None
    stopped: bool = False  # nothing more is opened
    finished_at: int = -1
    unopened: int = 0
    undecoded_bytes: int = 0
    missing_bytes: int = 0


class TlsLayer:
    """Opens one session. Feed it every batch of the session in order, then call `finish`.

    `failure` says why nothing can be opened, "" if something was or may be; `notes` what else was
    found. Of the key log only the session's own secrets are kept.
    """

    def __init__(self, keys: KeyLog) -> None:
        self.facts = TlsFacts()
        self.failure = ""
        self.notes: list[str] = []
        self.ends_inside_record = False  # a direction without a hole did; known after `finish`
        self.client_hello: ClientHello | None = None
        self._keys: KeyLog | None = keys
        self._secrets: Secrets = {}
        self._suite: Suite | None = None
        self._directions = tuple(_Direction(RecordReader(side)) for side in (CLIENT, SERVER))
        self._server_hello_seen = False
        self._early_accepted = False
        self._skipping_early = False
        self._trials = 0
        self._started_at = -1

    @property
    def offsets(self) -> tuple[OffsetMap, OffsetMap]:
        """From opened to wire offsets, of each direction."""
        client, server = self._directions
        return client.reader.offsets, server.reader.offsets

    @property
    def overhead_bytes(self) -> tuple[int, int]:
        """Bytes of each direction that are TLS's own."""
        client, server = self._directions
        return int(client.reader.overhead_bytes), int(server.reader.overhead_bytes)

    @property
    def undecoded_bytes(self) -> tuple[int, int]:
        """Captured bytes of each direction that could not be opened and are in no gap."""
        client, server = self._directions
        return client.undecoded_bytes, server.undecoded_bytes

    @property
    def missing_bytes(self) -> tuple[int, int]:
        """Bytes of each direction that were not captured and are in no gap."""
        client, server = self._directions
        return client.missing_bytes, server.missing_bytes

    # Batches

    def open(self, batch: StreamBatch) -> StreamBatch:
        """Open what a batch completes; the result may be empty."""
        events, data = batch.events, batch.data
        waiting = sum(
            len(d.held) + len(d.reader.pending) + (len(d.hole.unread) if d.hole else 0)
            for d in self._directions
        )
        out = PlainBatch(4 * batch.count + 64, len(data) + waiting + MAX_RECORD_BYTES)
        view = memoryview(data)
        number = start = 0
        while number < batch.count:
            side, kind, timestamp = batch.side[number], batch.kind[number], batch.timestamp[number]
            if kind == PAYLOAD:
                last = int(run_end(events, number))
                stop = start + int(run_bytes(events, number, last))
                d = self._directions[side]
                if self.failure or d.stopped:
                    d.undecoded_bytes += stop - start
                elif d.hole is None and not d.held:
                    d.reader.start_run(data, view, start, stop, events, number)
                    self._process(d, out)
                else:
                    self._feed_singly(d, batch, number, last, start, out)
                start, number = stop, last
                continue
            if kind == GAP:
                self._gap(self._directions[side], int(batch.size[number]), timestamp, out)
            else:
                out.add_row(side, kind, timestamp, 0)
            number += 1
        for d in self._directions:
            d.reader.drop_run()
        if self.failure:
            self._mark_failed(out)
        return StreamBatch(out.events, out.data())

    def _mark_failed(self, out: PlainBatch) -> None:
        """Tell the decoder, if it has got anything, that nothing more is opened."""
        if any(d.reader.plain_offset for d in self._directions):
            for d in self._directions:
                if not d.stopped:
                    self._stop(d, out, self.failure)

    def finish(self, timestamp: int) -> StreamBatch:
        """No bytes follow: search the rest of a hole, and count what is left."""
        waiting = sum(len(d.hole.unread) if d.hole else 0 for d in self._directions)
        out = PlainBatch(64, waiting + MAX_RECORD_BYTES)
        for side, d in enumerate(self._directions):
            if d.hole is not None:
                d.reader.timestamp = timestamp
                self._process(d, out, final=True)
            left = len(d.held) + len(d.reader.pending)
            d.held = d.reader.pending = b""
            if d.hole is not None:
                self._give_up_hole(d, d.hole)
                d.reader.records += 1
                d.unopened += 1
                out.add_row(side, UNDECODABLE, timestamp, 0)
                self.notes.append(
                    f"no TLS record of the {NAMES[side]} was found after a hole in the capture"
                )
            elif left and not d.stopped and not self.failure:
                d.unopened += 1
                self.ends_inside_record = True
                self.notes.append(f"the {NAMES[side]} ends inside a TLS record")
            d.undecoded_bytes += left
        self._store_facts()
        return StreamBatch(out.events, out.data())

    def _store_facts(self) -> None:
        facts = self.facts
        if not self.failure:
            facts.unopened = sum(d.unopened for d in self._directions)
            facts.records = sum(int(d.reader.records) for d in self._directions)
        finished = [d.finished_at for d in self._directions]
        if self._started_at >= 0 and min(finished) >= 0:
            facts.handshake_ns = max(finished) - self._started_at

    def _feed_singly(
        self, d: _Direction, batch: StreamBatch, first: int, last: int, start: int, out: PlainBatch
    ) -> None:
        """Feed the events of a run one by one, while bytes are held or a record is searched."""
        for number in range(first, last):
            stop = start + int(batch.size[number])
            data, timestamp = batch.data[start:stop], int(batch.timestamp[number])
            start = stop
            if self.failure or d.stopped:
                d.undecoded_bytes += len(data)
            elif d.held:
                self._hold(d, data)
            elif d.hole is not None:
                d.hole.unread += data
                d.reader.timestamp = timestamp
                self._process(d, out)
            else:
                d.reader.start_bytes(data, timestamp)
                self._process(d, out)

    # Records

    def _process(self, d: _Direction, out: PlainBatch, final: bool = False) -> None:
        """Read the current run of a direction to its end; `final`: no more bytes follow."""
        reader = d.reader
        while not self.failure and not d.stopped:
            if d.hole is not None:
                if not self._search(d, d.hole, out, final):
                    return
                continue
            status = reader.open_records(out)
            if status == NEED_MORE:
                return
            if status == RECORD:
                self._on_record(d, out)
                if d.held:
                    return
            elif status == INNER:
                self._on_inner(d, out)
            elif status == BAD_TAG and self._skipping_early and d.epoch == HANDSHAKING:
                d.unopened += 1
                d.undecoded_bytes += int(reader.record_bytes)
                if self._early_accepted:
                    self._stop(d, out, EARLY_DATA_REASON)
            else:
                self._on_unreadable(d, status == BAD_TAG, out)
        d.undecoded_bytes += len(reader.take_rest())

    def _on_record(self, d: _Direction, out: PlainBatch) -> None:
        """A record that is not encrypted, or whose keys are not known yet."""
        reader, kind = d.reader, d.reader.kind
        if kind == HANDSHAKE and d.epoch == PLAIN:
            self._on_messages(d, out)
        elif kind == CHANGE_CIPHER_SPEC:
            if self._suite is not None and self._suite.version == TLS12:
                self._start_tls12(d)
        elif kind == 23 and d.epoch == PLAIN:
            hello = self.client_hello
            if d.reader.side == CLIENT and hello is not None and hello.early_data:
                record = b"\x17\x03\x03" + len(reader.content).to_bytes(2, "big") + reader.content
                size = int(reader.record_bytes)
                reader.records -= 1
                reader.wire_offset -= size
                reader.overhead_bytes -= size
                self._hold(d, record + reader.take_rest())
            elif not self._server_hello_seen:
                self._fail("the ServerHello was not captured")
            else:
                self._fail("encrypted records come before the handshake is complete")

    def _on_inner(self, d: _Direction, out: PlainBatch) -> None:
        """A record that was opened and is not application data."""
        if d.reader.kind == HANDSHAKE:
            self._on_messages(d, out)
        elif d.reader.kind == CHANGE_CIPHER_SPEC:
            self._stop(d, out, "the session renegotiates its keys, which is not supported")

    def _on_unreadable(self, d: _Direction, is_record: bool, out: PlainBatch) -> None:
        """No record begins here, or the record does not open."""
        if not any(each.reader.opened for each in self._directions):
            if d.reader.open_into is None:
                self._fail(f"what the {NAMES[d.reader.side]} sends is not TLS")
            else:
                self._fail("the secret of the key log does not open this session")
            if is_record:
                d.undecoded_bytes += int(d.reader.record_bytes)
            return
        d.hole = Hole(0, 0, d.epoch)
        if is_record:  # counted with the hole
            d.hole.skipped_bytes = int(d.reader.record_bytes)
            d.reader.records -= 1
            d.reader.wire_offset -= d.reader.record_bytes
        d.hole.unread = d.reader.take_rest()
        d.messages.reset()
        self._uncertain(d, out)

    # The handshake

    def _on_messages(self, d: _Direction, out: PlainBatch) -> None:
        side = d.reader.side
        try:
            for kind, body in d.messages.read(d.reader.content):
                if side == CLIENT:
                    self._on_client_message(d, kind, body)
                else:
                    self._on_server_message(d, kind, body, out)
        except MalformedHandshake as problem:
            self._fail(f"a handshake message of the {NAMES[side]} is malformed: {problem}")

    def _on_client_message(self, d: _Direction, kind: int, body: bytes) -> None:
        if kind == CLIENT_HELLO and d.epoch == PLAIN:
            if self.client_hello is None:
                self.client_hello = parse_client_hello(body)
                self.facts.server_name = self.client_hello.server_name
                self._started_at = int(d.reader.timestamp)
        elif kind == END_OF_EARLY_DATA and d.epoch == EARLY:
            self._use_secret(d, CLIENT_HANDSHAKE, HANDSHAKING)
        elif kind == FINISHED:
            self._on_finished(d, CLIENT_TRAFFIC)
        elif kind == KEY_UPDATE:
            self._update_key(d)

    def _on_server_message(self, d: _Direction, kind: int, body: bytes, out: PlainBatch) -> None:
        if kind == SERVER_HELLO and d.epoch == PLAIN:
            if self.client_hello is None:
                self._fail("the ClientHello was not captured")
                return
            self._on_server_hello(parse_server_hello(body))
        elif kind == ENCRYPTED_EXTENSIONS and d.epoch == HANDSHAKING:
            extensions = parse_encrypted_extensions(body)
            self.facts.alpn = extensions.alpn
            self._early_accepted = extensions.early_data
            self._release_early(out, int(d.reader.timestamp))
        elif kind == FINISHED:
            self._on_finished(d, SERVER_TRAFFIC)
        elif kind == KEY_UPDATE:
            self._update_key(d)

    def _on_server_hello(self, hello: ServerHello) -> None:
        """Version, suite and secrets are known from here on."""
        facts = self.facts
        facts.version, facts.suite = version_text(hello.version), suite_name(hello.suite)
        if hello.retry:
            return
        if self._server_hello_seen:
            self._fail("the server sends two hellos")
            return
        self._server_hello_seen = True
        facts.alpn = hello.alpn
        suite = SUITES.get(hello.suite)
        if hello.version not in (TLS12, TLS13):
            self._fail(f"TLS {facts.version} is not opened: TLS 1.2 and 1.3 are")
        elif suite is None or suite.version != hello.version:
            self._fail(f"the suite {facts.suite} is not opened: suites with AEAD are")
        else:
            self._find_secrets(hello, suite)

    def _find_secrets(self, hello: ServerHello, suite: Suite) -> None:
        assert self.client_hello is not None  # checked by the caller
        assert self._keys is not None  # there is one ServerHello
        self._suite = suite
        found = self._keys.find(self.client_hello.random)
        self._keys = None
        needed = (
            (CLIENT_HANDSHAKE, SERVER_HANDSHAKE, CLIENT_TRAFFIC, SERVER_TRAFFIC)
            if suite.version == TLS13
            else (MASTER_SECRET,)
        )
        missing = [label for label in needed if label not in found]
        if missing:
            self._fail(
                "no secret for this session; give its key log with --keys"
                if not found or len(missing) == len(needed)
                else "the key log has only some of the secrets of this session"
            )
            return
        try:
            tag_error()
        except MissingExtra as problem:
            self._fail(str(problem))
            return
        self._secrets = found
        if suite.version == TLS13:
            client, server = self._directions
            self._use_secret(server, SERVER_HANDSHAKE, HANDSHAKING)
            if not (client.held or self.client_hello.early_data):
                self._use_secret(client, CLIENT_HANDSHAKE, HANDSHAKING)
        else:
            keys = key_block(found[MASTER_SECRET], self.client_hello.random, hello.random, suite)
            for d, own in zip(self._directions, keys, strict=True):
                d.secret = own.key + own.iv

    def _on_finished(self, d: _Direction, label: int) -> None:
        if d.epoch == APPLICATION and d.finished_at >= 0:
            return  # authentication after the handshake
        d.finished_at = int(d.reader.timestamp)
        if self._suite is not None and self._suite.version == TLS13 and d.epoch == HANDSHAKING:
            self._use_secret(d, label, APPLICATION)
            self._skipping_early = self._skipping_early and d.reader.side != CLIENT

    def _use_secret(self, d: _Direction, label: int, epoch: int) -> None:
        """Change a direction of TLS 1.3 to the keys of a secret."""
        d.epoch = epoch
        d.secret = self._secrets[label]
        self._set_keys(d, self._traffic_keys(d.secret), 0)

    def _traffic_keys(self, secret: bytes) -> TrafficKeys:
        assert self._suite is not None  # a secret is used after the ServerHello
        return traffic_keys(secret, self._suite)

    def _update_key(self, d: _Direction) -> None:
        if self._suite is not None and self._suite.version == TLS13 and d.epoch == APPLICATION:
            d.secret = updated_secret(d.secret, self._suite)
            self._set_keys(d, self._traffic_keys(d.secret), 0)

    def _start_tls12(self, d: _Direction) -> None:
        """A direction of TLS 1.2 changes to its keys."""
        assert self._suite is not None  # checked by the caller
        if d.epoch == PLAIN:
            d.epoch = APPLICATION
            size = self._suite.key_bytes
            self._set_keys(d, TrafficKeys(d.secret[:size], d.secret[size:]), 0)

    def _set_keys(self, d: _Direction, keys: TrafficKeys, sequence: int) -> None:
        suite = self._suite
        assert suite is not None  # keys are derived for a suite
        iv = int.from_bytes(keys.iv.ljust(12, b"\0"), "big")
        d.reader.set_keys(
            make_cipher(suite, keys.key),
            iv,
            suite.version == TLS13,
            suite.explicit_nonce,
            suite.tag_bytes,
            sequence,
            tag_error(),
        )

    # Early data

    def _hold(self, d: _Direction, data: bytes) -> None:
        """Hold early data until the server's extensions say whether it was accepted."""
        d.held += data
        if len(d.held) > MAX_HELD_BYTES:
            self._fail(f"more than {MAX_HELD_BYTES} bytes of early data are not answered")
            d.undecoded_bytes += len(d.held)
            d.held = b""

    def _release_early(self, out: PlainBatch, timestamp: int) -> None:
        client = self._directions[CLIENT]
        hello = self.client_hello
        if hello is None or not hello.early_data or client.epoch != PLAIN:
            return
        if self._early_accepted and CLIENT_EARLY in self._secrets:
            self._use_secret(client, CLIENT_EARLY, EARLY)
        else:
            # Records that the handshake keys do not open are early data.
            self._use_secret(client, CLIENT_HANDSHAKE, HANDSHAKING)
            self._skipping_early = True
            if self._early_accepted and client.held:
                self._stop(client, out, EARLY_DATA_REASON)
                client.undecoded_bytes += len(client.held)
                client.held = b""
                return
        if client.held:
            held, client.held = client.held, b""
            client.reader.start_bytes(held, timestamp)
            self._process(client, out)

    # Loss

    def _gap(self, d: _Direction, size: int, timestamp: int, out: PlainBatch) -> None:
        """`size` bytes of a direction were not captured."""
        if self.failure or d.stopped:
            d.missing_bytes += size
            return
        if d.reader.open_into is None and not self._can_resume(d):
            side = d.reader.side
            expected = ("ClientHello", "ServerHello")[side]
            if side == CLIENT and self.client_hello is not None:
                expected = "handshake"
            self._fail(f"bytes of the {expected} were not captured")
            d.undecoded_bytes += len(d.held) + len(d.reader.take_rest())
            d.held = b""
            d.missing_bytes += size
            return
        if d.hole is not None:
            d.hole.skipped_bytes += len(d.hole.unread)
            d.hole.unread, d.hole.position = b"", 0
            d.hole.missing_bytes += size
            return
        d.hole = Hole(size, len(d.reader.take_rest()), d.epoch)
        d.messages.reset()
        if d.epoch == APPLICATION and not self._may_be_handshake(d, 1, 0):
            d.hole.announced = 1
            self._add_gap(d, out, timestamp, 1)
        else:
            self._uncertain(d, out, timestamp)

    def _add_gap(self, d: _Direction, out: PlainBatch, timestamp: int, size: int) -> None:
        """Tell the decoder that `size` bytes are missing."""
        reader = d.reader
        out.add_row(reader.side, GAP, timestamp, size)
        reader.offsets.add(reader.plain_offset, reader.wire_offset)
        reader.plain_offset += size

    def _can_resume(self, d: _Direction) -> bool:
        """Whether the keys are known by which a direction without keys can be resumed."""
        if self._suite is None or not self._secrets:
            return False
        return self._suite.version == TLS12 and bool(d.secret)

    def _may_be_handshake(self, d: _Direction, records: int, content_bytes: int) -> bool:
        """Whether the first records under the application keys, which are lost, carry no data.

        In TLS 1.3 they may be a server's session tickets; in TLS 1.2 the first is the Finished.
        """
        assert self._suite is not None  # there are application keys
        if d.reader.sequence > 0:
            return False
        if self._suite.version == TLS12:
            return records == 1
        return (
            d.reader.side == SERVER
            and records <= MAX_TICKETS
            and content_bytes <= records * MAX_TICKET_BYTES
        )

    def _uncertain(self, d: _Direction, out: PlainBatch, timestamp: int | None = None) -> None:
        """Tell the decoder that bytes may be missing here; a gap without size."""
        at = int(d.reader.timestamp) if timestamp is None else timestamp
        out.add_row(d.reader.side, GAP, at, 0)

    def _search(self, d: _Direction, hole: Hole, out: PlainBatch, final: bool) -> bool:
        """Search the next record after a hole at one position.

        Returns False if more bytes are needed; True if the record was found, opening has stopped,
        or another position is to be tried. `final`: no more bytes follow.
        """
        data = hole.unread
        at = int(find_application_header(data, hole.position, len(data)))
        if at < 0:
            hole.skipped_bytes += len(data)
            hole.unread, hole.position = b"", 0
            return False
        hole.skipped_bytes += at
        data = hole.unread = data[at:]
        hole.position = 0
        size = HEADER_BYTES + int.from_bytes(data[3:5], "big")
        if len(data) < HEADER_BYTES or len(data) < size:
            if final:
                hole.position = 1
            return final and len(data) > 1
        if self._resume(d, hole, data[:size], out):
            if not d.stopped:
                d.reader.start_bytes(data, d.reader.timestamp)
        elif self._trials >= MAX_TRIALS:
            self._give_up_hole(d, hole)
            self._stop(d, out, f"no record after a hole opened in {MAX_TRIALS} attempts")
        else:
            hole.position = 1
        return True

    def _resume(self, d: _Direction, hole: Hole, record: bytes, out: PlainBatch) -> bool:
        """Try to open the record after a hole; on success the hole is over."""
        suite = self._suite
        assert suite is not None  # there are no holes before the ServerHello
        sequence, lost = int(d.reader.sequence), hole.size
        most = lost // suite.record_overhead + 1
        if hole.epoch == APPLICATION:
            found = self._try_sequences(d, record, sequence, most)
            if found is not None:
                count = found - sequence
                content = lost - count * suite.record_overhead if count else 0
                if suite.version == TLS12 and sequence == 0 and count:
                    content -= TLS12_FINISHED_BYTES
                elif self._may_be_handshake(d, count, content):
                    content = 0
                if content < hole.announced:
                    reason = "how many bytes are lost in a hole is not known"
                    self._drop_hole(d, hole, count, out, reason)
                else:
                    self._end_hole(d, hole, count, content, out)
                    d.reader.sequence = found
                return True
        return self._resume_later_epoch(d, hole, record, most, out)

    def _resume_later_epoch(
        self, d: _Direction, hole: Hole, record: bytes, most: int, out: PlainBatch
    ) -> bool:
        """The change of keys may be in the hole: try those that come after it."""
        suite = self._suite
        assert suite is not None  # as in `_resume`
        reader, before = d.reader, (d.epoch, d.secret, int(d.reader.sequence))
        if suite.version == TLS12:
            if d.epoch != PLAIN:
                return False
            self._start_tls12(d)
            first = 1  # the Finished has number 0
        elif d.epoch == APPLICATION:
            self._update_key(d)
            first = -1
        else:
            label = CLIENT_TRAFFIC if reader.side == CLIENT else SERVER_TRAFFIC
            self._use_secret(d, label, APPLICATION)
            first = 0
        found = self._try_sequences(d, record, 0, most)
        if found is None:
            d.epoch, d.secret = before[0], before[1]
            if suite.version == TLS12:
                reader.open_into = None
            else:
                self._set_keys(d, self._traffic_keys(d.secret), before[2])
            return False
        if found <= first:  # only records of the handshake are lost
            self._end_hole(d, hole, max(found, 1), 0, out)
            reader.sequence = found
        else:
            self._drop_hole(d, hole, found, out, "a change of keys is lost, and data with it")
        return True

    def _try_sequences(self, d: _Direction, record: bytes, first: int, count: int) -> int | None:
        """The sequence number from `first` on, at most `count` later, by which a record opens."""
        if d.reader.open_into is None:
            return None
        for number in range(first, first + count + 1):
            if self._trials >= MAX_TRIALS:
                return None
            self._trials += 1
            if d.reader.try_open(record, number):
                return number
        return None

    def _end_hole(
        self, d: _Direction, hole: Hole, lost: int, content: int, out: PlainBatch
    ) -> None:
        """The next record is found: `lost` records with `content` bytes are missing before it."""
        reader = d.reader
        if content > hole.announced:
            self._add_gap(d, out, int(reader.timestamp), content - hole.announced)
        if lost:
            reader.overhead_bytes += hole.size - content
        else:  # bytes that were never part of the stream
            d.missing_bytes += hole.missing_bytes
            d.undecoded_bytes += hole.skipped_bytes
        reader.records += lost
        reader.wire_offset += hole.size
        d.unopened += lost
        d.hole = None

    def _drop_hole(
        self, d: _Direction, hole: Hole, lost: int, out: PlainBatch, reason: str
    ) -> None:
        """The next record is found, but not how much is lost before it: opening stops."""
        d.reader.records += lost
        d.unopened += lost
        self._give_up_hole(d, hole)
        self._stop(d, out, reason)

    def _give_up_hole(self, d: _Direction, hole: Hole) -> None:
        """Count the bytes of a hole, after which nothing is opened."""
        d.missing_bytes += hole.missing_bytes - hole.announced
        d.undecoded_bytes += hole.skipped_bytes + len(hole.unread)
        d.hole = None

    # Ends

    def _fail(self, reason: str) -> None:
        """Nothing of the session can be opened any further."""
        if not self.failure:
            self.failure = reason
            self._keys = None
            self._secrets = {}

    def _stop(self, d: _Direction, out: PlainBatch, reason: str) -> None:
        """Nothing more of this direction can be opened."""
        d.stopped = True
        out.add_row(d.reader.side, UNDECODABLE, int(d.reader.timestamp), 0)
        self.notes.append(f"the {NAMES[d.reader.side]}'s TLS is not opened any further: {reason}")
