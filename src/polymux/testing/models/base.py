"""Two model peers and the link between them: conversations whose truth is known.

A model peer encodes its frames itself and knows only what it has read, so that frames cross in
flight. The models use none of polymux's codecs or rules: what an observer reports of such a
conversation is compared with what the models did. One seed makes one conversation; it is recorded
beside each peer and in the middle.

    peer 0 --- written --- middle --- read --- peer 1
"""

from dataclasses import dataclass, field
from random import Random

from polymux.core.protocol import Protocol
from polymux.protocols.registry import create

PLACES = ("dialer", "acceptor", "middle")


@dataclass(eq=False)
class Use:
    """One use of a stream id. `opener` 2: opened by neither side."""

    opener: int
    number: int
    incarnation: int = 1

    @property
    def label(self) -> str:
        text = f"{'das'[self.opener]}{self.number}"
        return text if self.incarnation == 1 else f"{text}.{self.incarnation}"


@dataclass(frozen=True)
class Fault:
    """What was planted: the rule that an observer must name, and the stream it must name.

    `beside`: only a place beside the sender can be sure of it.
    """

    rule: str
    stream: str = ""
    beside: bool = False
    lost: bool = False  # the rest of the direction cannot be read


@dataclass(eq=False)
class Packet:
    """One frame: its bytes, and what it means to the models."""

    sender: int
    index: int  # among its sender's frames
    data: bytes
    verb: str
    use: Use | None = None
    amount: int = 0  # what it grants, asks for, acknowledges or limits
    payload: int = 0  # bytes of content, at the end of `data`
    last: bool = False  # it ends its sender's half as well
    known: int = 0  # frames of the other peer that its sender had read
    fault: Fault | None = None


@dataclass
class Truth:
    """What is known of one use. `None`: not determined, or not there."""

    ending: str = "open"
    reset_by: int | None = -1
    payload: list[int] = field(default_factory=lambda: [0, 0])
    granted: list[int | None] = field(default_factory=lambda: [None, None])
    frames: list[int] = field(default_factory=lambda: [0, 0])
    sure: bool = True

    def count(self, packet: Packet) -> None:
        self.frames[packet.sender] += 1


class Peer:
    """One model peer. A subclass reads packets, acts at random, and plants faults."""

    faults: tuple[str, ...] = ()  # what `plant` knows

    def __init__(self, side: int, rng: Random) -> None:
        self.side = side
        self.rng = rng
        self.sent: list[Packet] = []  # written since the conversation last looked
        self.count = 0
        self.taken = 0  # frames read
        self.omitted: Packet | None = None
        self.goes_on = False  # is a stream used on after a fault on it?
        self.silent = False  # nothing after a fault that loses the frame boundaries
        self.spoilt: set[tuple[int, int]] = set()  # (opener, id) that a fault has muddled

    def write(
        self, verb: str, data: bytes, use: Use | None = None, amount: int = 0, payload: int = 0,
        last: bool = False, fault: Fault | None = None, frame: bool = True,
    ) -> Packet:  # fmt: skip
        """Send a frame; `frame=False`: bytes of a carrier that are no frame."""
        packet = Packet(self.side, self.count if frame else -1, data, verb, use, amount, payload,
                        last, self.taken, fault)  # fmt: skip
        self.count += frame
        self.sent.append(packet)
        if fault is not None:
            self.spoil(packet)
        return packet

    def take(self, packet: Packet) -> None:
        """Read a frame of the other peer. Nothing is sent here: what came with it is read first."""
        if packet.fault is not None:
            self.spoil(packet)
        self.taken += packet.index >= 0
        if packet.fault is not None or self.is_spoilt(packet):
            self.suffer(packet)
        else:
            self.read(packet)

    def spoil(self, packet: Packet) -> None:
        """A fault was sent or read: its stream is left alone, or goes on as if it had not been."""
        if packet.fault is not None and packet.fault.lost:
            self.silent = True
        if packet.use is not None and not self.goes_on:
            self.spoilt.add((packet.use.opener, packet.use.number))

    def is_spoilt(self, packet: Packet) -> bool:
        use = packet.use
        return use is not None and (use.opener, use.number) in self.spoilt

    def suffer(self, packet: Packet) -> None:
        """Read a fault, or what follows it. What it asks for is answered all the same."""

    def omit(self, fault: Fault, use: Use) -> None:
        """Plant a fault that is no frame: something owed that never comes."""
        self.spoilt.add((use.opener, use.number))
        self.omitted = Packet(self.side, -1, b"", "omitted", use, fault=fault)

    def start(self) -> None:
        """Send what comes before everything else."""

    def read(self, packet: Packet) -> None:
        raise NotImplementedError

    def act(self) -> None:
        """Do something at random, or nothing."""
        raise NotImplementedError

    def answer(self) -> None:
        """Send what is owed."""

    def plant(self, fault: str) -> bool:
        """Commit this fault, if the state allows it now."""
        raise NotImplementedError


