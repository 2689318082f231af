"""Two model peers and the link between them: conversations whose course is known.

A model peer encodes its frames itself and knows only what it has read, so frames cross in flight.
The models use none of polymux's codecs or rules, so the report of an observer can be compared with
what the models did. One seed makes one conversation. It is recorded at three vantage points: at
each peer and in the middle.

    peer 0 --- written --- middle --- read --- peer 1
"""

from dataclasses import dataclass, field
from random import Random

from polymux.core.protocol import Protocol
from polymux.protocols.registry import create

VANTAGE_NAMES = ("dialer", "acceptor", "middle")


@dataclass(eq=False)
class IdUse:
    """One use of a stream id. `opener` is a side, or 2 if neither side opened it."""

    opener: int
    stream_id: int
    incarnation: int = 1

    @property
    def label(self) -> str:
        text = f"{'das'[self.opener]}{self.stream_id}"
        return text if self.incarnation == 1 else f"{text}.{self.incarnation}"


@dataclass(frozen=True)
class Fault:
    """An injected fault: the rule and the stream label that an observer must report.

    `needs_sender_vantage`: only an observer at the sender can be certain of it.
    """

    rule: str
    stream: str = ""
    needs_sender_vantage: bool = False
    loses_framing: bool = False  # the rest of the direction cannot be decoded


@dataclass(eq=False)
class ModelFrame:
    """One frame: its bytes, and what it means to the models."""

    sender: int
    index: int  # among its sender's frames
    data: bytes
    verb: str
    use: IdUse | None = None
    amount: int = 0  # granted, requested, acknowledged or announced
    payload_size: int = 0  # bytes of content, at the end of `data`
    ends_half: bool = False  # it also ends its sender's half
    peer_frames_read: int = 0  # frames of the other peer that its sender had read
    fault: Fault | None = None


@dataclass
class ExpectedStream:
    """What an observer must report about one use. None: undetermined or not applicable."""

    ending: str = "open"
    reset_by: int | None = -1
    payload: list[int] = field(default_factory=lambda: [0, 0])
    granted: list[int | None] = field(default_factory=lambda: [None, None])
    frames: list[int] = field(default_factory=lambda: [0, 0])
    is_certain: bool = True

    def count_frame(self, frame: ModelFrame) -> None:
        self.frames[frame.sender] += 1


class ModelPeer:
    """One model peer. A subclass reads frames, acts at random and injects faults."""

    faults: tuple[str, ...] = ()  # the faults that `inject_fault` knows

    def __init__(self, side: int, rng: Random) -> None:
        self.side = side
        self.rng = rng
        self.unsent_frames: list[ModelFrame] = []  # written since the last flush
        self.frame_count = 0
        self.frames_read = 0
        self.omitted_frame: ModelFrame | None = None
        self.continues_after_fault = False  # is a stream still used after a fault on it?
        self.silent = False  # sends nothing after a fault that loses the framing
        self.faulted_ids: set[tuple[int, int]] = set()  # (opener, id) with a fault

    def write_frame(
        self,
        verb: str,
        data: bytes,
        use: IdUse | None = None,
        amount: int = 0,
        payload_size: int = 0,
        ends_half: bool = False,
        fault: Fault | None = None,
        is_frame: bool = True,
    ) -> ModelFrame:
        """Send a frame, or (`is_frame=False`) bytes of the encapsulation."""
        packet = ModelFrame(
            self.side,
            self.frame_count if is_frame else -1,
            data,
            verb,
            use,
            amount,
            payload_size,
            ends_half,
            self.frames_read,
            fault,
        )
        self.frame_count += is_frame
        self.unsent_frames.append(packet)
        if fault is not None:
            self.mark_faulted(packet)
        return packet

    def receive(self, packet: ModelFrame) -> None:
        """Read a frame of the other peer. Replies are sent later, when all has been read."""
        if packet.fault is not None:
            self.mark_faulted(packet)
        self.frames_read += packet.index >= 0
        if packet.fault is not None or self.is_faulted(packet):
            self.read_faulted(packet)
        else:
            self.read(packet)

    def mark_faulted(self, packet: ModelFrame) -> None:
        """Record a fault that was sent or read; mostly its id is not used any more."""
        if packet.fault is not None and packet.fault.loses_framing:
            self.silent = True
        if packet.use is not None and not self.continues_after_fault:
            self.faulted_ids.add((packet.use.opener, packet.use.stream_id))

    def is_faulted(self, packet: ModelFrame) -> bool:
        use = packet.use
        return use is not None and (use.opener, use.stream_id) in self.faulted_ids

    def read_faulted(self, packet: ModelFrame) -> None:
        """Read a faulty frame, or a later one on its id; required replies are still sent."""

    def omit_reply(self, fault: Fault, use: IdUse) -> None:
        """Inject a fault that is not a frame: a required reply that is never sent."""
        self.faulted_ids.add((use.opener, use.stream_id))
        self.omitted_frame = ModelFrame(self.side, -1, b"", "omitted", use, fault=fault)

    def start(self) -> None:
        """Send the handshake, if the protocol has one."""

    def read(self, packet: ModelFrame) -> None:
        raise NotImplementedError

    def act(self) -> None:
        """Perform a random action, or none."""
        raise NotImplementedError

    def send_replies(self) -> None:
        """Send the replies that are due."""

    def inject_fault(self, fault: str) -> bool:
        """Inject this fault if the state allows it now. Return whether it did."""
        raise NotImplementedError


