# mypyc: compiled
"""WebSocket frames on their way in (RFC 6455), for live sessions and captures alike.

One `Decoder` reads one direction. What it finds are items (`websocket_items`): whole messages,
pings, pongs, the close, and what the sender did wrong. It carries binary messages only and knows no
extension. Frames on their way out are in `masking`, the HTTP exchange before the first frame is in
`upgrade`.
"""

from typing import Final, TypeAlias

from mypy_extensions import i64

from polymux.core.websocket.events import (
    AFTER_CLOSE,
    BAD_LENGTH,
    FRAME_RULES,
    HARMLESS,
    MASKED,
    TRUNCATED,
    UNMASKED,
    Assembly,
    Close,
    Fault,
    FrameRule,
    Item,
    Lost,
    Ping,
    Pong,
    describe,
    judge,
    read_close,
)
from polymux.core.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FINAL,
    HEAD_MAX,
    PING,
    PONG,
    SHORT,
    FrameHead,
    masked,
)
from polymux.core.websocket.run import Run

READING: Final[i64] = 0
CLOSED: Final[i64] = 1  # a close frame was read; what follows it is not looked at
FAILED: Final[i64] = 2  # a rule was broken, and this decoder is strict
LOST: Final[i64] = 3  # where the next frame begins is not known
OVER: Final[i64] = 4  # finish() was called

SKIP: Final[i64] = 0  # what becomes of the payload that is being read
DATA: Final[i64] = 1
CONTROL: Final[i64] = 2

FORMAT: Final = 1  # of a snapshot
Snapshot: TypeAlias = tuple[tuple[int, ...], tuple[bytes, ...], tuple[tuple[int, int], ...]]