class Model:
    """A protocol's peers, the string an observer is made with, and what the frames amount to."""

    name = ""
    faults: tuple[str, ...] = ()
    notes: frozenset[str] = frozenset()  # what may be noted of honest peers
    answers: frozenset[str] = frozenset()  # what is owed: a capture that lacks it says so
    harmless: frozenset[str] = frozenset()  # faults that a stream survives: the frame is dropped
    debts: frozenset[str] = frozenset()  # rules about what is owed: a fault may leave it so
    messages = False  # is a frame cut short not yet a frame of its stream?

    def __init__(self, rng: Random) -> None:
        self.text = self.name
        self.peers: list[Peer] = []

    def observed(self, vantage: int) -> Protocol:
        """The rule book of an observer at a place."""
        return create(self.text, vantage=vantage)

    def begin(self, fault: str) -> None:
        """Prepare a fault that comes before everything else, if this is one."""

    def blamed(self, planted: Packet, passed: list[Packet]) -> Packet:
        """The frame that a place must blame, by the order in which the frames passed there."""
        return planted

    def truths(self, passed: list[Packet]) -> dict[str, Truth]:
        """By label, from the frames in the order in which they passed."""
        raise NotImplementedError

    def peaks(self, whole: list[Packet]) -> dict[str, list[int]]:
        """By label, most bytes sent and not acknowledged; from frames in order of their ends."""
        return {}

    def certain(self, planted: Packet, passed: list[Packet]) -> bool:
        """Could nothing that passed before excuse this fault, whatever its sender had read?

        Here: nothing passed about its id that its sender had not read.
        """
        use = planted.use
        return use is None or not any(
            packet.sender != planted.sender and packet.index >= planted.known
            for packet in passed[: passed.index(planted)]
            if packet.use is not None
            and (packet.use.opener, packet.use.number) == (use.opener, use.number)
        )


class Wire:
    """One direction: all its bytes, and how far they have come."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.packets: list[Packet] = []
        self.ends: list[int] = []
        self.passed = 0  # bytes that have passed the middle
        self.read = 0  # bytes that the reader has
        self.taken = 0  # frames that the reader has

    def add(self, packet: Packet) -> None:
        self.data += packet.data
        self.packets.append(packet)
        self.ends.append(len(self.data))


class Place:
    """What is seen at one place: the bytes in their order, and the frames."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, bytes]] = []
        self.passed: list[Packet] = []
        self.whole: list[Packet] = []  # the same frames, by their last bytes
        self.seen = [0, 0]  # bytes
        self.told = [0, 0]  # frames
        self.ended = [0, 0]  # frames that are whole

    def see(self, side: int, wire: Wire, upto: int) -> None:
        if upto == self.seen[side]:
            return
        self.chunks.append((side, bytes(wire.data[self.seen[side] : upto])))
        self.seen[side] = upto
        while self.told[side] < len(wire.packets):
            packet = wire.packets[self.told[side]]
            if wire.ends[self.told[side]] - packet.payload > upto:
                break  # content is decided by its header, everything else when it is whole
            self.passed.append(packet)
            self.told[side] += 1
        while self.ended[side] < len(wire.packets) and wire.ends[self.ended[side]] <= upto:
            self.whole.append(wire.packets[self.ended[side]])
            self.ended[side] += 1


