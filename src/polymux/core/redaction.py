# mypyc: compiled
"""Removing content from the bytes of a conversation while its frames stay decodable.

Theory of operation
-------------------

`ConversationRedactor` decodes both directions with an `Observer` and rewrites them. What it writes
has the length of what it read, so frames, offsets and times stay the same. It keeps only what the
connection reports as structure (`LayoutSink`): headers, sizes, ids, amounts and handshakes.
Everything else is replaced: content by filler, names by hashes, and bytes in which no frame was
decoded by bytes in which none can be. So an error here shows as a frame that can no longer be
decoded, not as content that survives.

Names are kept only on request, because bytes of another protocol, or of a side that wrote a wrong
length, may decode as a frame that has a name: what is taken for one may be content.

Bytes are held until it is known what they are: the rest of an incomplete header or control frame, a
message inside WebSocket, the bytes before a boundary that is searched for. The limits of decoding
bound them.

Filler is the byte ff, with which no frame of any protocol begins, or with `hash` a text that
depends on the content and on a random key. The key is not stored, so contents cannot be guessed by
trying; equal contents have equal filler, as far as they were received in the same pieces.
"""

import base64
import hashlib
import hmac
from typing import Final

from mypy_extensions import i64

from polymux.core.frames import CONTENT, OPENS, FrameHeader
from polymux.core.layout import LayoutSink
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.token_exchange import without_proofs
from polymux.core.varint import INCOMPLETE, INVALID
from polymux.core.websocket.decoder import CONTROL as CONTROL_PAYLOAD
from polymux.core.websocket.frames import BINARY, CLOSE, masked
from polymux.core.websocket.handshake import MAX_HEAD_BYTES, http_head_size, redacted_head
from polymux.core.websocket.layer import (
    FRAMES,
    HTTP_FIRST_BYTES,
    UNDECIDED,
    UNDECODABLE,
    UPGRADING,
    WITHOUT_WEBSOCKET,
)

FULL: Final = "full"
HEAD: Final = "head"
HASH: Final = "hash"
NONE: Final = "none"

BLANK: Final = b"\xff"  # no frame begins with it
TEXT_BLANK: Final = b"x"  # for what is shown as text
HASH_TEXT_BYTES: Final = 43  # of SHA-256 in base64
KEY_BYTES: Final = 32
# Bytes that may break the same rule as a header that could not be decoded.
INVALID_HEADERS: Final = (
    b"\xff" * 16,
    b"\xc1" * 3,
    b"\x00" + b"\xff" * 15,
    b"\x92\x92\x03\x00",
    b"\x7f" * 16,
    b"\x3f" + b"\xff" * 9,
)
INCOMPLETE_HEADERS: Final = (b"\xff", b"\x00")
MAX_KEPT_HEADER_BYTES: Final = 12
SPANS_BETWEEN_COMPACTIONS: Final = 1024  # of the list of a side


class Redaction:
    """What is left of a conversation.

    Args:
        payload: FULL keeps content, HEAD its first `head_bytes` in each frame, HASH replaces it by
            filler that depends on it, NONE by the same filler everywhere.
        head_bytes: for HEAD.
        key: random bytes, as long as SHA-256.
        keep_names: keep the names of streams that are names beyond doubt: no byte was missing
            before them, and neither side had broken a rule that is more than advice. All others
            are replaced as HASH does content.
        strict: keep no headers of a direction after bytes of it were missing and the start of a
            frame had to be searched for. A start that was found by mistake would keep content as
            its header.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        payload: str,
        key: bytes,
        head_bytes: int = 0,
        keep_names: bool = False,
        strict: bool = False,
    ) -> None:
        if payload not in (FULL, HEAD, HASH, NONE):
            raise ValueError(f"{payload!r} is not full, head:N, hash or none")
        if len(key) != KEY_BYTES or head_bytes < 0:
            raise ValueError(f"a key has {KEY_BYTES} bytes, and head:N at least 0")
        self.payload = payload
        self.head_bytes = head_bytes
        self.keep_names = keep_names
        self.key = key
        self.strict = strict

    def __str__(self) -> str:
        form = f"head:{self.head_bytes}" if self.payload == HEAD else self.payload
        return f"payload {form}, names {'kept' if self.keep_names else 'hashed'}"

    def name(self, name: bytes, certain: bool) -> bytes:
        """What replaces a stream's name; `certain`: it is a name beyond doubt."""
        if certain and self.keep_names:
            return name
        digest = hmac.new(self.key, b"name\0" + name, hashlib.sha256)
        text = hash_text(digest.digest(), len(name))
        return text if is_text(name) else BLANK + text[1:]

    def text(self, text: bytes) -> bytes:
        """What replaces content that is known to be text, such as the reason of a reset."""
        return Content(self, b"" if is_text(text) else BLANK, TEXT_BLANK).replace(text)