class Decoder:
    """Reads the frames of one direction, fed in any pieces.

    Strict (live): the first broken rule is the last item, and all further octets are passed over.
    Lenient (captures): every broken rule is noted and reading goes on at the next frame, without
    the message or frame concerned; a wrong mask is noted once, undone, and harms nothing.

    Every octet is in exactly one count: `delivered` (messages), `carrier` (pings, pongs, close),
    `skipped` (refused or unreadable), `missing` (gaps outside what was read), or `pending()`.
    """

    def __init__(
        self, sender: i64, limit: i64 = 1024 * 1024, lenient: bool = False, offset: int = 0,
        limit_name: str = "frame",
    ) -> None:  # fmt: skip
        """`limit`: payload octets of a message; `limit_name`: what its error calls it.

        `offset`: octets of this direction before the first frame (the HTTP head), so that offsets
        count from the start of the connection.
        """
        self.sender: i64 = sender
        self.limit: i64 = limit
        self.limit_name = limit_name
        self.lenient = lenient
        self.items: list[Item] = []
        self.state: i64 = READING
        self.offset = offset  # of the next octet
        self.delivered = 0
        self.carrier = 0
        self.skipped = 0
        self.missing = 0
        self.hollow: i64 = 0  # frames that brought nothing: control frames and empty fragments
        self.noted = False  # a wrong mask, or octets after the close: said once
        self.held = b""  # an unfinished header
        self.reading = False  # a payload, of the frame below
        self.head = FrameHead()
        self.fate: i64 = SKIP
        self.left: i64 = 0  # octets of payload to come
        self.phase: i64 = 0  # place in the masking key
        self.frame_offset = 0
        self.frame_octets = 0
        self.frame_missing = 0
        self.control = b""
        self.message = Assembly()
        self.run = Run(sender, limit)

    def take(self) -> list[Item]:
        """The items found since the last call, in the order in which they ended."""
        items = self.items
        self.items = []
        return items

    def pending(self) -> int:
        """Octets of the unfinished header, frame and message."""
        return len(self.held) + self.frame_octets + self.message.octets

    def begun(self) -> int:
        """Where the unfinished message began; -1 if there is none, or none to be delivered."""
        message = self.message
        if message.fragmented or (self.reading and self.fate == DATA):
            return -1 if message.spoiled else message.offset
        if self.held and self.held[0] & 8 == 0:
            return self.offset - len(self.held)
        return -1

    def feed(self, data: bytes) -> int:
        """Read the next octets; returns how many items wait for `take`. Never raises."""
        pos: i64 = 0
        end: i64 = len(data)
        while pos < end:
            if self.state != READING:
                self._pass_over(end - pos)
                break
            if self.reading:
                size = self.left if self.left < end - pos else end - pos
                self._read_payload(data, pos, pos + size)
                pos += size
                continue
            if not self.message.fragmented and len(self.held) == 0:
                after = self.run.read(data, pos, end, self.offset, self.items)
                self.offset += after - pos
                self.delivered += after - pos
                pos = after
            if pos < end:
                pos = self._read_head(data, pos, end)
        return len(self.items)

    def gap(self, size: i64) -> int:
        """The next `size` octets were not captured; returns how many items wait for `take`.

        As far as they belong to a payload they become a hole and reading goes on after them;
        anywhere else the decoder is lost.
        """
        if size < 0:
            raise ValueError(f"a gap cannot have {size} octets")
        if self.reading and size > 0:
            hole = size if size < self.left else self.left
            size -= hole
            self.frame_missing += hole
            if self.fate == DATA:
                self.message.add_hole(hole)
            elif self.fate == CONTROL:
                self.control += bytes(hole)
            self._advance(hole)
        if size > 0:
            if self.state == READING:
                self._lose("octets are missing where a frame begins")
            self.missing += size
            self.offset += size
        return len(self.items)

    def finish(self) -> int:
        """No octet follows: what is unfinished is skipped, and said to be truncated."""
        if self.state == READING and (self.pending() > 0 or self.message.fragmented):
            inside = "message"
            where = self.begun()
            if where < 0:
                inside = "frame"
                where = self.frame_offset if self.reading else self.offset - len(self.held)
            self.items.append(Fault(TRUNCATED, f"the octets end inside a {inside}", where))
            self._abandon()
        self.state = OVER
        return len(self.items)

    def snapshot(self) -> Snapshot:
        """The state as plain data, also in the middle of a frame. Take the items first."""
        if self.items:
            raise ValueError(f"take the {len(self.items)} waiting items before a snapshot")
        head = self.head if self.reading else FrameHead()  # of a frame that is read, nothing stays
        message = self.message
        numbers = (
            FORMAT, int(self.state), self.offset, self.delivered, self.carrier, self.skipped,
            self.missing, int(self.noted), int(self.reading), int(self.fate), int(self.left),
            int(self.phase), int(head.first), int(head.key is not None), self.frame_offset,
            self.frame_octets, self.frame_missing, int(message.fragmented), int(message.spoiled),
            message.offset, message.octets, message.missing, int(message.filled),
        )  # fmt: skip
        octets = (self.held, head.key or b"", self.control, message.body.getvalue())
        return numbers, octets, tuple(message.holes)

    def restore(self, saved: Snapshot) -> None:
        """Go on where `saved` was taken; the settings are those this decoder was made with."""
        numbers, octets, holes = saved
        if len(numbers) != 23 or numbers[0] != FORMAT or len(octets) != 4:
            raise ValueError("not a snapshot of this version's WebSocket decoder")
        message = Assembly()
        (
            _, self.state, self.offset, self.delivered, self.carrier, self.skipped,
            self.missing, noted, reading, self.fate, self.left,
            self.phase, self.head.first, has_key, self.frame_offset,
            self.frame_octets, self.frame_missing, fragmented, spoiled,
            message.offset, message.octets, message.missing, message.filled,
        ) = numbers  # fmt: skip
        self.items = []
        self.noted = noted != 0
        self.reading = reading != 0
        self.held, key, self.control, body = octets
        self.head.key = key if has_key != 0 else None
        message.fragmented = fragmented != 0
        message.spoiled = spoiled != 0
        message.body.write(body)
        message.holes = list(holes)
        self.message = message

    def _read_head(self, data: bytes, pos: i64, end: i64) -> i64:
        """Read a header, or what there is of it; returns where to go on."""
        before: i64 = len(self.held)
        size: i64
        if before == 0:
            size = self.head.read(data, pos, end)
        else:
            joined = self.held + data[pos : pos + HEAD_MAX - before]
            size = self.head.read(joined, 0, len(joined))
        if size == SHORT:
            self.held += data[pos:end]
            self.offset += end - pos
            return end
        self.held = b""
        self.offset += size - before
        self.frame_offset = self.offset - size
        self.frame_octets = size
        self._begin_frame()
        return pos + size - before

    def _begin_frame(self) -> None:
        """A header is whole: judge it, and choose what becomes of the payload."""
        head, message = self.head, self.message
        opcode = head.first & 15
        room = self.limit
        if opcode == CONTINUATION:
            room = head.size if message.spoiled else room - message.filled
        verdict = judge(head, self.sender, message.fragmented, room)
        if verdict & (MASKED | UNMASKED):
            if self.noted:
                verdict &= ~(MASKED | UNMASKED)
            self.noted = True
        if verdict != 0:
            self._refuse(verdict)
            if self.state != READING:
                return
        self.reading = True
        self.fate = SKIP
        self.left = head.size
        self.phase = 0
        harmful = verdict & ~HARMLESS != 0
        if opcode >= CLOSE:
            if not harmful:
                self.fate = CONTROL
                self.control = b""
        elif opcode <= BINARY:
            if opcode != CONTINUATION:
                self._spoil()  # an unfinished message that this one interrupts
                message.spoiled = False
                message.offset = self.frame_offset
            if harmful:
                self._spoil()
            elif not message.spoiled:
                self.fate = DATA
        if self.left == 0:
            self._end_frame()

    def _refuse(self, verdict: i64) -> None:
        """Say which rules the frame breaks; strict, that is the end."""
        bit: i64 = 1
        for rule in FRAME_RULES:
            if verdict & bit:
                self._fault(rule, describe(self.head, bit, self.limit_name, self.limit))
            bit <<= 1
        if verdict & BAD_LENGTH:
            self._lose("the start of the next frame is not known after an impossible length")
        elif self.state != READING:
            self._abandon()

    def _read_payload(self, data: bytes, pos: i64, end: i64) -> None:
        if self.fate == DATA:
            last = end - pos == self.left
            self.message.add(data, pos, end, self.head, self.phase, last, self.run.mask)
        elif self.fate == CONTROL:
            key = self.head.key
            part = data[pos:end] if key is None else masked(data, pos, end, key, self.phase)
            self.control += part
        self._advance(end - pos)

    def _advance(self, size: i64) -> None:
        """So much of the payload has passed."""
        self.offset += size
        self.frame_octets += size
        self.left -= size
        self.phase = (self.phase + size) & 3
        if self.left == 0:
            self._end_frame()

    def _end_frame(self) -> None:
        message = self.message
        opcode = self.head.first & 15
        self.reading = False
        if self.fate == CONTROL or (self.head.size == 0 and self.head.first < FINAL):
            self.hollow += 1
        if self.fate == CONTROL:
            self.carrier += self.frame_octets
            self._end_control(opcode)
        elif self.fate == DATA:
            message.octets += self.frame_octets
            message.missing += self.frame_missing
        else:
            self.skipped += self.frame_octets - self.frame_missing
            self.missing += self.frame_missing
        self.frame_octets = 0
        self.frame_missing = 0
        self.frame_offset = 0
        self.fate = SKIP
        self.phase = 0
        if opcode <= BINARY:
            message.fragmented = self.head.first < FINAL
            if not message.fragmented:
                if not message.spoiled:
                    self.items.append(message.finished())
                    self.delivered += message.octets
                message.clear()
        elif self.state != READING:
            self._abandon()  # a message that the close leaves unfinished

    def _end_control(self, opcode: i64) -> None:
        data, offset, octets = self.control, self.frame_offset, self.frame_octets
        damaged = self.frame_missing > 0
        if opcode == PING:
            self.items.append(Ping(data, offset, octets, damaged))
            return
        if opcode == PONG:
            self.items.append(Pong(data, offset, octets, damaged))
            return
        code, reason, rule = read_close(b"" if damaged else data)
        if rule is not None:
            self._fault(rule, f"a close frame with the payload {data.hex()}")
        if self.state == READING:
            self.items.append(Close(code, reason, offset, octets, damaged))
            self.state = CLOSED
            self.noted = False

    def _pass_over(self, size: i64) -> None:
        """Octets that are not looked at any more."""
        if self.state == CLOSED and not self.noted:
            self.items.append(Fault(AFTER_CLOSE, "octets follow the close frame", self.offset))
            self.noted = True
        self.skipped += size
        self.offset += size

    def _fault(self, rule: FrameRule, detail: str) -> None:
        """Note a broken rule; strict, the first one ends it all."""
        if self.state == READING:
            self.items.append(Fault(rule, detail, self.frame_offset))
            if not self.lenient:
                self.state = FAILED

    def _lose(self, detail: str) -> None:
        """The start of the next frame is not known."""
        self._abandon()
        if self.state == READING:
            self.items.append(Lost(detail, self.offset))
            self.state = LOST

    def _spoil(self) -> None:
        """The message being read will not be delivered; what was read of it is skipped."""
        message = self.message
        self.skipped += message.octets - message.missing
        self.missing += message.missing
        message.clear()
        message.spoiled = True

    def _abandon(self) -> None:
        """Nothing unfinished will be finished: all of it is skipped."""
        self.skipped += len(self.held) + self.frame_octets - self.frame_missing
        self.missing += self.frame_missing
        self.held = b""
        self.reading = False
        self.frame_octets = 0
        self.frame_missing = 0
        self._spoil()
        self.message.spoiled = False
        self.message.fragmented = False
