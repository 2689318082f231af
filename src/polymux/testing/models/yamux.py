"""Model peers of yamux: streams under windows, opened and accepted in every way, and pings."""

from random import Random

from polymux.testing.models.base import (
    ExpectedStream,
    Fault,
    IdUse,
    ModelFrame,
    ModelPeer,
    ProtocolModel,
)

INITIAL_WINDOW = 262144
DATA, UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
OPEN, CLOSED, RESET = "open", "closed", "reset"


def encode_frame(
    kind: int, flags: int, stream_id: int, length: int, payload: bytes = b"", version: int = 0
) -> bytes:
    """Return a frame: the 12-byte header, and the payload."""
    head = bytes([version, kind]) + flags.to_bytes(2, "big") + stream_id.to_bytes(4, "big")
    return head + length.to_bytes(4, "big") + payload


class KnownStream:
    """What one peer knows of a stream."""

    def __init__(self, use: IdUse) -> None:
        self.use = use
        self.own = OPEN
        self.other = OPEN
        self.acknowledged = False
        self.send_window = INITIAL_WINDOW
        self.unreturned = 0  # bytes read whose credit was not returned
        self.granted = INITIAL_WINDOW  # to the other side, in all
        self.received = 0  # bytes read

    @property
    def over(self) -> bool:
        return RESET in (self.own, self.other) or (self.own, self.other) == (CLOSED, CLOSED)