class Talk:
    """One conversation. `fault`: planted once, as soon as a peer can."""

    def __init__(self, make: type[Model], seed: int, fault: str = "", steps: int = 0) -> None:
        self.rng = Random(f"{seed} {fault}")
        self.model = make(self.rng)
        self.peers = self.model.peers
        self.wires = (Wire(), Wire())
        self.places = {name: Place() for name in PLACES}
        self.fault = fault
        self.planted: Packet | None = None
        self.model.begin(fault)
        goes_on = fault in self.model.harmless and self.rng.random() < 0.7
        for peer in self.peers:
            peer.goes_on = goes_on
            peer.start()
            self.planted = next((p for p in peer.sent if p.fault is not None), self.planted)
            self.flush(peer.side)
        steps = steps or self.rng.randrange(40, 220)
        begin = self.rng.randrange(steps) if fault else -1
        self.eager = self.rng.choice([0.2, 0.5, 0.8])  # how often an answer is given at once
        for step in range(steps):
            self.step(plant=bool(fault) and step >= begin)
        for _ in range(300):
            if not fault or self.planted is not None:
                break
            self.step(plant=True)
        self.drain()

    def step(self, plant: bool) -> None:
        rng = self.rng
        side = rng.randrange(2)
        move = rng.randrange(6)
        if move == 0:
            self.carry(side)
        elif move < 3:
            self.deliver(side)
        elif not self.peers[side].silent:
            peer = self.peers[side]
            if not (plant and self.planted is None and self.plant(peer)):
                peer.act()
            self.flush(side)

    def plant(self, peer: Peer) -> bool:
        wire = self.wires[1 - peer.side]
        if wire.read != (wire.ends[wire.taken - 1] if wire.taken else 0):
            return False  # in the middle of a frame it is not clear what the peer knows
        if not peer.plant(self.fault):
            return False
        self.planted = peer.omitted or next(p for p in peer.sent if p.fault is not None)
        return True

    def flush(self, side: int) -> None:
        """What a peer has written is on its way, and seen beside it."""
        wire = self.wires[side]
        for packet in self.peers[side].sent:
            wire.add(packet)
        self.peers[side].sent = []
        self.places[PLACES[side]].see(side, wire, len(wire.data))

    def carry(self, side: int, everything: bool = False) -> None:
        wire = self.wires[side]
        wire.passed = self.further(wire.passed, len(wire.data), everything)
        self.places["middle"].see(side, wire, wire.passed)

    def deliver(self, side: int, everything: bool = False) -> None:
        wire = self.wires[side]
        if wire.passed == wire.read:
            self.carry(side, everything)
        reader = self.peers[1 - side]
        wire.read = self.further(wire.read, wire.passed, everything)
        self.places[PLACES[1 - side]].see(side, wire, wire.read)
        while wire.taken < len(wire.packets) and wire.ends[wire.taken] <= wire.read:
            reader.take(wire.packets[wire.taken])
            wire.taken += 1
        if not reader.silent and (everything or self.rng.random() < self.eager):
            reader.answer()
            self.flush(reader.side)

    def further(self, now: int, most: int, everything: bool) -> int:
        if everything or now == most:
            return most
        return min(most, now + self.rng.choice([1, 3, 8, 30, 30, 200, 200, 100_000]))

    def drain(self) -> None:
        """All that was written is read and answered."""
        for _ in range(50):
            for side in (0, 1):
                self.carry(side, True)
                self.deliver(side, True)
            if all(wire.read == len(wire.data) for wire in self.wires):
                return
