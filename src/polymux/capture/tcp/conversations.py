"""Connections of the same endpoints that are alive at once in the same files, told apart.

Problem: two hosts in different private networks may use the same addresses and ports at the same
time, and a capture may have the packets of both: of a tap behind the translation of addresses, or
merged from two captures. Divided where a SYN is, as one connection after another, each session
would have packets of the other connection.

Idea: `FlowOrder` notes that bytes go on where a connection was before another one replaced it
(`ConnectionSplitter`), far from where that one is. Such flows, and only these, are looked at again:
every packet joins the conversation whose position in both directions is nearest to its own, and a
SYN with another initial sequence number begins one. Conversations that follow each other in time
are put into one lane, so that each lane is a flow as usual: what starts a session in it is decided
as ever. A SYN that nothing answers begins no conversation.

Two connections whose start was not captured are not told apart, nor are those whose positions are
within `MAX_POSITION_DISTANCE` of each other in both directions, which one pair in a thousand is.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from polymux.capture.packets.packet_refs import ACK, CAPTURED_MASK, FIN, RST, SYN
from polymux.capture.tcp.flow_order import MAX_POSITION_DISTANCE, FlowOrder, follows_syn

_unpack_ref = struct.Struct("<qqqq").unpack_from
_SPACE = 1 << 32  # sequence numbers
_LOW32 = _SPACE - 1
_SYN, _ACK, _FIN, _RST = int(SYN), int(ACK), int(FIN), int(RST)
_CAPTURED_MASK = int(CAPTURED_MASK)
MAX_ALIVE = 8  # conversations that packets may join: those used last
NO_LANE = 255  # of a packet that was seen twice


@dataclass(slots=True)
class Packet:
    """What tells the connection of a packet; `size` is that of its payload."""

    side: int
    seq: int
    ack: int
    flags: int
    size: int


@dataclass(slots=True, eq=False)
class Conversation:
    """One connection, or several that began after the one before had ended."""

    number: int
    first: int
    """The index of its first packet, and of its last."""
    last: int
    host: int = -1
    """The conversation that goes on if this is a SYN that nothing answers; -1 if there is none."""
    isns: list[int] = field(default_factory=lambda: [-1, -1])
    places: list[int] = field(default_factory=lambda: [-1, -1])
    """The sequence number after each side's last packet; -1 if unknown."""
    ended: list[bool] = field(default_factory=lambda: [False, False])
    answered: bool = False
    """Whether more was captured of it than SYNs of one side."""

    def restart(self) -> None:
        """Begin the next connection."""
        self.isns, self.places, self.ended = [-1, -1], [-1, -1], [False, False]

    def distance(self, packet: Packet) -> int:
        """How far a packet is from its position, in the direction in which it is further away.

        In the nearer one for a RST, one of whose numbers may mean nothing.
        """
        distances = []
        if self.places[packet.side] >= 0:
            distances.append(_distance(packet.seq, self.places[packet.side]))
        if packet.flags & _ACK and self.places[1 - packet.side] >= 0:
            distances.append(_distance(packet.ack, self.places[1 - packet.side]))
        if not distances:
            return _SPACE
        return min(distances) if packet.flags & _RST else max(distances)

    def add(self, packet: Packet, index: int) -> None:
        """Go on with a packet."""
        side, flags = packet.side, packet.flags
        self.last = index
        begins = bool(flags & _SYN)
        self.answered |= not begins or self.isns[1 - side] >= 0
        if begins:
            self.isns[side] = packet.seq
        if flags & _RST:
            self.ended = [True, True]
            return
        self.places[side] = (packet.seq + packet.size + begins) & _LOW32
        place = self.places[1 - side]
        if flags & _ACK and (place < 0 or (packet.ack - place) & _LOW32 < _SPACE // 2):
            self.places[1 - side] = packet.ack
        if flags & _FIN:
            self.ended[side] = True


class Conversations:
    """Assigns the packets of one flow, in their order, to conversations."""

    def __init__(self) -> None:
        self.all: list[Conversation] = []
        self._alive: list[Conversation] = []  # the one used last is the last

    def add(self, packet: Packet, index: int) -> int:
        """Return the number of the conversation of the next packet."""
        found = self._of_syn(packet) if packet.flags & _SYN else self._nearest(packet)
        if found is None:
            found = self._begin(index)
        found.add(packet, index)
        if found is not self._alive[-1]:
            self._alive.remove(found)
            self._alive.append(found)
        return found.number

    def _of_syn(self, packet: Packet) -> Conversation | None:
        """The conversation of a SYN; None if it begins one."""
        for known in reversed(self._alive):
            dialed = known.isns[1 - packet.side]
            if known.isns[packet.side] == packet.seq:
                return known
            if packet.flags & _ACK and dialed >= 0 and follows_syn(dialed, packet.ack):
                return known
        for known in reversed(self._alive):
            if all(known.ended):
                known.restart()
                return known
        return None

    def _nearest(self, packet: Packet) -> Conversation | None:
        """The conversation of any other packet: the one used last if it is far from all."""
        if not self._alive:
            return None
        nearest = min(reversed(self._alive), key=lambda known: known.distance(packet))
        return nearest if nearest.distance(packet) <= MAX_POSITION_DISTANCE else self._alive[-1]

    def _begin(self, index: int) -> Conversation:
        host = self._alive[-1].number if self._alive else -1
        begun = Conversation(len(self.all), index, index, host)
        self.all.append(begun)
        self._alive.append(begun)
        del self._alive[:-MAX_ALIVE]
        return begun

    def lanes(self) -> list[int]:
        """The lane of each conversation: those in one lane follow each other."""
        lanes = [-1] * len(self.all)
        ends: list[int] = []  # index of the last packet of each lane
        for known in self.all:  # by their first packets
            if not known.answered and known.host >= 0:
                lanes[known.number] = lanes[known.host]
                continue
            free = [lane for lane, end in enumerate(ends) if end < known.first]
            lane = max(free, key=lambda lane: ends[lane], default=len(ends))
            ends[lane : lane + 1] = [known.last]
            lanes[known.number] = lane
        return lanes


def lanes_of(order: FlowOrder) -> list[bytes]:
    """The lanes of an arranged flow: for each of its blocks, the lane of each packet, a byte.

    Empty if all packets are of one lane. Takes a few bytes of memory for each packet.
    """
    conversations = Conversations()
    numbers = array("i")
    for index in range(int(order.count)):
        numbers.append(conversations.add(_packet(order, index), index))
    lanes = conversations.lanes()
    if max(lanes, default=0) == 0:
        return []
    found = [bytearray([NO_LANE]) * int(block.count) for block in order.ref_blocks]
    for index, number in enumerate(numbers):
        entry = int(order.order[index])
        found[entry >> 32][entry & _LOW32] = lanes[number]
    return [bytes(block) for block in found]


def lane_numbers(lanes: Iterable[bytes]) -> list[int]:
    """The numbers of all lanes, ascending."""
    return sorted({lane for block in lanes for lane in set(block)} - {NO_LANE})


def _packet(order: FlowOrder, index: int) -> Packet:
    entry = int(order.order[index])
    block = order.ref_blocks[entry >> 32]
    position = int(block.seek(entry & _LOW32))  # before `refs` is read: it may load a window
    offset, _, seq_ack, header = _unpack_ref(block.refs, position)
    size = (offset & _CAPTURED_MASK) + (header >> 32)
    return Packet(
        int(block.direction), seq_ack >> 32 & _LOW32, seq_ack & _LOW32, header >> 16 & 255, size
    )


def _distance(one: int, two: int) -> int:
    """The distance of two sequence numbers, which wrap around."""
    away = (one - two) % _SPACE
    return min(away, _SPACE - away)
