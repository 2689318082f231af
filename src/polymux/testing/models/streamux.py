"""Model peers of Streamux: requests and replies in chunks, cancels that cross them."""

from random import Random

from polymux.testing.models.base import Fault, Model, Packet, Peer, Truth, Use

SPLITS = ((10, 4), (12, 2), (13, 1), (7, 7), (1, 13)), ((17, 13), (28, 2), (24, 6), (29, 1))
# An exchange, as one of its sides knows it:
ASKING, WAITING, LOCKED, OVER = "asking", "waiting", "locked", "over"


class Exchange:
    def __init__(self, use: Use) -> None:
        self.use = use
        self.state = ASKING
        self.asked = False  # the whole request has been read
        self.replied = False  # the whole reply has been sent


class StreamuxPeer(Peer):
    def __init__(self, side: int, rng: Random, split: tuple[int, int]) -> None:
        super().__init__(side, rng)
        self.splits: list[tuple[int, int] | None] = [None, None]  # by side, as far as known
        self.splits[side] = split
        self.version = 1
        self.flaw: Fault | None = None  # of the initiator
        self.asked: dict[int, Exchange] = {}  # by id
        self.served: dict[int, Exchange] = {}
        self.acks: list[Use] = []  # owed
        self.announced = split

    def start(self) -> None:
        length, ids = self.announced
        self.write("hello", bytes([self.version, length, ids, self.rng.randrange(256)]),
                   fault=self.flaw)  # fmt: skip

    # --- frames

    def chunk(
        self, verb: str, use: Use, size: int, last: bool, fault: Fault | None = None
    ) -> Packet:
        """A frame about an exchange: replies are laid out as the asker announced."""
        split = self.splits[use.opener]
        assert split is not None
        length, ids = split
        reply = use.opener != self.side
        bits = length + ids + 2
        word = last << bits - 1 | reply << bits - 2 | size << ids | use.number
        data = word.to_bytes(bits // 8, "little") + self.rng.randbytes(size)
        return self.write(verb, data, use, payload=size, last=last, fault=fault)

    def size(self, use: Use) -> int:
        split = self.splits[use.opener]
        assert split is not None
        return min(self.rng.choice([1, 1, 5, 60, 400]), (1 << split[0]) - 1)

    def fresh(self) -> int:
        """A free id, or -1: the lowest or any."""
        ids = range(min(1 << self.announced[1], 12))
        free = [
            number for number in ids
            if (self.side, number) not in self.spoilt
            and (number not in self.asked or self.asked[number].state == OVER)
        ]  # fmt: skip
        return self.rng.choice([free[0], self.rng.choice(free)]) if free else -1

    def renewed(self, number: int) -> Use:
        before = self.asked.get(number)
        return Use(self.side, number, before.use.incarnation + 1 if before else 1)

    # --- conduct

    def read(self, packet: Packet) -> None:
        use = packet.use
        if packet.verb == "hello":
            self.splits[packet.sender] = (packet.data[1], packet.data[2])
        elif use is None:
            return
        elif packet.verb == "request":
            known = self.served.get(use.number)
            if known is None or known.use is not use:
                known = self.served[use.number] = Exchange(use)
            if packet.last:
                known.state, known.asked = WAITING, True
        elif packet.verb == "cancel":
            self.served[use.number].state = OVER
            self.acks.append(use)
        elif packet.verb == "ack" or (packet.last and self.asked[use.number].state == WAITING):
            self.asked[use.number].state = OVER

    def suffer(self, packet: Packet) -> None:
        if packet.verb == "cancel" and packet.use is not None:
            self.acks.append(packet.use)

    def answer(self) -> None:
        for use in self.acks:
            self.chunk("ack", use, 0, False)
        self.acks = []

    def act(self) -> None:
        what = self.rng.random()
        serving = [e for e in self.served.values() if e.state == WAITING and self.clean(e)]
        asking = [e for e in self.asked.values() if e.state in (ASKING, WAITING) and self.clean(e)]
        if what < 0.05:
            self.keep_alive()
        elif what < 0.1:
            self.answer()
        elif what < 0.2 and asking:
            exchange = self.rng.choice(asking)
            exchange.state = LOCKED
            self.chunk("cancel", exchange.use, 0, False)
        elif what < 0.6 and serving:
            self.reply(self.rng.choice(serving))
        else:
            self.ask([e for e in asking if e.state == ASKING])

    def clean(self, exchange: Exchange) -> bool:
        return (exchange.use.opener, exchange.use.number) not in self.spoilt

    def keep_alive(self, fault: Fault | None = None, number: int = -1) -> None:
        number = self.fresh() if number < 0 else number
        if number >= 0:
            length, ids = self.announced
            word = 1 << length + ids + 1 | number
            use = None if fault is None else self.asked[number].use
            self.write("alive", word.to_bytes((length + ids + 2) // 8, "little"), use, fault=fault)

    def ask(self, going: list[Exchange]) -> None:
        if going and self.rng.random() < 0.7:
            exchange = self.rng.choice(going)
            size = 0 if self.rng.random() < 0.1 else self.size(exchange.use)
            last = size == 0 or self.rng.random() < 0.5
        else:
            number = self.fresh()
            if number < 0:
                return
            exchange = self.asked[number] = Exchange(self.renewed(number))
            size, last = self.size(exchange.use), self.rng.random() < 0.6
        self.chunk("request", exchange.use, size, last)
        if last:
            exchange.state = WAITING

    def reply(self, exchange: Exchange) -> None:
        size = 0 if self.rng.random() < 0.15 else self.size(exchange.use)
        last = size == 0 or self.rng.random() < 0.6
        self.chunk("reply", exchange.use, size, last)
        if last:
            exchange.state, exchange.replied = OVER, True

    # --- faults

    def plant(self, fault: str) -> bool:
        rule = f"streamux.{fault}"
        if self.splits[1 - self.side] is None:
            return False
        asked = [e for e in self.asked.values() if self.clean(e)]
        served = [e for e in self.served.values() if self.clean(e)]
        if fault in ("reply-unknown", "ack-not-cancelled", "reply-before-end", "reply-after-cancel",
                     "cancel-unanswered"):  # fmt: skip
            return self.plant_answer(fault, rule, served)
        states = {
            "id-in-flight": (WAITING, LOCKED), "cancel-twice": (LOCKED,),
            "keepalive-busy-id": (WAITING, LOCKED), "cancel-unknown": (OVER,),
            "chunk-too-long": (ASKING,),
        }[fault]  # fmt: skip
        fitting = [e for e in asked if e.state in states]
        if not fitting:
            return False
        use = self.rng.choice(fitting).use
        found = Fault(rule, use.label, beside=fault == "cancel-unknown")
        if fault == "id-in-flight":
            self.chunk("request", use, self.size(use), self.rng.random() < 0.5, found)
        elif fault == "keepalive-busy-id":
            self.keep_alive(Fault(rule), use.number)
        elif fault == "chunk-too-long":
            if self.announced[0] < 17:
                return False
            self.chunk("request", use, 65537 + self.rng.randrange(9), False, found)
        else:
            self.chunk("cancel", use, 0, False, found)
        return True

    def plant_answer(self, fault: str, rule: str, served: list[Exchange]) -> bool:
        other = 1 - self.side
        owed = [(use.opener, use.number) for use in self.acks]
        if fault == "cancel-unanswered":
            if not self.acks:
                return False
            use = self.acks.pop()
            self.omit(Fault(rule, use.label), use)
            return True
        if fault in ("reply-unknown", "ack-not-cancelled") and self.rng.random() < 0.3:
            split = self.splits[other]
            assert split is not None
            number = (1 << split[1]) - 1
            if number in self.served or number < 12:
                return False
            use, found = Use(other, number), Fault(rule)
        else:
            fitting = [
                e for e in served
                if (e.use.opener, e.use.number) not in owed
                and (fault != "reply-unknown" or (e.state == OVER and not e.use.number >= 1 << 12))
                and (fault != "reply-before-end" or e.state == ASKING)
            ]  # fmt: skip
            if fault == "reply-after-cancel":
                return self.plant_after_cancel(rule, served)
            if not fitting:
                return False
            use = self.rng.choice(fitting).use
            found = Fault(rule, use.label)
        if fault == "ack-not-cancelled":
            self.chunk("ack", use, 0, False, found)
        else:
            self.chunk("reply", use, self.size(use), self.rng.random() < 0.5, found)
        return True

    def plant_after_cancel(self, rule: str, served: list[Exchange]) -> bool:
        """More of a reply, while the ack of the cancel that was read is still owed."""
        for exchange in served:
            if exchange.use in self.acks and exchange.asked and not exchange.replied:
                found = Fault(rule, exchange.use.label, beside=True)
                self.chunk("reply", exchange.use, self.size(exchange.use), False, found)
                return True
        return False


class Streamux(Model):
    name = "streamux"
    harmless = frozenset(
        {"reply-unknown", "ack-not-cancelled", "id-in-flight", "keepalive-busy-id"}
    )
    answers = frozenset({"ack"})
    faults = (
        "reply-unknown", "ack-not-cancelled", "id-in-flight", "cancel-twice", "keepalive-busy-id",
        "reply-before-end", "reply-after-cancel", "cancel-unknown", "cancel-unanswered",
        "bad-version", "bad-bit-counts", "mixed-header-sizes", "chunk-too-long", "truncated",
    )  # fmt: skip

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.wide = rng.randrange(2)
        splits = SPLITS[self.wide]
        self.mates = [StreamuxPeer(side, rng, rng.choice(splits)) for side in (0, 1)]
        self.peers = list(self.mates)
        self.rng = rng

    def begin(self, fault: str) -> None:
        peer = self.rng.choice(self.mates)
        found = Fault(f"streamux.{fault}", lost=True)
        if fault == "bad-version":
            peer.version, peer.flaw = self.rng.choice([0, 2, 255]), found
        elif fault == "bad-bit-counts":
            peer.announced, peer.flaw = self.rng.choice([(14, 0), (0, 30), (10, 5)]), found
        elif fault == "mixed-header-sizes":
            peer.announced, peer.flaw = self.rng.choice(SPLITS[1 - self.wide]), found

    def blamed(self, planted: Packet, passed: list[Packet]) -> Packet:
        """Of two initiators that do not fit, the one that passes second."""
        if planted.fault is not None and planted.fault.rule == "streamux.mixed-header-sizes":
            return [packet for packet in passed if packet.verb == "hello"][1]
        return planted

    def truths(self, passed: list[Packet]) -> dict[str, Truth]:
        found: dict[str, Truth] = {}
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            truth = found.setdefault(use.label, Truth())
            truth.count(packet)
            if packet.verb in ("request", "reply"):
                truth.payload[packet.sender] += packet.payload
            if packet.verb == "request" and packet.last:
                truth.ending = "half-closed"
            elif packet.verb == "reply" and packet.last and truth.ending != "cancelled":
                truth.ending = "clean"
            elif packet.verb == "cancel":
                truth.ending, truth.reset_by = "cancelled", packet.sender
        return found