class ProtocolModel:
    """The model of one protocol: its peers, and what an observer must report."""

    name = ""
    faults: tuple[str, ...] = ()
    honest_notes: frozenset[str] = frozenset()  # notes that may be reported about honest peers
    reply_verbs: frozenset[str] = (
        frozenset()
    )  # required replies: a truncated one is reported missing
    survivable_faults: frozenset[str] = frozenset()  # the frame is ignored, its stream goes on
    missing_reply_rules: frozenset[str] = frozenset()  # may be reported as a result of a fault
    messages = False  # an incomplete frame does not count for its stream

    def __init__(self, rng: Random) -> None:
        self.protocol_string = self.name
        self.peers: list[ModelPeer] = []

    def observer_protocol(self, vantage: int) -> Protocol:
        """Return the protocol implementation for an observer at this vantage point."""
        return create(self.protocol_string, vantage=vantage)

    def prepare_fault(self, fault: str) -> None:
        """Prepare the fault if it is one of the handshake."""

    def frame_to_report(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> ModelFrame:
        """Return the frame that must be reported, given the order of frames at a vantage point."""
        return faulty_frame

    def expected_streams(self, passed: list[ModelFrame]) -> dict[str, ExpectedStream]:
        """Return what must be reported about each stream, by label, from the frames in order."""
        raise NotImplementedError

    def expected_peaks(self, completed: list[ModelFrame]) -> dict[str, list[int]]:
        """Return the peak of unacknowledged bytes per half, by label."""
        return {}

    def is_certain(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> bool:
        """Return whether no earlier frame can excuse this fault, whatever its sender had read.

        By default: its sender had read all earlier frames on its id.
        """
        use = faulty_frame.use
        return use is None or not any(
            packet.sender != faulty_frame.sender and packet.index >= faulty_frame.peer_frames_read
            for packet in passed[: passed.index(faulty_frame)]
            if packet.use is not None
            and (packet.use.opener, packet.use.stream_id) == (use.opener, use.stream_id)
        )


class ModelDirection:
    """One direction: all its bytes, and how far they were delivered."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.frames: list[ModelFrame] = []
        self.frame_ends: list[int] = []
        self.bytes_passed = 0  # at the middle
        self.bytes_read = 0  # by the receiving peer
        self.frames_read = 0  # by the receiving peer

    def add(self, frame: ModelFrame) -> None:
        self.data += frame.data
        self.frames.append(frame)
        self.frame_ends.append(len(self.data))


class VantageTrace:
    """What is observed at one vantage point: the bytes in their order, and the frames."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, bytes]] = []
        self.passed_frames: list[ModelFrame] = []
        self.completed_frames: list[ModelFrame] = []  # the same frames, ordered by their last bytes
        self.bytes_seen = [0, 0]
        self.passed_counts = [0, 0]
        self.completed_counts = [0, 0]

    def record(self, side: int, direction: ModelDirection, upto: int) -> None:
        """Record the bytes of a direction up to an offset, and the frames in them."""
        if upto == self.bytes_seen[side]:
            return
        self.chunks.append((side, bytes(direction.data[self.bytes_seen[side] : upto])))
        self.bytes_seen[side] = upto
        while self.passed_counts[side] < len(direction.frames):
            packet = direction.frames[self.passed_counts[side]]
            if direction.frame_ends[self.passed_counts[side]] - packet.payload_size > upto:
                break  # content counts at its header, other frames when they are complete
            self.passed_frames.append(packet)
            self.passed_counts[side] += 1
        while (
            self.completed_counts[side] < len(direction.frames)
            and direction.frame_ends[self.completed_counts[side]] <= upto
        ):
            self.completed_frames.append(direction.frames[self.completed_counts[side]])
            self.completed_counts[side] += 1


class ModelConversation:
    """One conversation. `fault` is injected once, as soon as a peer can."""

    def __init__(
        self, model_type: type[ProtocolModel], seed: int, fault: str = "", steps: int = 0
    ) -> None:
        self.rng = Random(f"{seed} {fault}")
        self.model = model_type(self.rng)
        self.peers = self.model.peers
        self.directions = (ModelDirection(), ModelDirection())
        self.traces = {name: VantageTrace() for name in VANTAGE_NAMES}
        self.fault = fault
        self.faulty_frame: ModelFrame | None = None
        self.model.prepare_fault(fault)
        survives = fault in self.model.survivable_faults and self.rng.random() < 0.7
        for peer in self.peers:
            peer.continues_after_fault = survives
            peer.start()
            self.faulty_frame = next(
                (p for p in peer.unsent_frames if p.fault is not None), self.faulty_frame
            )
            self.flush(peer.side)
        steps = steps or self.rng.randrange(40, 220)
        first_fault_step = self.rng.randrange(steps) if fault else -1
        self.reply_probability = self.rng.choice([0.2, 0.5, 0.8])  # of replies sent at once
        for step in range(steps):
            self.step(inject=bool(fault) and step >= first_fault_step)
        for _ in range(300):
            if not fault or self.faulty_frame is not None:
                break
            self.step(inject=True)
        self.drain()

    def step(self, inject: bool) -> None:
        """Deliver some bytes, or let a peer act; with `inject`, inject the fault if possible."""
        rng = self.rng
        side = rng.randrange(2)
        move = rng.randrange(6)
        if move == 0:
            self.deliver_to_middle(side)
        elif move < 3:
            self.deliver_to_reader(side)
        elif not self.peers[side].silent:
            peer = self.peers[side]
            if not (inject and self.faulty_frame is None and self.inject_fault(peer)):
                peer.act()
            self.flush(side)

    def inject_fault(self, peer: ModelPeer) -> bool:
        wire = self.directions[1 - peer.side]
        if wire.bytes_read != (wire.frame_ends[wire.frames_read - 1] if wire.frames_read else 0):
            return False  # within a frame, what the peer has read is not well defined
        if not peer.inject_fault(self.fault):
            return False
        self.faulty_frame = peer.omitted_frame or next(
            p for p in peer.unsent_frames if p.fault is not None
        )
        return True

    def flush(self, side: int) -> None:
        """Send what a peer has written; it is observed at its side."""
        wire = self.directions[side]
        for packet in self.peers[side].unsent_frames:
            wire.add(packet)
        self.peers[side].unsent_frames = []
        self.traces[VANTAGE_NAMES[side]].record(side, wire, len(wire.data))

    def deliver_to_middle(self, side: int, everything: bool = False) -> None:
        wire = self.directions[side]
        wire.bytes_passed = self.advance(wire.bytes_passed, len(wire.data), everything)
        self.traces["middle"].record(side, wire, wire.bytes_passed)

    def deliver_to_reader(self, side: int, everything: bool = False) -> None:
        wire = self.directions[side]
        if wire.bytes_passed == wire.bytes_read:
            self.deliver_to_middle(side, everything)
        reader = self.peers[1 - side]
        wire.bytes_read = self.advance(wire.bytes_read, wire.bytes_passed, everything)
        self.traces[VANTAGE_NAMES[1 - side]].record(side, wire, wire.bytes_read)
        while (
            wire.frames_read < len(wire.frames)
            and wire.frame_ends[wire.frames_read] <= wire.bytes_read
        ):
            reader.receive(wire.frames[wire.frames_read])
            wire.frames_read += 1
        if not reader.silent and (everything or self.rng.random() < self.reply_probability):
            reader.send_replies()
            self.flush(reader.side)

    def advance(self, now: int, limit: int, everything: bool) -> int:
        if everything or now == limit:
            return limit
        return min(limit, now + self.rng.choice([1, 3, 8, 30, 30, 200, 200, 100_000]))

    def drain(self) -> None:
        """Deliver everything, until no replies are left."""
        for _ in range(50):
            for side in (0, 1):
                self.deliver_to_middle(side, True)
                self.deliver_to_reader(side, True)
            if all(wire.bytes_read == len(wire.data) for wire in self.directions):
                return
