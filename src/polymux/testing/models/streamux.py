"""Model peers of Streamux: requests and replies in chunks, and cancels that cross them."""

from random import Random

from polymux.testing.models.base import (
    ExpectedStream,
    Fault,
    IdUse,
    ModelFrame,
    ModelPeer,
    ProtocolModel,
)

SPLITS = ((10, 4), (12, 2), (13, 1), (7, 7), (1, 13)), ((17, 13), (28, 2), (24, 6), (29, 1))
# States of an exchange, as one side knows it:
REQUESTING, WAITING, LOCKED, OVER = "asking", "waiting", "locked", "over"


class KnownExchange:
    def __init__(self, use: IdUse) -> None:
        self.use = use
        self.state = REQUESTING
        self.request_read = False  # completely
        self.reply_sent = False  # completely


class StreamuxPeer(ModelPeer):
    def __init__(self, side: int, rng: Random, split: tuple[int, int]) -> None:
        super().__init__(side, rng)
        self.splits: list[tuple[int, int] | None] = [
            None,
            None,
        ]  # (length bits, id bits) by side; None: not read yet
        self.splits[side] = split
        self.version = 1
        self.initiator_fault: Fault | None = None
        self.requests: dict[int, KnownExchange] = {}  # by id
        self.served: dict[int, KnownExchange] = {}
        self.pending_acks: list[IdUse] = []
        self.announced_split = split

    def start(self) -> None:
        length, ids = self.announced_split
        self.write_frame("hello", bytes([self.version, length, ids, self.rng.randrange(256)]),
                   fault=self.initiator_fault)  # fmt: skip

    # Sending

    def send_chunk(
        self, verb: str, use: IdUse, size: int, last: bool, fault: Fault | None = None
    ) -> ModelFrame:
        """Send a frame of an exchange. Replies use the layout that the requester announced."""
        split = self.splits[use.opener]
        assert split is not None
        length, ids = split
        reply = use.opener != self.side
        bits = length + ids + 2
        word = last << bits - 1 | reply << bits - 2 | size << ids | use.stream_id
        data = word.to_bytes(bits // 8, "little") + self.rng.randbytes(size)
        return self.write_frame(verb, data, use, payload_size=size, ends_half=last, fault=fault)

    def random_size(self, use: IdUse) -> int:
        split = self.splits[use.opener]
        assert split is not None
        return min(self.rng.choice([1, 1, 5, 60, 400]), (1 << split[0]) - 1)

    def free_id(self) -> int:
        """Return a free id, the lowest or a random one; -1 if there is none."""
        ids = range(min(1 << self.announced_split[1], 12))
        free = [
            number for number in ids
            if (self.side, number) not in self.faulted_ids
            and (number not in self.requests or self.requests[number].state == OVER)
        ]  # fmt: skip
        return self.rng.choice([free[0], self.rng.choice(free)]) if free else -1

    def next_use(self, stream_id: int) -> IdUse:
        before = self.requests.get(stream_id)
        return IdUse(self.side, stream_id, before.use.incarnation + 1 if before else 1)

    # Legal behaviour

    def read(self, packet: ModelFrame) -> None:
        use = packet.use
        if packet.verb == "hello":
            self.splits[packet.sender] = (packet.data[1], packet.data[2])
        elif use is None:
            return
        elif packet.verb == "request":
            known = self.served.get(use.stream_id)
            if known is None or known.use is not use:
                known = self.served[use.stream_id] = KnownExchange(use)
            if packet.ends_half:
                known.state, known.request_read = WAITING, True
        elif packet.verb == "cancel":
            self.served[use.stream_id].state = OVER
            self.pending_acks.append(use)
        elif packet.verb == "ack" or (
            packet.ends_half and self.requests[use.stream_id].state == WAITING
        ):
            self.requests[use.stream_id].state = OVER

    def read_faulted(self, packet: ModelFrame) -> None:
        if packet.verb == "cancel" and packet.use is not None:
            self.pending_acks.append(packet.use)

    def send_replies(self) -> None:
        for use in self.pending_acks:
            self.send_chunk("ack", use, 0, False)
        self.pending_acks = []

    def act(self) -> None:
        what = self.rng.random()
        serving = [e for e in self.served.values() if e.state == WAITING and self.is_clean(e)]
        asking = [
            e
            for e in self.requests.values()
            if e.state in (REQUESTING, WAITING) and self.is_clean(e)
        ]
        if what < 0.05:
            self.send_keep_alive()
        elif what < 0.1:
            self.send_replies()
        elif what < 0.2 and asking:
            exchange = self.rng.choice(asking)
            exchange.state = LOCKED
            self.send_chunk("cancel", exchange.use, 0, False)
        elif what < 0.6 and serving:
            self.send_reply(self.rng.choice(serving))
        else:
            self.send_request([e for e in asking if e.state == REQUESTING])

    def is_clean(self, exchange: KnownExchange) -> bool:
        return (exchange.use.opener, exchange.use.stream_id) not in self.faulted_ids

    def send_keep_alive(self, fault: Fault | None = None, stream_id: int = -1) -> None:
        stream_id = self.free_id() if stream_id < 0 else stream_id
        if stream_id >= 0:
            length, ids = self.announced_split
            word = 1 << length + ids + 1 | stream_id
            use = None if fault is None else self.requests[stream_id].use
            self.write_frame(
                "alive", word.to_bytes((length + ids + 2) // 8, "little"), use, fault=fault
            )

    def send_request(self, going: list[KnownExchange]) -> None:
        if going and self.rng.random() < 0.7:
            exchange = self.rng.choice(going)
            size = 0 if self.rng.random() < 0.1 else self.random_size(exchange.use)
            last = size == 0 or self.rng.random() < 0.5
        else:
            number = self.free_id()
            if number < 0:
                return
            exchange = self.requests[number] = KnownExchange(self.next_use(number))
            size, last = self.random_size(exchange.use), self.rng.random() < 0.6
        self.send_chunk("request", exchange.use, size, last)
        if last:
            exchange.state = WAITING

    def send_reply(self, exchange: KnownExchange) -> None:
        size = 0 if self.rng.random() < 0.15 else self.random_size(exchange.use)
        last = size == 0 or self.rng.random() < 0.6
        self.send_chunk("reply", exchange.use, size, last)
        if last:
            exchange.state, exchange.reply_sent = OVER, True

    # Faults

    def inject_fault(self, fault: str) -> bool:
        rule = f"streamux.{fault}"
        if self.splits[1 - self.side] is None:
            return False
        asked = [e for e in self.requests.values() if self.is_clean(e)]
        served = [e for e in self.served.values() if self.is_clean(e)]
        if fault in (
            "reply-unknown",
            "ack-not-cancelled",
            "reply-before-end",
            "reply-after-cancel",
            "cancel-unanswered",
        ):
            return self.inject_in_reply(fault, rule, served)
        states = {
            "id-in-flight": (WAITING, LOCKED), "cancel-twice": (LOCKED,),
            "keepalive-busy-id": (WAITING, LOCKED), "cancel-unknown": (OVER,),
            "chunk-too-long": (REQUESTING,),
        }[fault]  # fmt: skip
        fitting = [e for e in asked if e.state in states]
        if not fitting:
            return False
        use = self.rng.choice(fitting).use
        found = Fault(rule, use.label, needs_sender_vantage=fault == "cancel-unknown")
        if fault == "id-in-flight":
            self.send_chunk("request", use, self.random_size(use), self.rng.random() < 0.5, found)
        elif fault == "keepalive-busy-id":
            self.send_keep_alive(Fault(rule), use.stream_id)
        elif fault == "chunk-too-long":
            if self.announced_split[0] < 17:
                return False
            self.send_chunk("request", use, 65537 + self.rng.randrange(9), False, found)
        else:
            self.send_chunk("cancel", use, 0, False, found)
        return True

    def inject_in_reply(self, fault: str, rule: str, served: list[KnownExchange]) -> bool:
        other = 1 - self.side
        owed = [(use.opener, use.stream_id) for use in self.pending_acks]
        if fault == "cancel-unanswered":
            if not self.pending_acks:
                return False
            use = self.pending_acks.pop()
            self.omit_reply(Fault(rule, use.label), use)
            return True
        if fault in ("reply-unknown", "ack-not-cancelled") and self.rng.random() < 0.3:
            split = self.splits[other]
            assert split is not None
            number = (1 << split[1]) - 1
            if number in self.served or number < 12:
                return False
            use, found = IdUse(other, number), Fault(rule)
        else:
            fitting = [
                e
                for e in served
                if (e.use.opener, e.use.stream_id) not in owed
                and (
                    fault != "reply-unknown" or (e.state == OVER and not e.use.stream_id >= 1 << 12)
                )
                and (fault != "reply-before-end" or e.state == REQUESTING)
            ]
            if fault == "reply-after-cancel":
                return self.inject_after_cancel(rule, served)
            if not fitting:
                return False
            use = self.rng.choice(fitting).use
            found = Fault(rule, use.label)
        if fault == "ack-not-cancelled":
            self.send_chunk("ack", use, 0, False, found)
        else:
            self.send_chunk("reply", use, self.random_size(use), self.rng.random() < 0.5, found)
        return True

    def inject_after_cancel(self, rule: str, served: list[KnownExchange]) -> bool:
        """Continue a reply after reading its cancel, before sending the ack."""
        for exchange in served:
            if (
                exchange.use in self.pending_acks
                and exchange.request_read
                and not exchange.reply_sent
            ):
                found = Fault(rule, exchange.use.label, needs_sender_vantage=True)
                self.send_chunk("reply", exchange.use, self.random_size(exchange.use), False, found)
                return True
        return False


class StreamuxModel(ProtocolModel):
    name = "streamux"
    survivable_faults = frozenset(
        {"reply-unknown", "ack-not-cancelled", "id-in-flight", "keepalive-busy-id"}
    )
    reply_verbs = frozenset({"ack"})
    faults = (
        "reply-unknown", "ack-not-cancelled", "id-in-flight", "cancel-twice", "keepalive-busy-id",
        "reply-before-end", "reply-after-cancel", "cancel-unknown", "cancel-unanswered",
        "bad-version", "bad-bit-counts", "mixed-header-sizes", "chunk-too-long", "truncated",
    )  # fmt: skip

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.wide_headers = rng.randrange(2)
        splits = SPLITS[self.wide_headers]
        self.streamux_peers = [StreamuxPeer(side, rng, rng.choice(splits)) for side in (0, 1)]
        self.peers = list(self.streamux_peers)
        self.rng = rng

    def prepare_fault(self, fault: str) -> None:
        peer = self.rng.choice(self.streamux_peers)
        found = Fault(f"streamux.{fault}", loses_framing=True)
        if fault == "bad-version":
            peer.version, peer.initiator_fault = self.rng.choice([0, 2, 255]), found
        elif fault == "bad-bit-counts":
            peer.announced_split, peer.initiator_fault = (
                self.rng.choice([(14, 0), (0, 30), (10, 5)]),
                found,
            )
        elif fault == "mixed-header-sizes":
            peer.announced_split, peer.initiator_fault = (
                self.rng.choice(SPLITS[1 - self.wide_headers]),
                found,
            )

    def frame_to_report(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> ModelFrame:
        """Return the second of two initiators with different header sizes."""
        if (
            faulty_frame.fault is not None
            and faulty_frame.fault.rule == "streamux.mixed-header-sizes"
        ):
            return [packet for packet in passed if packet.verb == "hello"][1]
        return faulty_frame

    def expected_streams(self, passed: list[ModelFrame]) -> dict[str, ExpectedStream]:
        found: dict[str, ExpectedStream] = {}
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            truth = found.setdefault(use.label, ExpectedStream())
            truth.count_frame(packet)
            if packet.verb in ("request", "reply"):
                truth.payload[packet.sender] += packet.payload_size
            if packet.verb == "request" and packet.ends_half:
                truth.ending = "half-closed"
            elif packet.verb == "reply" and packet.ends_half and truth.ending != "cancelled":
                truth.ending = "clean"
            elif packet.verb == "cancel":
                truth.ending, truth.reset_by = "cancelled", packet.sender
        return found
