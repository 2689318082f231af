"""Model peers of omnistreams: both numberings, both encapsulations, few ids reused often."""

import base64
import hashlib
from collections.abc import Callable
from random import Random

from polymux.testing.models.base import (
    ExpectedStream,
    Fault,
    IdUse,
    ModelFrame,
    ModelPeer,
    ProtocolModel,
)

VERBS = ("control", "create", "data", "end", "cancel-receive", "request", "cancel-send")
LEGACY_CODES = {"create": 0, "data": 1, "end": 2, "cancel-send": 3, "request": 4, "control": 5}
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MAX_METADATA_BYTES, MAX_MESSAGE_BYTES = 65536, 1048576  # default limits of an observer


class WrittenStream:
    """A stream that this side writes, as far as this side knows."""

    def __init__(self, use: IdUse) -> None:
        self.use = use
        self.credit = 0
        self.open = True
        self.cancelled = False  # by the other side, as far as read


class ReadStream:
    """A stream that this side reads."""

    def __init__(self, use: IdUse) -> None:
        self.use = use
        self.open = True
        self.cancelled = False


class OmnistreamsPeer(ModelPeer):
    def __init__(self, side: int, rng: Random, model: "OmnistreamsModel") -> None:
        super().__init__(side, rng)
        self.model = model
        self.written_streams: dict[int, WrittenStream] = {}
        self.read_streams: dict[int, ReadStream] = {}
        self.pending_cancels: list[IdUse] = []  # for data without an open stream

    # Encapsulation

    def start(self) -> None:
        if not self.model.websocket:
            return
        key = base64.b64encode(b"0123456789abcdef")
        if self.side == 0:
            head = (b"GET /omnistreams HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n"
                    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    b"Sec-WebSocket-Key: " + key + b"\r\n\r\n")  # fmt: skip
        else:
            proof = base64.b64encode(
                hashlib.sha1(key + WEBSOCKET_GUID, usedforsecurity=False).digest()
            )
            head = (
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Accept: " + proof + b"\r\n\r\n"
            )
        self.write_frame("upgrade", head, is_frame=False)

    def encapsulate(self, message: bytes) -> bytes:
        if not self.model.websocket:
            return len(message).to_bytes(4, "big") + message
        if len(message) > 2 and self.rng.random() < 0.1:
            cut = self.rng.randrange(1, len(message))
            return self.websocket_frame(2, message[:cut], False) + self.websocket_frame(
                0, message[cut:], True
            )
        return self.websocket_frame(2, message, True)

    def websocket_frame(self, opcode: int, body: bytes, final: bool) -> bytes:
        size, mask = len(body), 128 if self.side == 0 else 0
        if size < 126:
            head = bytes([final << 7 | opcode, mask | size])
        elif size < 65536:
            head = bytes([final << 7 | opcode, mask | 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([final << 7 | opcode, mask | 127]) + size.to_bytes(8, "big")
        if not mask:
            return head + body
        key = self.rng.randbytes(4)
        times = size // 4 + 1
        stream = int.from_bytes((key * times)[:size], "big") ^ int.from_bytes(body, "big")
        return head + key + stream.to_bytes(size, "big")

    # Sending

    def send_message(
        self, verb: str, use: IdUse | None, body: bytes = b"", fault: Fault | None = None
    ) -> ModelFrame:
        code = LEGACY_CODES[verb] if self.model.legacy else VERBS.index(verb)
        data = bytes([code]) + (bytes([use.stream_id]) if use is not None else b"") + body
        amount = body[0] if verb == "request" and body else len(body)
        return self.write_frame(verb, self.encapsulate(data), use, amount, fault=fault)

    # Legal behaviour

    def read(self, packet: ModelFrame) -> None:
        use = packet.use
        if use is None:
            return
        if packet.verb == "create":
            self.read_streams[use.stream_id] = ReadStream(use)
        elif packet.verb == "request" and use.stream_id in self.written_streams:
            # Taken for the newest use of the id.
            self.written_streams[use.stream_id].credit += packet.amount
        elif packet.verb == "cancel-send" and use.stream_id in self.written_streams:
            if self.written_streams[use.stream_id].open:
                self.written_streams[use.stream_id].open = False
                self.written_streams[use.stream_id].cancelled = True
        elif packet.verb in ("end", "cancel-receive"):
            self.read_streams[use.stream_id].open = False
        elif (
            packet.verb == "data"
            and self.model.cancels_late_data
            and not self.read_streams[use.stream_id].open
        ):
            self.pending_cancels.append(use)

    def read_faulted(self, packet: ModelFrame) -> None:
        if packet.verb == "data" and packet.fault is not None and packet.use is not None:
            stream = self.read_streams.get(packet.use.stream_id)
            cancelled = stream is not None and stream.cancelled  # once per use is enough
            if packet.fault.rule == "omnistreams.data-on-unknown-id" and not cancelled:
                self.pending_cancels.append(packet.use)

    def send_replies(self) -> None:
        for use in self.pending_cancels:
            self.send_message("cancel-send", use)
        self.pending_cancels = []

    def act(self) -> None:
        what = self.rng.random()
        if what < 0.04:
            self.send_message("control", None, self.rng.randbytes(self.rng.randrange(9)))
        elif what < 0.06 and self.model.websocket:
            self.write_frame("ping", self.websocket_frame(9, b"hi", True), is_frame=False)
        elif what < 0.5:
            self.act_as_writer()
        else:
            self.act_as_reader()

    def act_as_writer(self) -> None:
        going = [w for w in self.written_streams.values() if w.open and self.is_clean(w.use)]
        free = [
            n
            for n in self.model.ids
            if (self.side, n) not in self.faulted_ids
            and (n not in self.written_streams or not self.written_streams[n].open)
        ]
        if free and (not going or self.rng.random() < 0.25):
            self.create_stream(self.rng.choice(free))
            return
        if not going:
            return
        written = self.rng.choice(going)
        what = self.rng.random()
        if what < 0.1:
            self.send_message("end", written.use)
            written.open = False
        elif what < 0.15 and not self.model.legacy:
            self.send_message("cancel-receive", written.use)
            written.open = False
        elif written.credit > 0:
            written.credit -= 1
            size = self.rng.choice([0, 1, 40, 300])
            self.send_message("data", written.use, self.rng.randbytes(size))

    def create_stream(self, stream_id: int) -> None:
        before = self.written_streams.get(stream_id)
        use = IdUse(self.side, stream_id, before.use.incarnation + 1 if before else 1)
        self.written_streams[stream_id] = WrittenStream(use)
        self.send_message("create", use, self.rng.choice([b"", b"{}", b'{"a":1}']))

    def act_as_reader(self) -> None:
        going = [h for h in self.read_streams.values() if h.open and self.is_clean(h.use)]
        if not going:
            return
        stream = self.rng.choice(going)
        if self.rng.random() < 0.12:
            stream.open, stream.cancelled = False, True
            self.send_message("cancel-send", stream.use)
        else:
            self.send_message(
                "request", stream.use, bytes([self.rng.choice([0, 1, 1, 3, 10, 255])])
            )

    def is_clean(self, use: IdUse) -> bool:
        return (use.opener, use.stream_id) not in self.faulted_ids

    # Faults

    def inject_fault(self, fault: str) -> bool:
        rule = f"omnistreams.{fault}"
        own = [w for w in self.written_streams.values() if self.is_clean(w.use)]
        if fault in ("unknown-type", "empty-message", "bad-length"):
            return self.inject_malformed(fault, rule)
        if fault in ("request-on-unknown-id", "cancel-on-unknown-id"):
            return self.inject_as_reader(fault, rule)
        tests: dict[str, Callable[[WrittenStream], bool]] = {
            "credit-exceeded": lambda w: w.open and w.credit == 0,
            "create-on-open-id": lambda w: w.open,
            "data-on-unknown-id": lambda w: not w.open and not w.cancelled,
            "end-on-unknown-id": lambda w: not w.open and not w.cancelled,
            "sent-after-cancel": lambda w: w.cancelled and w.credit > 0,
            "end-with-payload": lambda w: w.open,
            "cancel-with-payload": lambda w: w.open and not self.model.legacy,
            "metadata-too-long": lambda w: not w.open,
            "message-too-long": lambda w: w.open and w.credit > 0,
        }
        fitting = [w for w in own if tests[fault](w)]
        if fault in ("data-on-unknown-id", "end-on-unknown-id") and self.rng.random() < 0.3:
            use = IdUse(self.side, 200)  # an id that is never created
            self.send_message(fault.split("-")[0], use, b"", Fault(rule))
            return True
        if not fitting:
            return False
        use = self.rng.choice(fitting).use
        again = IdUse(use.opener, use.stream_id, use.incarnation + 1)
        label = again.label if fault in ("create-on-open-id", "metadata-too-long") else use.label
        found = Fault(rule, label, needs_sender_vantage=fault == "sent-after-cancel")
        if fault == "create-on-open-id":
            self.send_message("create", again, b"", found)
        elif fault == "metadata-too-long":
            self.send_message("create", again, bytes(MAX_METADATA_BYTES + 1), found)
        elif fault == "message-too-long":
            if self.model.websocket:  # rejected by the WebSocket layer, which has no streams
                found = Fault("websocket.message-too-big", loses_framing=True)
            self.send_message("data", use, bytes(MAX_MESSAGE_BYTES + 1), found)
        elif fault.startswith("end-"):
            self.send_message("end", use, b"x" if "payload" in fault else b"", found)
        elif fault == "cancel-with-payload":
            self.send_message("cancel-receive", use, b"x", found)
        else:
            self.send_message("data", use, b"x" * self.rng.randrange(9), found)
        return True

    def inject_malformed(self, fault: str, rule: str) -> bool:
        if fault == "empty-message":
            self.write_frame("bad", self.encapsulate(b""), fault=Fault(rule))
        elif fault == "unknown-type":
            code = self.rng.choice([7, 99, 255])
            self.write_frame("bad", self.encapsulate(bytes([code, 1, 2])), fault=Fault(rule))
        elif self.rng.random() < 0.5:
            code = self.rng.choice([1, 2, 3, 4])  # all but control messages have an id
            self.write_frame("bad", self.encapsulate(bytes([code])), fault=Fault(rule))
        else:
            streams = [s for s in self.read_streams.values() if s.open and self.is_clean(s.use)]
            if not streams:
                return False
            use = self.rng.choice(streams).use
            body = self.rng.choice([b"", b"\1\1"])
            self.send_message("request", use, body, Fault(rule, use.label))
        return True

    def inject_as_reader(self, fault: str, rule: str) -> bool:
        """Send a request or cancel for a stream that never existed or that this side cancelled."""
        if self.model.cancels_late_data:
            return False  # such a peer legally cancels streams that are over
        verb = "request" if fault.startswith("request") else "cancel-send"
        body = b"\1" if verb == "request" else b""
        gone = [h for h in self.read_streams.values()
                if not h.open and self.is_clean(h.use) and h.use.incarnation == 1]  # fmt: skip
        if self.rng.random() < 0.5 or not gone:
            self.send_message(verb, IdUse(1 - self.side, 201), body, Fault(rule))
            return True
        use = self.rng.choice(gone).use
        self.send_message(verb, use, body, Fault(rule, use.label, needs_sender_vantage=True))
        return True


class OmnistreamsModel(ProtocolModel):
    name = "omnistreams"
    survivable_faults = frozenset(
        {
            "end-on-unknown-id",
            "request-on-unknown-id",
            "cancel-on-unknown-id",
            "sent-after-cancel",
            "data-on-unknown-id",
        }
    )
    messages = True
    faults = (
        "credit-exceeded", "create-on-open-id", "data-on-unknown-id", "end-on-unknown-id",
        "sent-after-cancel", "end-with-payload", "cancel-with-payload", "request-on-unknown-id",
        "cancel-on-unknown-id", "unknown-type", "empty-message", "bad-length",
        "metadata-too-long", "message-too-long", "truncated",
    )  # fmt: skip
    missing_reply_rules = frozenset({"omnistreams.data-unanswered"})

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.legacy = rng.random() < 0.4
        self.websocket = rng.random() < 0.4
        self.cancels_late_data = rng.random() < 0.2  # as the spec literally demands
        self.protocol_string = (f"omnistreams:numbering={'legacy' if self.legacy else 'spec'},"
                     f"carrier={'websocket' if self.websocket else 'length'}")  # fmt: skip
        if self.cancels_late_data:
            self.honest_notes = frozenset({"omnistreams.cancel-on-unknown-id"})
        self.ids = rng.sample([*range(200), 255], rng.choice([1, 2, 5]))
        self.peers = [OmnistreamsPeer(side, rng, self) for side in (0, 1)]

    def is_certain(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> bool:
        use = faulty_frame.use
        return super().is_certain(faulty_frame, passed) and (use is None or use.incarnation == 1)

    def expected_streams(self, passed: list[ModelFrame]) -> dict[str, ExpectedStream]:
        found: dict[str, ExpectedStream] = {}
        newest: dict[tuple[int, int], IdUse] = {}
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            key = (use.opener, use.stream_id)
            if packet.verb == "create":
                if key in newest and found[newest[key].label].ending == "open":
                    # A late cancel of an earlier use ended it.
                    found[newest[key].label].is_certain = False
                newest[key] = use
                truth = found[use.label] = ExpectedStream()
                truth.granted[use.opener] = 0
                truth.count_frame(packet)
                continue
            current = found[newest[key].label]
            current.count_frame(packet)
            if packet.verb == "request":
                current.granted[use.opener] = (current.granted[use.opener] or 0) + packet.amount
            elif packet.verb == "data":
                current.payload[use.opener] += packet.amount
            elif newest[key] is not use:  # a late cancel may belong to either use
                current.is_certain = found[use.label].is_certain = False
            elif current.ending == "open":
                cancels = packet.verb != "end"
                current.ending = "cancelled" if cancels else "clean"
                current.reset_by = packet.sender if cancels else None
        return found
