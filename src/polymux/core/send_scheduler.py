# mypyc: compiled
"""What is to go: answers first, then fair turns between the streams that have data and leave.

Frames are formed when they leave, never before: nothing formed before a stop leaves after it.
While several streams have data, none puts more than 16 KiB into a frame.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.connection import Conversation
from polymux.core.frames import CONTENT, Frame
from polymux.core.protocol import Protocol
from polymux.core.streams import ABANDONED, NEVER, OPEN, Lane, Stream

TURN: Final[i64] = 16384  # octets a stream may send before it is another's turn
ALONE: Final[i64] = 65536  # and while no other stream wants to send
APART: Final[i64] = 16384  # payloads from here on are handed out beside their header, not copied


class Outbox:
    """Forms the octets of one side. Sends nothing that breaks a rule of severity error."""

    def __init__(self, conversation: Conversation, side: i64) -> None:
        self.conversation = conversation
        self.protocol: Protocol = conversation.protocol
        self.side: i64 = side
        self.control: list[Frame] = []
        self.turns: list[Stream] = []
        self.turn: i64 = 0  # whose turn it is in `turns`
        self.queued: i64 = 0  # octets that wait for their turn; not those that wait for leave
        self.writer: BytesWriter = BytesWriter()
        self.chunks: list[bytes] = []
        self.moot: i64 = 0  # answers dropped because they had become pointless
        self.noting: bool = False  # does somebody want to know who has no leave left?
        self.stalled: list[Stream] = []

    def load(self, stream: Stream, lane: Lane, size: i64) -> None:
        """`size` more octets have been put into this stream's lane."""
        lane.queued += size
        if lane.turn:
            self.queued += size
        else:
            self.add(stream, lane)

    def unload(self, lane: Lane, size: i64) -> None:
        """The last `size` octets of this stream's lane were taken out again."""
        lane.queued -= size
        if lane.turn:
            self.queued -= size

    def add(self, stream: Stream, lane: Lane) -> None:
        """This stream has something to send, or may send again."""
        if not lane.turn and (lane.queued > 0 or lane.ending or lane.next < len(lane.outgoing)):
            lane.turn = True
            self.turns.append(stream)
            self.queued += lane.queued

    def drop(self, lane: Lane) -> None:
        """Forget what this stream had to send."""
        if lane.turn:
            self.queued -= lane.queued
        lane.clear()
        lane.ending = False

    def flush(self, now: i64, room: i64) -> list[bytes]:
        """The next octets to send, about `room` of them; the caller owns the list."""
        for frame in self.control:
            self.say(frame, now)
        self.control.clear()
        made: i64 = 0
        while made < room and self.turn < len(self.turns):
            stream = self.turns[self.turn]
            lane = stream.lane
            if lane is not None and stream.ending == ABANDONED:  # its id belongs to another
                self.drop(lane)
                lane.turn = False
            elif lane is not None:  # else it has been forgotten meanwhile
                alone = len(self.turns) - self.turn == 1
                made += self.give_turn(stream, lane, ALONE if alone else TURN, now)
            self.turn += 1
            if self.turn > 1024:
                self.turns = self.turns[self.turn :]
                self.turn = 0
            if len(self.control) > 0:
                for frame in self.control:
                    self.say(frame, now)
                self.control.clear()
        if self.turn == len(self.turns):
            self.turns.clear()
            self.turn = 0
        if len(self.writer) > 0:
            self.chunks.append(self.writer.getvalue())
            self.writer = BytesWriter()
        chunks = self.chunks
        self.chunks = []
        return chunks

    def give_turn(self, stream: Stream, lane: Lane, quantum: i64, now: i64) -> i64:
        """One stream's turn: up to `quantum` octets, frame by frame; returns what it used."""
        used: i64 = 0
        lane.turn = False
        self.queued -= lane.queued
        while lane.next < len(lane.outgoing):
            piece = lane.outgoing[lane.next]
            rest = len(piece) - lane.sent
            limit = quantum - used
            if limit > self.protocol.send_frame:
                limit = self.protocol.send_frame
            last = lane.next + 1 == len(lane.outgoing)
            size = self.protocol.cut(self.side, stream, rest, limit, last and not lane.ending)
            if size < 0:  # no leave: `add` is called again when some comes
                if self.noting:
                    self.stalled.append(stream)
                return used
            final = last and lane.ending and size == rest
            if size == rest and lane.sent == 0:
                self.say_content(stream, piece, final, now)
            else:
                self.say_content(stream, piece[lane.sent : lane.sent + size], final, now)
            lane.sent += size
            if lane.sent == len(piece):
                lane.next += 1
                lane.sent = 0
            lane.queued -= size
            used += size
            if self.protocol.alike and lane.sent == 0:
                used += self.say_alike(stream, lane, quantum - used, now)
            if used >= quantum:
                break
        if lane.next < len(lane.outgoing):
            if lane.next > 4096:
                lane.outgoing = lane.outgoing[lane.next :]
                lane.next = 0
            self.add(stream, lane)
        else:
            lane.outgoing.clear()
            lane.next = 0
            if lane.ending:
                lane.ending = False
                if stream.half(self.side).state == OPEN:
                    frame = self.protocol.ending_frame(self.side, stream)
                    if frame is not None:
                        if frame.use < 0:
                            frame.use = stream.incarnation
                        self.say(frame, now)
        return used

    def say_content(self, stream: Stream, data: bytes, final: bool, now: i64) -> None:
        """Judge, write and apply one frame of content."""
        p = self.protocol
        c = self.conversation
        head = c.head
        head.clear()
        head.key = stream.key
        head.number = stream.number
        head.opener = stream.opener
        head.size = len(data)
        p.content_head(self.side, stream, head, final)
        p.sight.freeze(self.side)
        if p.judge(self.side, head, stream) & p.errors:
            self.moot += 1
            return
        p.put(self.writer, self.side, head, b"")
        if head.size >= APART:
            self.chunks.append(self.writer.getvalue())
            self.writer = BytesWriter()
            self.chunks.append(data)
        else:
            self.writer.write(data)
        c.before = stream.half(self.side).state
        p.forget()
        p.apply(self.side, head, stream, now)
        p.sight.step(self.side)
        if stream.serial < 0:
            c.born(self.side, stream, now)
        half = stream.half(self.side)
        half.frames += 1
        c.count(half, head.size, head.units, now)
        if half.state != c.before:
            c.conclude(self.side, stream, b"", now)

    def say_alike(self, stream: Stream, lane: Lane, room: i64, now: i64) -> i64:
        """More whole pieces of the stream that has just spoken, judged by its last frame."""
        if stream.incarnation > 1 or stream.dialer.state != OPEN or stream.acceptor.state != OPEN:
            return 0
        p = self.protocol
        head = self.conversation.head
        most = p.send_frame if p.send_frame < APART else APART - 1
        pieces = lane.outgoing
        first = lane.next
        place = first
        used: i64 = 0
        while place < len(pieces):
            piece = pieces[place]
            size: i64 = len(piece)
            if size > most or size > room - used:
                break
            head.size = size
            p.put(self.writer, self.side, head, b"")
            self.writer.write(piece)
            used += size
            place += 1
        if place > first:
            lane.next = place
            lane.queued -= used
            half = stream.half(self.side)
            half.frames += place - first
            p.sight.step(self.side, place - first)
            self.conversation.count(half, used, used, now)
        return used

    def say(self, frame: Frame, now: i64) -> bool:
        """Judge, write and apply one whole frame; False if it has become pointless."""
        p = self.protocol
        c = self.conversation
        verdict = c.utter(self.side, frame, len(frame.payload))
        if verdict & p.errors:
            self.moot += 1
            return False
        stream = p.streams.find(frame.key)
        if frame.use >= 0 and frame.use != (stream.incarnation if stream is not None else 0):
            self.moot += 1  # meant for an earlier use of the id
            return False
        if stream is not None and stream.half(1 - self.side).final != NEVER:
            # The peer said that nothing more may follow but our own last word.
            last = p.aborting(self.side, stream, b"")
            if last is None or frame.kind != last.kind:
                self.moot += 1
                return False
        self.write(frame, now)
        return True

    def write(self, frame: Frame, now: i64) -> None:
        """Write and apply the frame that was judged last, whatever was said of it."""
        p = self.protocol
        p.put(self.writer, self.side, self.conversation.head, frame.payload)
        if p.effects[frame.kind] == CONTENT:
            self.writer.write(frame.payload)
        self.conversation.pass_own(self.side, frame.payload, now)
