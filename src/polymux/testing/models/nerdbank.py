"""Model peers of Nerdbank MultiplexingStream: offers, windows, half closes and terminations."""

from random import Random

from polymux.testing.models.base import Fault, Model, Packet, Peer, Truth, Use
from polymux.testing.models.nerdbank_faults import FAULTS, plant
from polymux.testing.models.nerdbank_wire import CODES, body, frame, handshake

SEEDED = 2  # the opener of a channel that both sides were configured with


class Channel:
    """A channel as one peer knows it. `window`: bytes this peer may still send; -1: no limit."""

    def __init__(self, use: Use, mine: bool) -> None:
        self.use = use
        self.mine = mine  # did this peer offer it?
        self.accepted = use.opener == SEEDED
        self.completed = False
        self.ended = False  # the other side has completed
        self.terminated = False
        self.over = False  # the other side has terminated
        self.window = 0
        self.room = 0  # the window that this peer has announced
        self.unprocessed = 0  # bytes read and not acknowledged
        self.asked = False  # for a larger window
        self.unread = False  # this peer will read no more
        self.refused = False  # the other side will read no more

    @property
    def quiet(self) -> bool:
        return self.terminated or self.over


class NerdbankPeer(Peer):
    def __init__(self, side: int, rng: Random, model: "Nerdbank") -> None:
        super().__init__(side, rng)
        self.model = model
        self.version = model.version
        self.random = rng.randbytes(16)
        self.greeting = handshake(self.version, self.random) if self.version < 3 else b""
        self.flaw: Fault | None = None
        self.next = len(model.seeded) + 1  # of v3; else known once the handshakes are
        self.ready = self.version == 3
        self.channels: dict[tuple[int, int], Channel] = {}
        for number, window in enumerate(model.seeded):
            channel = Channel(model.seeds[number], False)
            channel.window = channel.room = window
            self.channels[SEEDED, number] = channel
        self.growth: list[Channel] = []  # requests to be answered

    def start(self) -> None:
        if self.version < 3:
            self.write("hello", self.greeting, fault=self.flaw)

    # --- frames

    def source(self, use: Use) -> int:
        return 0 if use.opener == SEEDED else 1 if use.opener == self.side else -1

    def put(
        self, verb: str, use: Use, amount: int = 0, words: bytes = b"", fault: Fault | None = None
    ) -> Packet:
        payload = words if verb == "content" else body(self.version, verb, amount, words)
        data = frame(self.version, CODES[verb], use.number, self.source(use), payload, self.rng)
        size = len(words) if verb == "content" else 0
        return self.write(verb, data, use, amount, size, fault=fault)

    # --- conduct

    def read(self, packet: Packet) -> None:
        if packet.verb == "hello":
            self.ready = True
            if self.version < 3:
                self.next = 1 if self.random > self.model.mates[1 - self.side].random else 2
            return
        use = packet.use
        assert use is not None
        if packet.verb == "offer":
            channel = self.channels[use.opener, use.number] = Channel(use, False)
            channel.window = packet.amount if self.version > 1 else -1
            return
        channel = self.channels[use.opener, use.number]
        if packet.verb == "terminate":
            channel.over = True
        elif channel.over:
            return
        elif packet.verb == "accept":
            channel.accepted = True
            channel.window = packet.amount if self.version > 1 else -1
        elif packet.verb == "content":
            channel.unprocessed += packet.payload
        elif packet.verb == "complete":
            channel.ended = True
        elif packet.verb == "processed":
            channel.window += packet.amount
        elif packet.verb == "unread":
            channel.refused = True
        elif packet.verb == "grow":
            self.growth.append(channel)
        elif packet.verb == "adjust":
            channel.asked = False
            channel.window += packet.amount  # the model says by how much

    def live(self) -> list[Channel]:
        return [
            channel for key, channel in self.channels.items()
            if not channel.quiet and key not in self.spoilt
        ]  # fmt: skip

    def act(self) -> None:
        if not self.ready:
            return
        live = self.live()
        if len(live) < 5 and (not live or self.rng.random() < 0.2):
            self.offer()
            return
        if not live:
            return
        channel = self.rng.choice(live)
        what = self.rng.random()
        if not channel.accepted and not channel.mine:
            self.decide(channel, what)
        elif what < 0.07:
            self.terminate(channel)
        elif what < 0.3 and channel.unprocessed > 0 and self.version > 1:
            self.process(channel)
        elif what < 0.45 and not channel.completed:
            self.complete(channel)
        elif what < 0.5 and self.version > 1 and not channel.unread:
            channel.unread = True
            self.put("unread", channel.use)
        elif not channel.completed and not channel.refused:
            self.send(channel)

    def offer(self) -> None:
        use = Use(self.side, self.next)
        self.next += 1 if self.version == 3 else 2
        channel = self.channels[self.side, use.number] = Channel(use, True)
        channel.window = 0 if self.version > 1 else -1
        channel.room = self.rng.choice([1, 50, 300, 102400])
        self.put("offer", use, channel.room, self.rng.choice([b"", b"echo", b"logs"]))

    def decide(self, channel: Channel, what: float) -> None:
        if what < 0.15:
            self.terminate(channel)
        elif what < 0.8:
            channel.accepted = True
            channel.room = self.rng.choice([1, 20, 300, 102400])
            self.put("accept", channel.use, channel.room)

    def terminate(self, channel: Channel) -> None:
        channel.terminated = True
        words = self.rng.choice([b"", b"Error: gone"])
        self.put("terminate", channel.use, 0, words)

    def process(self, channel: Channel) -> None:
        amount = self.rng.choice([channel.unprocessed, self.rng.randrange(channel.unprocessed) + 1])
        channel.unprocessed -= amount
        self.put("processed", channel.use, amount)

    def complete(self, channel: Channel) -> None:
        channel.completed = True
        self.put("complete", channel.use)

    def send(self, channel: Channel) -> None:
        size = self.rng.choice([1, 30, 200, 700])
        if channel.window >= 0:
            size = min(size, channel.window)
            if size == 0:
                if channel.accepted and self.version > 1 and not channel.asked:
                    channel.asked = True
                    self.put("grow", channel.use)
                return
            channel.window -= size
        self.put("content", channel.use, 0, self.rng.randbytes(size))

    def answer(self) -> None:
        """Terminations, completions after a refusal, and windows that were asked to grow."""
        for channel in self.growth:
            if not channel.quiet and (channel.use.opener, channel.use.number) not in self.spoilt:
                more = self.rng.choice([0, 0, 100])
                channel.room += more
                data = frame(self.version, CODES["adjust"], channel.use.number,
                             self.source(channel.use), body(self.version, "adjust", channel.room,
                                                            b""), self.rng)  # fmt: skip
                self.write("adjust", data, channel.use, more)
        self.growth = []
        for key, channel in self.channels.items():
            if key in self.spoilt or channel.terminated:
                continue
            if channel.over or (channel.completed and channel.ended):
                self.terminate(channel)
            elif channel.refused and not channel.completed and (channel.accepted or channel.mine):
                self.complete(channel)

    def plant(self, fault: str) -> bool:
        return self.ready and plant(self, fault)


