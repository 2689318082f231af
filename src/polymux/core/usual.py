# mypyc: compiled
"""The usual frame, by the short way: whole content, on a known stream, that breaks nothing.

Nearly every frame is one. `Usual.usual` takes them in one loop, with all that does not change from
frame to frame in locals, and leaves the first frame that is different to the long way
(`Conversation.frame`), which would have done the same with those before it.
"""

from typing import Final

from mypy_extensions import i64, u8

from polymux.core.direction import Direction
from polymux.core.events import Silence, Sink
from polymux.core.frames import CLEAN, CONTENT, Batch, Frames, Head
from polymux.core.proceedings import Proceedings
from polymux.core.protocol import NO_STREAM, Protocol
from polymux.core.side import DIALER
from polymux.core.streams import NEVER, OPEN, UNSEEN, Stream
from polymux.core.varint import clipped

LARGE: Final = 0x1000000000000000  # the largest amount that is compared without allocating


class Usual(Proceedings):
    """Proceedings that can take many frames at once. Rows go to `rows`, if somebody wants them."""

    def __init__(self, protocol: Protocol, sink: Sink | None, rows: Frames | None) -> None:
        super().__init__(protocol, sink if sink is not None else Silence())
        self.rows = rows
        self.blank: Batch = Batch(0)

    def usual(self, d: Direction, data: bytes, pos: i64, end: i64, base: i64, at: i64) -> i64:
        """Take the usual frames from `pos` on; returns where the first that is not one begins."""
        rows = self.rows
        if rows is None:
            return self.course(d, data, pos, end, base, at, self.blank, False)
        while True:
            batch = rows.batch
            pos = self.course(d, data, pos, end, base, at, batch, True)
            if batch.used < batch.room:
                return pos
            rows.turn()

    def course(
        self, d: Direction, data: bytes, pos: i64, end: i64, base: i64, at: i64, batch: Batch,
        writing: bool,
    ) -> i64:  # fmt: skip
        """The loop of `usual`, until the batch is full."""
        p = self.protocol
        head = self.head
        sight = p.sight
        streams = p.streams
        effects = p.effects
        sink = self.sink
        side = d.side
        reading = sink.reading
        marking = sink.marking
        credit = p.credit
        most: i64 = p.max_frame if p.messages else NEVER
        i = batch.used
        senders = batch.sender
        ordinals = batch.ordinal
        instants = batch.at
        offsets = batch.offset
        sizes = batch.size
        kinds = batch.kind
        openers = batch.opener
        numbers = batch.number
        incarnations = batch.incarnation
        amounts = batch.amount
        payloads = batch.payload
        verdicts = batch.verdict
        while pos < end and not d.lost:
            if not d.begun:
                sight.freeze(side)
            start = p.header(side, data, pos, end, head)
            if start < 0 or effects[head.kind] != CONTENT or head.flaws != 0 or head.parts != 0:
                return pos
            size = head.size
            if size > end - start - head.tail or size > most:
                return pos
            stream = streams.find(head.key)
            if stream is None:
                return pos
            half = stream.dialer if side == DIALER else stream.acceptor
            before = half.state
            ordinal = sight.sent(side)
            if not p.ordinary(side, head, stream, at):
                return pos
            sight.step(side)
            touched = p.touched
            if touched is not stream and touched is not None:  # a new use of the id
                stream = touched
                half = stream.half(side)
                before = OPEN
                self.born(side, stream, at)
            half.frames += 1
            d.begun = False
            d.frames += 1
            after = start + size + head.tail
            d.framed += after - pos
            if credit:
                self.measure_content(stream, half, at)
            counted = p.counted
            if counted:
                half.octets += size
                half.units += head.units
                half.last_at = at
                if half.first_at == UNSEEN:
                    half.first_at = at
            if reading and counted:
                sink.content(side, stream, data, start, start + size, True)
            if marking:
                sink.finished(side, stream if counted else None, ordinal, at)
            if writing:
                senders[i] = u8(side)
                ordinals[i] = ordinal
                instants[i] = at
                offsets[i] = base + pos
                sizes[i] = after - pos
                kinds[i] = u8(head.kind)
                openers[i] = u8(stream.opener)
                numbers[i] = stream.number
                incarnations[i] = stream.incarnation
                amount = head.amount
                amounts[i] = i64(amount) if amount < LARGE else clipped(amount)
                payloads[i] = size
                verdicts[i] = u8(CLEAN)
                i += 1
                batch.used = i
            pos = after
            if half.state != before:
                self.before = before
                self.conclude(side, stream, b"", at)
            if writing and i == batch.room:
                return pos
        return pos

    def write(
        self, side: i64, head: Head, stream: Stream | None, ordinal: i64, at: i64, offset: i64,
        size: i64, payload: i64, verdict: i64,
    ) -> None:  # fmt: skip
        """One row of the frames table, by the long way."""
        rows = self.rows
        if rows is None:
            return
        batch = rows.batch
        i = batch.used
        batch.sender[i] = u8(side)
        batch.ordinal[i] = ordinal
        batch.at[i] = at
        batch.offset[i] = offset
        batch.size[i] = size
        batch.kind[i] = u8(head.kind)
        if stream is None:
            batch.opener[i] = u8(NO_STREAM)
        else:
            batch.opener[i] = u8(stream.opener)
            batch.number[i] = stream.number
            batch.incarnation[i] = stream.incarnation
        amount = head.amount
        batch.amount[i] = i64(amount) if amount < LARGE else clipped(amount)
        batch.payload[i] = payload
        batch.verdict[i] = u8(verdict)
        batch.used = i + 1
        if batch.used == batch.room:
            rows.turn()
