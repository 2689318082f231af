# mypyc: compiled
"""Both directions of one connection: decode, judge, apply, tell, write the row.

The one loop. An endpoint and an observer differ only in where the octets come from.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.events import Sink
from polymux.core.frames import CLEAN, CONTENT, CROSSED_ROW, VIOLATION_ROW, Frames
from polymux.core.protocol import Protocol
from polymux.core.rules import CROSSED, Certainty, Duty, Violation, broken, octets_text
from polymux.core.side import SIDES
from polymux.core.streams import Stream
from polymux.core.usual import Usual
from polymux.core.varint import BAD, HOLD, SHORT

PROBE: Final[i64] = 40  # no protocol's content header is longer
MAX_FILLED: Final[i64] = 67108864  # missing octets of content that are made up, in all


class Conversation(Usual):
    """Decodes both directions."""

    def __init__(self, protocol: Protocol, sink: Sink | None, rows: Frames | None) -> None:
        super().__init__(protocol, sink, rows)
        self.filled: i64 = 0  # missing octets of content that the sink was handed as zeros
        self.unfilled: i64 = 0  # and that it was not handed

    def feed(self, side: i64, data: bytes, at: i64) -> None:
        """The next octets of one direction, which became contiguous at `at`."""
        d = self.direction(side)
        d.octets += len(data)
        d.at = at
        self.run(d, data, at)

    def message(self, side: i64, data: bytes, at: i64, offset: i64, size: i64) -> None:
        """One whole message of a carrier: its row has this place and size on the wire."""
        d = self.direction(side)
        d.octets += size
        d.at = at
        d.offset = offset + size
        length: i64 = len(data)
        if d.lost or (
            self.usual(d, data, 0, length, offset, at) == 0
            and self.frame(d, data, 0, length, offset, at) < 0
        ):
            d.undecoded += size
            return
        d.framed += size - length
        rows = self.rows
        if rows is not None:
            batch = rows.batch if rows.batch.used > 0 else rows.full[-1]
            batch.size[batch.used - 1] = size

    def run(self, d: Direction, data: bytes, at: i64) -> None:
        """Decode what can be decoded of one direction's octets."""
        if d.lost:
            d.undecoded += len(data)
            d.offset += len(data)
            return
        if d.need > 0:
            if d.waiting() + len(data) < d.need:
                d.heap.write(data)
                return
            d.gather()
        pos: i64 = 0
        if len(d.pending) > 0:
            pos = self.stitch(d, data, at)
            if pos < 0:  # more than a header is needed: take the long way, joined
                data = d.pending + data
                pos = 0
            d.pending = b""
        base = d.offset - pos  # where data[0] lies in the direction
        end: i64 = len(data)
        if d.open and not d.lost:
            pos = self.carry(d, data, pos, end, at)
        while pos < end and not d.open and not d.lost:
            pos = self.usual(d, data, pos, end, base, at)
            if pos == end or d.lost:
                break
            after = self.frame(d, data, pos, end, base, at)
            if after < 0:
                break
            pos = after
        if d.lost:
            d.undecoded += end - pos
            d.offset = base + end
        else:
            d.offset = base + pos
            if pos < end:
                d.pending = data[pos:]

    def stitch(self, d: Direction, data: bytes, at: i64) -> i64:
        """Finish a small frame or a content header cut by a chunk's end, without joining the chunk.

        Returns the position in `data` after what was consumed, or -1 if joining is needed.
        """
        p = self.protocol
        held: i64 = len(d.pending)
        if d.open or p.messages or held > PROBE:
            return -1
        probe = d.pending + data[:PROBE]
        size: i64 = len(probe)
        start = p.header(d.side, probe, 0, size, self.head)
        if start <= held or p.effects[self.head.kind] != CONTENT or self.head.tail > 0:
            return -1
        if self.head.size < size - start:
            size = start + self.head.size
        used = self.frame(d, probe[:size], 0, size, d.offset, at)
        if used != size or d.lost:
            return -1
        d.offset += used
        return used - held

    def frame(self, d: Direction, data: bytes, pos: i64, end: i64, base: i64, at: i64) -> i64:
        """One frame that begins at `pos`: where decoding goes on, or a status."""
        p = self.protocol
        head = self.head
        side = d.side
        if not d.begun:
            p.sight.freeze(side)
            d.begun = True
        start = p.header(side, data, pos, end, head)
        if start < 0:
            if start == BAD:
                self.lose(d, head.flaws, base + pos, at, self.why("the next frame cannot be found"))
            elif start == HOLD and end - pos > p.limits.held:
                self.lose(d, 0, base + pos, at, "the other direction's handshake never came")
            return start
        size = head.size
        effect: i64 = p.effects[head.kind]
        whole = size <= end - start - head.tail
        text = b""
        if effect != CONTENT or p.messages:
            limit = p.max_frame if effect == CONTENT else p.max_control
            if size > limit:
                if effect == CONTENT or not p.texts or size > p.max_frame or self.refuses >= 0:
                    head.flaws |= p.too_long
                elif end - start < limit:
                    d.need = start - pos + limit
                    return SHORT
                else:  # an observer needs no more of it
                    text = data[start : start + limit]
            elif not whole and not head.flaws & p.too_long:
                d.need = start - pos + size + head.tail
                return SHORT
            elif effect != CONTENT and whole:
                p.body(side, data, start, start + size, head)
                if head.text_size > 0:
                    text = data[head.text : head.text + head.text_size]
        ordinal = p.sight.sent(side)
        verdict = self.decide(side, head, text, base + pos, at)
        if side == self.refuses and verdict & p.fatal:
            self.lose(d, 0, base + pos, at, "the peer broke the protocol")
            return BAD
        d.begun = False
        d.frames += 1
        stream: Stream | None = p.touched
        row: i64 = CLEAN
        if verdict != 0:
            row = (
                VIOLATION_ROW
                if verdict & p.findings
                else CROSSED_ROW
                if verdict & CROSSED
                else CLEAN
            )
        if not whole or head.parts > 0:
            d.begin(
                head, stream, p.counted, effect == CONTENT, ordinal, base + pos, start - pos, row,
                self.before,
            )  # fmt: skip
            p.sight.arrive(side, 1)
            return self.carry(d, data, start, end, at)
        if effect == CONTENT:
            counted = p.counted
            if counted and stream is not None:
                self.count(stream.half(side), size, head.units, at)
                self.sink.content(side, stream, data, start, start + size, True)
            self.sink.finished(side, stream if counted else None, ordinal, at)
            if p.credit and stream is not None:
                self.measure_content(stream, stream.half(side), at)
        after = start + size + head.tail
        d.framed += after - pos
        if self.rows is not None:
            self.write(side, head, stream, ordinal, at, base + pos, after - pos, size, row)
        self.conclude(side, stream, text, at)
        if p.unlocked:
            p.unlocked = False
            self.unlock(side, at)
        return after

    def carry(self, d: Direction, data: bytes, pos: i64, end: i64, at: i64) -> i64:
        """Go on with the open frame's payload; returns the position after what was taken."""
        pos = self.take(d, data, pos, end)
        while d.rest == 0 and d.parts > 0:  # items are sized one by one as they come
            head = self.head
            head.flaws = 0
            head.parts = d.parts
            head.key = d.key
            size = self.protocol.part(d.side, data, pos, end, head)
            if size == BAD:
                self.lose(d, head.flaws, d.began + d.done, at,
                          self.why("an item's size cannot be read"))  # fmt: skip
                return pos
            if size < 0 or (head.flaws != 0 and self.flawed_part(d, head.flaws, size, at)):
                return pos
            d.parts = head.parts
            d.rest = size
            d.size += size
            d.payload += size
            pos = self.take(d, data, pos, end)
        if d.rest == 0:
            self.complete(d, at)
        return pos

    def flawed_part(self, d: Direction, flaws: i64, size: i64, at: i64) -> bool:
        """Note what is wrong with a part, once a frame and rule. True if the session is over."""
        p = self.protocol
        fresh = flaws & ~d.flaws
        d.flaws |= flaws
        if fresh != 0:
            detail = f"a part of {octets_text(size)} in a {p.kind_name(d.kind)}"
            details = [detail for _ in broken(p.rules, fresh)]
            self.blame(d.side, d.stream, fresh, details, d.ordinal, d.began, at)
            if fresh & p.findings:
                d.verdict = VIOLATION_ROW
            if d.side == self.refuses and fresh & p.fatal:
                self.lose(d, 0, d.began, at, "the peer broke the protocol")
                return True
        return False

    def take(self, d: Direction, data: bytes, pos: i64, end: i64) -> i64:
        """Hand on as much of the payload's current part as is there."""
        got = end - pos if end - pos < d.rest else d.rest
        if got > 0:
            d.rest -= got
            d.done += got
            stream = d.stream
            if stream is not None and d.counted:
                final = d.rest == 0 and d.parts == 0
                self.sink.content(d.side, stream, data, pos, pos + got, final)
        return pos + got

    def complete(self, d: Direction, at: i64) -> None:
        """The last octet of a frame that came in parts has passed."""
        stream = d.stream
        if d.content:
            if stream is not None and d.counted:
                self.count(stream.half(d.side), d.payload, d.units, at)
            self.sink.finished(d.side, stream if d.counted else None, d.ordinal, at)
            if stream is not None and self.protocol.credit:
                self.measure_content(stream, stream.half(d.side), at)
        d.open = False
        self.protocol.sight.arrive(d.side, 0)
        d.framed += d.size
        if self.rows is not None:
            head = self.head
            head.kind = d.kind
            head.amount = d.amount
            self.write(d.side, head, stream, d.ordinal, at, d.began, d.size, d.payload, d.verdict)
        self.before = d.before
        self.conclude(d.side, stream, b"", at)

    def conclude(self, side: i64, stream: Stream | None, text: bytes, at: i64) -> None:
        super().conclude(side, stream, text, at)
        p = self.protocol
        if len(p.streams.lapsed) > 0:
            for gone in p.streams.lapsed:
                p.lapse(gone.key, gone)
            p.streams.lapsed = []
        if len(p.lapsed) > 0:
            for duty, label in p.lapsed:
                d = self.direction(duty.side)
                if d.partial():
                    continue  # it may have been paid where nothing was read
                offset = d.framed + d.gap + d.undecoded + d.carrier  # the same however it was cut
                self.overdue(duty, label, Certainty.POSSIBLE, offset, at)
            p.lapsed = []

    def overdue(self, duty: Duty, label: str, certainty: Certainty, offset: i64, at: i64) -> None:
        """A duty was not paid before the end, or before its stream was forgotten."""
        p = self.protocol
        ordinal = max(0, p.sight.sent(duty.side) - 1)
        detail = f"owed {p.kind_name(duty.kind)} since frame {duty.since} of the other side"
        for rule in broken(p.rules, duty.rule):
            self.violations.append(
                Violation(rule, SIDES[duty.side], ordinal, offset, at, label, certainty, detail)
            )

    def gap(self, side: i64, size: i64, at: i64) -> None:
        """Octets of this direction are missing. Inside a payload decoding goes on behind them."""
        d = self.direction(side)
        d.octets += size
        d.at = at
        self.doubt = True
        if d.open and size <= d.rest and not d.lost:
            d.offset += size
            while size > 0 and self.filled < MAX_FILLED:
                step: i64 = size if size < 65536 else 65536
                self.carry(d, bytes(step), 0, step, at)
                self.filled += step
                size -= step
            if size > 0:  # a few octets can claim any length: the rest is only counted
                d.rest -= size
                d.done += size
                if d.stream is not None and d.counted:
                    self.unfilled += size
                self.carry(d, b"", 0, 0, at)
            return
        if not d.lost:
            are = "is" if size == 1 else "are"
            self.lose(d, 0, d.offset, at, f"{octets_text(size)} {are} missing")
            d.holed = True
        d.gap += size
        d.offset += size

    def unlock(self, side: i64, at: i64) -> None:
        """A handshake of `side` has passed: read what was held back, as far as it can be read."""
        for each in (self.dialer, self.acceptor):
            reason = self.protocol.unreadable(each.side)
            if reason and not each.lost:
                self.lose(each, 0, each.offset, at, reason)
        self.resume(1 - side)

    def resume(self, side: i64) -> None:
        """Read what this direction had to hold back."""
        d = self.direction(side)
        d.gather()
        if len(d.pending) > 0 and not d.lost:
            self.run(d, b"", d.at)

    def lose(self, d: Direction, flaws: i64, offset: i64, at: i64, reason: str) -> None:
        """The start of the next frame is lost: the rest of this direction is undecoded."""
        d.lost = True
        d.reason = reason
        self.stop_measuring(at)
        ordinal = self.protocol.sight.sent(d.side)
        stream: Stream | None = None
        began = offset
        if d.open:  # a frame that will never be whole: its octets are undecoded
            d.undecoded += d.done
            d.open = False
            flaws &= ~d.flaws
            ordinal, stream, began = d.ordinal, d.stream, d.began
        d.gather()
        d.undecoded += len(d.pending)
        d.offset += len(d.pending)
        d.pending = b""
        if flaws != 0:
            details = [f"{reason} (octet {offset})" for _ in broken(self.protocol.rules, flaws)]
            self.blame(d.side, stream, flaws, details, ordinal, began, at)

    def why(self, otherwise: str) -> str:
        """What the protocol says about the octets it cannot read."""
        reason = self.protocol.reason
        self.protocol.reason = ""
        return reason if reason else otherwise