def hash_text(digest: bytes, size: int) -> bytes:
    """A digest as text, cut or repeated to `size` bytes."""
    text = base64.urlsafe_b64encode(digest)[:HASH_TEXT_BYTES]
    return (text * (size // HASH_TEXT_BYTES + 1))[:size]


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class Content:
    """The content of one frame, replaced piece by piece.

    A piece's filler depends on all content of the frame up to the piece's end. It begins with
    `prefix` if the content has any bytes.
    """

    def __init__(self, redaction: Redaction, prefix: bytes = b"", blank: bytes = BLANK) -> None:
        self.redaction = redaction
        self.blank = blank
        self.prefix = prefix
        self.seen = 0  # bytes so far
        self.digest = hmac.new(redaction.key, b"content\0", hashlib.sha256)

    def replace(self, piece: bytes) -> bytes:
        """What replaces the next bytes of the content."""
        redaction = self.redaction
        if redaction.payload == FULL:
            return piece
        if redaction.payload == HASH:
            self.digest.update(piece)
            new = hash_text(self.digest.copy().digest(), len(piece))
        else:
            kept = min(max(0, redaction.head_bytes - self.seen), len(piece))
            new = piece[:kept] + self.blank * (len(piece) - kept)
        if self.seen == 0 and len(self.prefix) > 0 and redaction.payload != HEAD:
            new = self.prefix + new[1:]
        self.seen += len(piece)
        return new


class Span:
    """Bytes of a direction from `start` to `end` that are not content.

    They are replaced by `replacement`; None keeps them. `content_end`: what follows up to there is
    content; -1 if the span does not say. `begins_frame`: that of another frame than before.
    """

    __slots__ = ("begins_frame", "content_end", "end", "replacement", "start")

    def __init__(
        self,
        start: int,
        end: int,
        replacement: bytes | None = None,
        content_end: int = -1,
        begins_frame: bool = False,
    ) -> None:
        self.start = start
        self.end = end
        self.replacement = replacement
        self.content_end = content_end
        self.begins_frame = begins_frame


def span_start(span: Span) -> int:
    return span.start


class RedactedBytes:
    """Bytes of one side, as many as were received; `tag` is the place given for the first one."""

    __slots__ = ("data", "side", "tag")

    def __init__(self, side: int, tag: int, data: bytes) -> None:
        self.side = side
        self.tag = tag
        self.data = data


class HeldBytes:
    """What was received at a position of a direction, and its place for the caller."""

    __slots__ = ("data", "position", "tag")

    def __init__(self, position: int, data: bytes, tag: int) -> None:
        self.position = position
        self.data = data
        self.tag = tag


class RedactedSide:
    """One direction on its way through the redactor. Positions count its bytes from 0."""

    def __init__(self, side: int, redaction: Redaction) -> None:
        self.side = side
        self.redaction = redaction
        self.received = 0  # position after the last byte or gap
        self.held: list[HeldBytes] = []
        self.spans: list[Span] = []  # ascending unless `unsorted`
        self.next_span = 0  # those before it lie before the first held byte
        self.searched = False  # the start of the current frame, or one before it, was searched for
        self.unsorted = False  # headers of WebSocket frames are reported before the messages
        # Payloads of WebSocket frames: position, size, masking key.
        self.payloads: list[tuple[int, int, bytes | None]] = []
        self.content: Content = Content(redaction)  # of the current frame
        self.content_end = 0  # position after the content that is known to be one
        self.blanked_bytes = 0  # replaced because no frame was decoded there

    def add_span(self, start: int, end: int, replacement: bytes | None = None) -> None:
        if end > start:
            self.spans.append(Span(start, end, replacement))

    def first_bytes(self, size: int) -> bytes:
        """The first bytes that are held, at most `size`."""
        joined = b""
        for chunk in self.held:
            if len(joined) >= size:
                break
            joined += chunk.data[: size - len(joined)]
        return joined

    def release(self, until: int, out: list[RedactedBytes]) -> None:
        """Rewrite what is held before position `until`, and append it to `out`."""
        if self.next_span > SPANS_BETWEEN_COMPACTIONS or self.unsorted:
            self.drop_used_spans()
        if self.unsorted:
            self.spans.sort(key=span_start)
            self.unsorted = False
        done = 0
        for chunk in self.held:
            size = len(chunk.data)
            if chunk.position + size > until:
                size = until - chunk.position
            if size <= 0:
                break
            out.append(RedactedBytes(self.side, chunk.tag, self.rewrite(chunk, size)))
            if size < len(chunk.data):
                chunk.data = chunk.data[size:]
                chunk.position += size
                chunk.tag += size
                break
            done += 1
        if done > 0:
            self.held = self.held[done:]

    def drop_used_spans(self) -> None:
        self.spans = self.spans[self.next_span :]
        self.next_span = 0

    def rewrite(self, chunk: HeldBytes, size: int) -> bytes:
        """The first `size` bytes of a chunk, rewritten; spans that end in them are used up."""
        data = chunk.data
        base = chunk.position
        pos = base
        end = base + size
        parts: list[bytes] = []
        while self.next_span < len(self.spans):
            span = self.spans[self.next_span]
            if span.end > pos and span.start >= end:
                break
            if span.start > pos:
                parts.append(self.replace(pos, data[pos - base : span.start - base]))
                pos = span.start
            if span.begins_frame and span.start >= base:
                self.content = Content(self.redaction)
            if span.content_end >= 0:
                self.content_end = span.content_end
            stop = span.end if span.end < end else end
            if stop > pos:
                new = span.replacement
                if new is None:
                    parts.append(data[pos - base : stop - base])
                else:
                    parts.append(new[pos - span.start : stop - span.start])
                pos = stop
            if span.end > end:
                break
            self.next_span += 1
        if pos < end:
            parts.append(self.replace(pos, data[pos - base : size]))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def replace(self, position: int, piece: bytes) -> bytes:
        """What replaces bytes without a span: content, or else bytes that were not decoded."""
        known = self.content_end - position
        if known >= len(piece):
            return self.content.replace(piece)
        if known < 0:
            known = 0
        self.blanked_bytes += len(piece) - known
        return self.content.replace(piece[:known]) + BLANK * (len(piece) - known)

    def forget_payloads(self, until: int) -> None:
        """Drop payloads before position `until`: their messages were read, or will not be."""
        count = 0
        while count < len(self.payloads) and self.payloads[count][0] < until:
            count += 1
        if count > 0:
            self.payloads = self.payloads[count:]

    def message_payloads(self, offset: int, size: int) -> list[tuple[int, int, bytes | None]]:
        """Remove and return the payloads of the message of `size` bytes whose header is there."""
        first = 0
        while first < len(self.payloads) and self.payloads[first][0] < offset:
            first += 1
        last = first
        while last < len(self.payloads) and size > 0:
            size -= self.payloads[last][1]
            last += 1
        found = self.payloads[first:last]
        self.payloads = self.payloads[last:]
        return found


class ConversationRedactor(LayoutSink):
    """Rewrites both directions of one conversation.

    `feed` and `gap` take what was captured, as `Observer.feed` and `gap` do. `take` returns what is
    decided, and `finish` decides the rest.

    Args:
        observer: a new one, without rows, which belongs to the redactor.
        redaction: what is left.
        prefix_bytes: of each side, a negotiation before the first frame, which is kept but for the
            proofs of a token.
    """

    def __init__(
        self, observer: Observer, redaction: Redaction, prefix_bytes: tuple[int, int] = (0, 0)
    ) -> None:
        self.observer = observer
        self.redaction = redaction
        self.sides = [RedactedSide(0, redaction), RedactedSide(1, redaction)]
        self.prefixes = [prefix_bytes[0], prefix_bytes[1]]
        self.prefix_left = [prefix_bytes[0], prefix_bytes[1]]
        self.ready: list[RedactedBytes] = []
        self.head_done = False  # the HTTP heads of an upgrade were rewritten, or there is none
        self.searched = False  # frames were found by searching for their start
        self.broken = False  # a rule that is more than advice, by either side
        self.unlike_headers = 0  # undecodable ones that were replaced by bytes of another kind
        observer.protocol.streams.keep_removed = False
        observer.connection.layout = self
        if observer.websocket is not None:
            observer.websocket.dialer.decoder.layout = self
            observer.websocket.acceptor.decoder.layout = self

    def feed(self, side: i64, data: bytes, timestamp: i64, tag: int = 0) -> None:
        """The next bytes of a side; `tag` is their place, which `take` returns with them."""
        own = self.sides[side]
        own.held.append(HeldBytes(own.received, data, tag))
        own.received += len(data)
        prefix = self.prefix_left[side]
        if prefix > 0:
            cut = min(prefix, len(data))
            self.prefix_left[side] -= cut
            data = data[cut:]
            if cut == prefix:
                self.keep_prefix(own)
        if len(data) > 0:
            self.observer.feed(side, data, timestamp)
        self.release_decided()

    def gap(self, side: i64, size: i64, timestamp: i64) -> None:
        """The next bytes of a side were not captured."""
        self.sides[side].received += size
        self.observer.gap(side, size, timestamp)
        self.release_decided()

    def take(self) -> list[RedactedBytes]:
        """Remove and return what is decided, in order for each side."""
        ready = self.ready
        self.ready = []
        return ready

    def holds_bytes(self, side: i64) -> bool:
        """Whether bytes of a side are not decided yet."""
        return len(self.sides[side].held) > 0

    @property
    def blanked_bytes(self) -> int:
        """Bytes that were replaced because no frame was decoded there."""
        return self.sides[0].blanked_bytes + self.sides[1].blanked_bytes

    def finish(self) -> None:
        """No bytes follow: decide what is held."""
        self.observer.decide_boundaries()
        self.release_decided()
        websocket = self.observer.websocket
        for own in self.sides:
            if self.prefix_left[own.side] > 0:
                self.keep_prefix(own)
            elif self.leaves_headers_out(own.side):
                continue
            elif websocket is not None and websocket.state != WITHOUT_WEBSOCKET:
                decoder = websocket.direction_decoder(own.side).decoder
                size = len(decoder.partial_header)
                if websocket.state == FRAMES and size > 0:
                    position = self.position(own.side, decoder.offset)
                    own.add_span(position - size, position)
            else:
                d = self.observer.connection.direction(own.side)
                d.join_buffered()
                if not d.decoding_stopped and not d.in_payload:
                    self.incomplete(own.side, d.offset, d.pending)
        if websocket is not None and websocket.state == UPGRADING:
            self.rewrite_heads()
        for own in self.sides:
            own.payloads = []
            own.release(own.received, self.ready)
        self.observer.connection.layout = None
        self.observer.take_violations()

    # What is decided

    def position(self, side: i64, offset: i64) -> int:
        """The position of an offset of the observer, which does not get the prefix."""
        return self.prefixes[side] + int(offset)

    def keep_prefix(self, own: RedactedSide) -> None:
        """Keep the negotiation before the first frame, as far as it has arrived."""
        prefix = own.first_bytes(self.prefixes[own.side])
        own.add_span(0, len(prefix), without_proofs(prefix))

    def leaves_headers_out(self, side: i64) -> bool:
        """Whether headers of a side may be content, and are to be replaced therefore."""
        return self.redaction.strict and self.observer.connection.direction(side).frames_missing

    def is_certain(self) -> bool:
        """Whether frames are what they seem: nothing is missing, and no rule was broken so far."""
        self.note_violations()
        return not self.broken and not self.observer.connection.uncertain

    def note_violations(self) -> None:
        for violation in self.observer.connection.violations:
            if violation.rule.severity != Severity.NOTE:
                self.broken = True

    def release_decided(self) -> None:
        websocket = self.observer.websocket
        if websocket is not None and not self.head_done:
            if websocket.state == UNDECIDED or websocket.state == UPGRADING:
                return
            self.head_done = True
            if websocket.path or websocket.state == UNDECODABLE:
                self.rewrite_heads()
        for own in self.sides:
            if len(own.held) > 0:
                decided = self.decided(own.side)
                own.release(decided, self.ready)
                own.forget_payloads(decided)
        if len(self.observer.connection.violations) > 0:
            self.note_violations()
            self.observer.take_violations()

    def decided(self, side: i64) -> int:
        """The position before which every byte of a side is known to be structure or not."""
        if self.prefix_left[side] > 0:
            return 0
        websocket = self.observer.websocket
        if websocket is None or websocket.state != FRAMES:
            return self.position(side, self.observer.connection.direction(side).offset)
        decoder = websocket.direction_decoder(side).decoder
        offset = decoder.message_start_offset()
        if offset < 0:
            offset = decoder.offset - len(decoder.partial_header)
            if decoder.in_payload and decoder.payload_use == CONTROL_PAYLOAD:
                offset = decoder.frame_offset
        return self.position(side, offset)

    def rewrite_heads(self) -> None:
        """Replace the HTTP heads of a WebSocket upgrade, complete or not."""
        websocket = self.observer.websocket
        keeps_path = (
            self.redaction.keep_names
            and websocket is not None
            and websocket.state == FRAMES
            and self.is_certain()
        )
        for own in self.sides:
            start = self.prefixes[own.side]
            data = own.first_bytes(start + MAX_HEAD_BYTES)[start:]
            if data[:4] != HTTP_FIRST_BYTES[own.side]:
                continue
            size = http_head_size(data, MAX_HEAD_BYTES)
            head = data if size < 0 else data[:size]
            if self.redaction.payload == FULL and keeps_path:
                new = head
            else:
                new = redacted_head(head, keeps_path)
            own.add_span(start, start + len(head), new)
            own.unsorted = True

    # LayoutSink

    def frame(
        self,
        side: i64,
        offset: i64,
        data: bytes,
        pos: i64,
        start: i64,
        head: FrameHeader,
        complete: bool,
    ) -> None:
        own = self.sides[side]
        position = self.position(side, offset)
        own.searched = self.observer.connection.direction(side).frames_missing
        if own.searched:
            self.searched = True
            if self.leaves_headers_out(side):
                return
        websocket = self.observer.websocket
        if websocket is None or websocket.state != FRAMES:
            self.report_frame(own, position, data, pos, start, head, complete)
            return
        new = self.redacted_message(own, data, start, head)
        own.unsorted = True
        done = 0
        for at, size, key in own.message_payloads(position, len(data)):
            piece = new[done : done + size]
            done += size
            if key is not None:
                piece = masked(piece, 0, len(piece), key)
            own.add_span(at, at + size, piece)

    def report_frame(
        self,
        own: RedactedSide,
        position: int,
        data: bytes,
        pos: i64,
        start: i64,
        head: FrameHeader,
        complete: bool,
    ) -> None:
        """Add the spans of a frame that lies in the direction as it is."""
        p = self.observer.protocol
        first = int(pos)
        at = position + int(start) - first
        content_end = at
        is_content = p.effects[head.kind] == CONTENT
        if is_content:
            content_end += int(head.payload_size)
        own.spans.append(Span(position, at, None, content_end, True))
        if not is_content:
            end = start + head.payload_size if complete else len(data)
            if end - start > head.payload_size:
                end = start + head.payload_size
            if complete or head.payload_size <= p.max_control_bytes:
                body = self.redacted_body(own, data, start, end, head)
                own.add_span(at, at + len(body), body)
        if complete and head.trailer_size > 0:
            begin = start + head.payload_size
            for one, other in p.trailer_structure(data, begin, begin + head.trailer_size):
                own.add_span(position + one - first, position + other - first)

    def redacted_body(
        self, own: RedactedSide, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> bytes:
        """What replaces data[start:end], the payload of a frame that is not content."""
        p = self.observer.protocol
        begin = int(start)
        body = data[start:end]
        text_at = int(head.text_start) - begin
        text_size = int(head.text_size)
        if text_size <= 0 or text_at < 0 or text_at + text_size > len(body):
            text_size = 0
        is_name = p.effects[head.kind] == OPENS
        new = bytearray(Content(self.redaction).replace(body) if text_size == 0 else body)
        if text_size == 0 and is_name and self.redaction.payload in (FULL, HEAD):
            new[:] = self.redaction.name(body, False)  # it is, or has, a part of the name
        if text_size > 0:
            if self.redaction.payload != FULL:
                new[:] = BLANK * len(body)
            text = body[text_at : text_at + text_size]
            if is_name:
                text = self.redaction.name(text, not own.searched and self.is_certain())
            else:
                text = self.redaction.text(text)
            new[text_at : text_at + text_size] = text
        for first, last in p.body_structure(data, start, end, head):
            new[first - begin : last - begin] = data[first:last]
        return bytes(new)

    def redacted_message(
        self, own: RedactedSide, data: bytes, start: i64, head: FrameHeader
    ) -> bytes:
        """What replaces a complete message."""
        if self.observer.protocol.effects[head.kind] == CONTENT:
            body = Content(self.redaction).replace(data[start:])
        else:
            body = self.redacted_body(own, data, start, len(data), head)
        return data[:start] + body

    def part(
        self, side: i64, offset: i64, pos: i64, size: i64, structure: list[tuple[int, int]]
    ) -> None:
        own = self.sides[side]
        if self.leaves_headers_out(side):
            return
        position = self.position(side, offset)
        own.spans.append(Span(position, position, None, position + int(size)))
        for first, last in structure:
            own.add_span(position + first - int(pos), position + last - int(pos))

    def incomplete(self, side: i64, offset: i64, data: bytes) -> None:
        websocket = self.observer.websocket
        if len(data) == 0 or (websocket is not None and websocket.state == FRAMES):
            return
        if self.leaves_headers_out(side):
            return
        own = self.sides[side]
        own.searched = self.observer.connection.direction(side).frames_missing
        position = self.position(side, offset)
        p = self.observer.protocol
        head = FrameHeader()
        reason = p.undecodable_reason
        start = p.decode_header(side, data, 0, len(data), head)
        if start >= 0:
            self.report_frame(own, position, data, 0, start, head, False)
        elif start == INCOMPLETE:
            self.keep_incomplete(own, position, data)
        p.undecodable_reason = reason

    def keep_incomplete(self, own: RedactedSide, position: int, data: bytes) -> None:
        """Keep what is needed of an incomplete header for it to stay one."""
        p = self.observer.protocol
        for begin in INCOMPLETE_HEADERS:
            new = begin * len(data)
            if p.decode_header(own.side, new, 0, len(new), FrameHeader()) == INCOMPLETE:
                own.add_span(position, position + len(data), new)
                return
        found = p.trailer_structure(data, 0, len(data))
        if len(found) == 0 and len(data) < MAX_KEPT_HEADER_BYTES:
            found = [(0, len(data))]  # a frame begins here, so it is a header
        for first, last in found:
            own.add_span(position + first, position + last)

    def undecodable(self, side: i64, offset: i64, available: i64, violation_mask: i64) -> None:
        websocket = self.observer.websocket
        if websocket is not None and websocket.state == FRAMES:
            return  # the payload of the message is blank
        new = self.invalid_header(side, int(available), violation_mask)
        if len(new) == 0:
            self.unlike_headers += 1
            return
        position = self.position(side, offset)
        self.sides[side].add_span(position, position + len(new), new)

    def invalid_header(self, side: i64, available: int, violation_mask: i64) -> bytes:
        """Bytes that break the same rules as a header that cannot be decoded; empty: none known."""
        p = self.observer.protocol
        trial = FrameHeader()
        reason = p.undecodable_reason
        found = b""
        for candidate in INVALID_HEADERS + unassigned_headers():
            tried = candidate[:available]
            trial.clear()
            if (
                p.decode_header(side, tried, 0, len(tried), trial) == INVALID
                and trial.format_violations == violation_mask
            ):
                size = 1
                while p.decode_header(side, tried, 0, size, trial) != INVALID:
                    size += 1
                found = tried[:size]
                break
        p.undecodable_reason = reason
        return found

    def websocket_header(
        self,
        side: i64,
        offset: i64,
        size: i64,
        opcode: i64,
        payload_size: i64,
        key: bytes | None,
    ) -> None:
        if self.leaves_headers_out(side):
            return
        own = self.sides[side]
        position = self.position(side, offset)
        own.add_span(position, position + int(size))
        own.unsorted = True
        if payload_size > 0 and opcode <= BINARY:
            own.payloads.append((position + int(size), int(payload_size), key))

    def websocket_control(
        self, side: i64, offset: i64, opcode: i64, payload: bytes, key: bytes | None
    ) -> None:
        if self.leaves_headers_out(side):
            return
        own = self.sides[side]
        position = self.position(side, offset)
        kept = 2 if opcode == CLOSE else 0
        new = payload[:kept] + self.redaction.text(payload[kept:])
        own.add_span(
            position,
            position + len(new),
            new if key is None else masked(new, 0, len(new), key),
        )


def unassigned_headers() -> tuple[bytes, ...]:
    """Headers of Minmux that write to each of the first streams."""
    return tuple([bytes([number, 0]) for number in range(63)])