class YamuxPeer(ModelPeer):
    """One peer. It opens and accepts with window updates or with data, as implementations do."""

    def __init__(self, side: int, rng: Random) -> None:
        super().__init__(side, rng)
        self.streams: dict[tuple[int, int], KnownStream] = {}  # by opener and id
        self.next_id = 2 - (side == 0)
        self.skipped_ids: list[int] = []
        self.has_opened = False
        self.peer_left = False  # its Go Away was read
        self.unanswered_pings: list[int] = []

    # Sending

    def send_frame(
        self,
        verb: str,
        use: IdUse,
        flags: int = 0,
        amount: int = 0,
        body: bytes | None = None,
        fault: Fault | None = None,
    ) -> ModelFrame:
        """Send a Data frame with `body`, or a window update with `amount`."""
        data = (
            encode_frame(UPDATE, flags, use.stream_id, amount)
            if body is None
            else encode_frame(DATA, flags, use.stream_id, len(body), body)
        )
        return self.write_frame(verb, data, use, amount, len(body or b""), bool(flags & FIN), fault)

    def random_payload(self, known: KnownStream) -> bytes:
        size = self.rng.choice([0, 1, 1, 20, 300, 2000, 2000, 70_000, 262_144])
        return self.rng.randbytes(min(size, known.send_window))

    def flags_for(self, known: KnownStream) -> int:
        """ACK on the first frame of the accepting side."""
        if known.use.opener == self.side or known.acknowledged:
            return 0
        known.acknowledged = True
        return ACK

    def fresh_use(self) -> IdUse:
        if self.rng.random() < 0.1:
            self.skipped_ids.append(self.next_id)
            self.next_id += 2
        self.next_id += 2
        return IdUse(self.side, self.next_id - 2)

    def open_stream(self) -> None:
        use = self.fresh_use()
        known = self.streams[self.side, use.stream_id] = KnownStream(use)
        self.has_opened = True
        if self.rng.random() < 0.25:
            self.send_data(known, SYN)
        else:
            self.send_frame("open", use, SYN, self.rng.choice([0, 0, 100, 800_000]))

    def send_data(self, known: KnownStream, flags: int = 0) -> None:
        body = self.random_payload(known)
        known.send_window -= len(body)
        if known.own == OPEN and self.rng.random() < 0.1:
            flags |= FIN
            known.own = CLOSED
        verb = "open" if flags & SYN else "data"
        self.send_frame(verb, known.use, flags, 0, body)

    # Legal behaviour

    def read(self, packet: ModelFrame) -> None:
        use = packet.use
        if use is None:
            self.read_session_frame(packet)
            return
        if packet.verb == "open":
            self.streams[use.opener, use.stream_id] = KnownStream(use)
        known = self.streams[use.opener, use.stream_id]
        if known.other == RESET or known.own == RESET:
            return
        known.send_window += packet.amount if packet.verb != "reset" else 0
        known.unreturned += packet.payload_size
        known.received += packet.payload_size
        if packet.verb == "reset":
            known.other = RESET
        elif packet.ends_half:
            known.other = CLOSED

    def read_session_frame(self, packet: ModelFrame) -> None:
        if packet.verb == "ping":
            self.unanswered_pings.append(packet.amount)
        elif packet.verb == "leave":
            self.peer_left = True

    def read_faulted(self, packet: ModelFrame) -> None:
        if packet.use is None:
            self.read_session_frame(packet)

    def live_streams(self) -> list[KnownStream]:
        return [
            known
            for key, known in self.streams.items()
            if not known.over and key not in self.faulted_ids
        ]

    def act(self) -> None:
        what = self.rng.random()
        live = self.live_streams()
        if what < 0.06:
            value = self.rng.randrange(3)
            self.write_frame("ping", encode_frame(PING, SYN, 0, value), amount=value)
        elif what < 0.065:
            self.write_frame("leave", encode_frame(GO_AWAY, 0, 0, 0))
        elif not live or (len(live) < 6 and what < 0.25):
            if not self.peer_left:
                self.open_stream()
        else:
            self.use_stream(self.rng.choice(live))

    def use_stream(self, known: KnownStream) -> None:
        what = self.rng.random()
        if what < 0.1:
            known.own = RESET
            self.send_frame("reset", known.use, RST, self.rng.choice([0, 0, 5]))
        elif what < 0.25 and known.own == OPEN:
            known.own = CLOSED
            self.send_frame("end", known.use, FIN | self.flags_for(known))
        elif what < 0.5 and known.unreturned:
            flags = self.flags_for(known)
            extra = self.rng.choice([0, 0, 1000])
            self.send_frame("update", known.use, flags, known.unreturned + extra)
            known.granted += known.unreturned + extra
            known.unreturned = 0
        elif known.own == OPEN:
            self.send_data(known, self.flags_for(known))

    def send_replies(self) -> None:
        """Answer pings, and accept what was opened."""
        for value in self.unanswered_pings:
            self.write_frame("pong", encode_frame(PING, ACK, 0, value), amount=value)
        self.unanswered_pings = []
        for known in self.live_streams():
            if known.use.opener != self.side and not known.acknowledged:
                self.send_frame("accept", known.use, self.flags_for(known), 0)

    # Faults

    def inject_fault(self, fault: str) -> bool:
        rule = f"yamux.{fault}"
        if fault in SESSION_FAULTS:
            return self.inject_on_session(fault, rule)
        if fault in OPENING_FAULTS:
            return self.inject_opening(fault, rule)
        streams = [known for key, known in self.streams.items() if key not in self.faulted_ids]
        self.rng.shuffle(streams)
        return any(self.inject_on_stream(known, fault, rule) for known in streams)

    def inject_on_session(self, fault: str, rule: str) -> bool:
        """Inject a fault that concerns no stream."""
        if fault == "bad-version":
            data = encode_frame(UPDATE, SYN, self.next_id, 0, version=1)
            self.write_frame("bad", data, fault=Fault(rule, loses_framing=True))
        elif fault == "bad-type":
            data = encode_frame(9, 0, self.next_id, 0)
            self.write_frame("bad", data, fault=Fault(rule, loses_framing=True))
        elif fault == "stream-zero":
            self.write_frame("bad", encode_frame(UPDATE, SYN, 0, 0), fault=Fault(rule))
        elif fault == "session-frame-on-stream":
            self.write_frame("ping", encode_frame(PING, SYN, 9, 4), amount=4, fault=Fault(rule))
        elif fault == "pong-unrequested":
            self.write_frame("pong", encode_frame(PING, ACK, 0, 77_777), fault=Fault(rule))
        elif fault == "ping-flags":
            flags = self.rng.choice([0, SYN | ACK])
            self.write_frame("bad", encode_frame(PING, flags, 0, 5), fault=Fault(rule))
        elif fault == "goaway-code":
            self.write_frame("leave", encode_frame(GO_AWAY, 0, 0, 9), fault=Fault(rule))
        elif fault == "unknown-stream":
            data = encode_frame(UPDATE, self.rng.choice([0, FIN, RST]), 70_001, 0)
            self.write_frame("stray", data, fault=Fault(rule))
        elif not self.unanswered_pings:  # ping-unanswered
            return False
        else:
            self.unanswered_pings.pop()
            self.omitted_frame = ModelFrame(self.side, -1, b"", "omitted", fault=Fault(rule))
        return True

    def inject_opening(self, fault: str, rule: str) -> bool:
        """Open a stream that may not be opened, or not in this way."""
        if self.peer_left != (fault == "open-after-goaway"):
            return False
        flags = SYN
        if fault == "id-parity":
            if not self.has_opened:
                return False
            use = IdUse(self.side, self.next_id + 1001)
        elif fault == "ids-descending":
            if not self.skipped_ids or self.skipped_ids[-1] > self.next_id - 4:
                return False
            use = IdUse(self.side, self.skipped_ids.pop())
        else:
            use = self.fresh_use()
            flags |= ACK if fault == "syn-and-ack" else 0
        found = Fault(rule, use.label, needs_sender_vantage=fault == "open-after-goaway")
        self.send_frame("open", use, flags, 0, fault=found)
        return True

    def inject_on_stream(self, known: KnownStream, fault: str, rule: str) -> bool:
        use = known.use
        found = Fault(rule, use.label, needs_sender_vantage=fault == "write-after-peer-rst")
        accepted = use.opener == self.side or known.acknowledged
        if fault == "window-exceeded" and known.own == OPEN and not known.over and accepted:
            self.send_frame("data", use, 0, 0, bytes(known.send_window + 1), found)
        elif (
            fault == "window-overflow"
            and not known.over
            and accepted
            and known.own == OPEN
            and known.granted > known.received
        ):
            self.send_frame("update", use, 0, 2**32 - 1, None, found)
        elif fault == "write-after-fin" and known.own == CLOSED and known.other != RESET:
            self.send_frame("data", use, 0, 0, b"x", found)
        elif fault == "fin-twice" and known.own == CLOSED and known.other != RESET:
            self.send_frame("end", use, FIN, 0, None, found)
        elif (fault == "write-after-rst" and known.own == RESET and known.other != RESET) or (
            fault == "write-after-peer-rst" and known.other == RESET and known.own == OPEN
        ):
            self.send_frame("data", use, 0, 0, b"x", found)
        elif fault == "unknown-flag" and not known.over and known.own == OPEN and accepted:
            data = encode_frame(UPDATE, 0x8000, use.stream_id, 0)
            self.write_frame("update", data, use, fault=found)
        elif fault == "ack-unexpected" and not known.over and known.own == OPEN and accepted:
            self.send_frame("accept", use, ACK, 0, None, found)
        elif (
            fault in ("id-reused", "id-recycled")
            and use.opener == self.side
            and known.over == (fault == "id-recycled")
            and not self.peer_left
        ):
            again = IdUse(use.opener, use.stream_id, use.incarnation + 1)
            self.send_frame("open", again, SYN, 0, None, Fault(rule, again.label))
        else:
            return False
        return True