class Nerdbank(Model):
    name = "nerdbank"
    harmless = frozenset(
        {
            "unknown-code",
            "completed-twice",
            "content-after-completed",
            "frame-after-termination",
            "terminated-twice",
            "bad-acceptance",
            "window-shrunk",
        }
    )
    faults = FAULTS
    debts = frozenset({"nerdbank.termination-unanswered", "nerdbank.not-terminated"})
    answers = frozenset({"terminate"})

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.version = rng.choice([1, 2, 3, 3])
        self.text = f"nerdbank:version={self.version}"
        self.seeded: list[int] = []
        if self.version == 3 and rng.random() < 0.4:
            self.seeded = [rng.choice([5, 500, 102400]) for _ in range(rng.randrange(1, 4))]
            self.text += f",seeded={'+'.join(map(str, self.seeded))}"
        self.seeds = [Use(SEEDED, number) for number in range(len(self.seeded))]
        self.stopped: set[Use] = set()  # channels that somebody has terminated
        self.left: set[Use] = set()  # channels that nobody will terminate
        self.mates = [NerdbankPeer(side, rng, self) for side in (0, 1)]
        self.peers = list(self.mates)
        self.rng = rng

    def begin(self, fault: str) -> None:
        peer = self.rng.choice(self.mates)
        found = Fault(f"nerdbank.{fault}", lost=True)
        if fault == "bad-magic" and self.version == 1:
            peer.greeting, peer.flaw = b"\x2f\xdf\x1d\x51" + peer.random, found
        elif fault == "bad-handshake" and self.version == 2:
            peer.greeting, peer.flaw = b"\x92\x92\x02\x00\xc4\x0f" + peer.random[1:], found
        elif fault == "version-mismatch" and self.version == 2:
            peer.greeting, peer.flaw = handshake(2, peer.random, 3), found
        elif fault == "equal-randoms" and self.version < 3:
            peer.greeting = handshake(self.version, self.mates[1 - peer.side].random)
            peer.flaw = Fault(found.rule, lost=True)

    def blamed(self, planted: Packet, passed: list[Packet]) -> Packet:
        """Of two equal handshakes the second; of a channel that nobody terminates its opener."""
        rule = planted.fault.rule if planted.fault is not None else ""
        if rule == "nerdbank.equal-randoms":
            return [packet for packet in passed if packet.verb == "hello"][1]
        if rule == "nerdbank.not-terminated" and planted.use is not None:
            planted.sender = planted.use.opener % SEEDED
        return planted

    def certain(self, planted: Packet, passed: list[Packet]) -> bool:
        rule = planted.fault.rule.partition(".")[2] if planted.fault is not None else ""
        return rule in ALWAYS or super().certain(planted, passed)

    def peaks(self, whole: list[Packet]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        pending: dict[tuple[Use, int], int] = {}
        for packet in whole:
            use, side = packet.use, packet.sender
            if use is None or self.version == 1:
                continue
            peak = found.setdefault(use.label, [0, 0])
            if packet.verb == "processed":
                pending[use, 1 - side] -= packet.amount
            elif packet.verb == "content":
                pending[use, side] = pending.get((use, side), 0) + packet.payload
                peak[side] = max(peak[side], pending[use, side])
        return found

    def truths(self, passed: list[Packet]) -> dict[str, Truth]:
        found: dict[str, Truth] = {}
        done: dict[Use, set[int]] = {}
        accepted = set(self.seeds)
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            if use.label not in found:
                found[use.label] = Truth("open" if use.opener == SEEDED else "never-accepted")
                if self.version > 1:
                    start: int | None = self.seeded[use.number] if use.opener == SEEDED else 0
                    found[use.label].granted = [start, start]
            truth, ends = found[use.label], done.setdefault(use, set())
            side, other = packet.sender, 1 - packet.sender
            truth.count(packet)
            if packet.verb == "accept":
                accepted.add(use)
            if packet.verb in ("offer", "accept") and self.version > 1:
                truth.granted[other] = packet.amount
            elif packet.verb in ("processed", "adjust"):
                truth.granted[other] = (truth.granted[other] or 0) + packet.amount
            elif packet.verb == "content":
                truth.payload[side] += packet.payload
            elif packet.verb == "complete":
                ends.add(side)
            elif packet.verb == "terminate" and truth.reset_by == -1:
                truth.reset_by = side
                if use not in accepted:
                    truth.ending = "cancelled" if use.opener == side else "rejected"
                else:
                    truth.ending = "clean" if len(ends) == 2 else "reset"
            if truth.reset_by == -1 and use in accepted:
                truth.ending = ("open", "half-closed", "clean")[len(ends)]
        return found


ALWAYS = {
    "content-after-completed", "completed-twice", "frame-after-termination", "terminated-twice",
    "content-before-acceptance", "payload-too-long",
}  # fmt: skip