SESSION_FAULTS = (
    "bad-version", "bad-type", "stream-zero", "session-frame-on-stream", "pong-unrequested",
    "ping-flags", "goaway-code", "unknown-stream", "ping-unanswered",
)  # fmt: skip
OPENING_FAULTS = ("id-parity", "ids-descending", "syn-and-ack", "open-after-goaway")
STREAM_FAULTS = (
    "window-exceeded", "window-overflow", "write-after-fin", "fin-twice", "write-after-rst",
    "write-after-peer-rst", "unknown-flag", "ack-unexpected", "id-reused", "id-recycled",
)  # fmt: skip


class YamuxModel(ProtocolModel):
    """yamux between two peers, each of which opens and accepts in every way."""

    name = "yamux"
    faults = (*SESSION_FAULTS, *OPENING_FAULTS, *STREAM_FAULTS, "truncated")
    honest_notes = frozenset({"yamux.update-after-fin"})
    missing_reply_rules = frozenset({"yamux.unacknowledged", "yamux.ping-unanswered"})
    reply_verbs = frozenset({"pong", "accept"})

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.protocol_string = rng.choice(["yamux", "yamux", "yamux:dialect=libp2p"])
        self.peers = [YamuxPeer(side, rng) for side in (0, 1)]

    def expected_streams(self, passed: list[ModelFrame]) -> dict[str, ExpectedStream]:
        found: dict[str, ExpectedStream] = {}
        ended: dict[str, set[int]] = {}
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            side = packet.sender
            if packet.verb == "open":
                found[use.label] = ExpectedStream("never-accepted")
                found[use.label].granted = [INITIAL_WINDOW, INITIAL_WINDOW]
                ended[use.label] = set()
            truth, ends = found[use.label], ended[use.label]
            answered = truth.frames[1 - use.opener] > 0
            truth.count_frame(packet)
            truth.payload[side] += packet.payload_size
            if packet.verb != "reset":
                truth.granted[1 - side] = (truth.granted[1 - side] or 0) + packet.amount
            elif truth.reset_by == -1 and len(ends) < 2:
                truth.reset_by = side
                rejected = side != use.opener and not answered
                truth.ending = "rejected" if rejected else "reset"
            if packet.ends_half:
                ends.add(side)
            if truth.reset_by == -1 and (truth.frames[1 - use.opener] > 0):
                truth.ending = ("open", "half-closed", "clean")[len(ends)]
        return found
