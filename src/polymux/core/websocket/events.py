# mypyc: compiled
"""What the WebSocket decoder reports: messages, control frames, violations and lost framing.

Offsets count the bytes of the direction; `wire_bytes` are bytes of complete frames, headers
included.
"""

from typing import TypeAlias

from polymux.core.websocket.rules import FrameRule


class Message:
    """A whole message: unmasked, its fragments joined.

    `offset` is where its first frame began, `bytes` the size of its frames on the wire without the
    control frames between them. `holes` are (start, size) of bytes of `data` that were never seen
    and stand as zeros; empty unless the capture has a gap there.
    """

    def __init__(
        self, data: bytes, offset: int, wire_bytes: int, holes: tuple[tuple[int, int], ...]
    ) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.holes = holes

    def __repr__(self) -> str:
        return f"Message({self.data!r}, {self.offset}, {self.wire_bytes}, {self.holes})"


class Ping:
    """A ping. A live endpoint owes a pong with the same data."""

    def __init__(self, data: bytes, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged  # some of `data` was never seen and stands as zeros

    def __repr__(self) -> str:
        return f"Ping({self.data!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"


class Pong:
    """A pong, asked for or not."""

    def __init__(self, data: bytes, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged

    def __repr__(self) -> str:
        return f"Pong({self.data!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"


class Close:
    """The close frame; code `NO_STATUS` where it has none, or where a gap hides it."""

    def __init__(self, code: int, reason: str, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.code = code
        self.reason = reason
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged

    def __repr__(self) -> str:
        return (
            f"Close({self.code}, {self.reason!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"
        )


class FrameViolation:
    """A rule the sender broke in the frame that began at `offset`; `detail` is what was found."""

    def __init__(self, rule: FrameRule, detail: str, offset: int) -> None:
        self.rule = rule
        self.detail = detail
        self.offset = offset
        self.close_code = rule.close_code

    def __repr__(self) -> str:
        return f"FrameViolation({self.rule.name}, {self.detail!r}, {self.offset})"

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.detail} (byte {self.offset}; {self.rule.sentence})"


class DecodingLost:
    """From `offset` on nothing can be decoded, since the start of the next frame is not known."""

    def __init__(self, detail: str, offset: int) -> None:
        self.detail = detail
        self.offset = offset

    def __repr__(self) -> str:
        return f"DecodingLost({self.detail!r}, {self.offset})"


DecoderEvent: TypeAlias = Message | Ping | Pong | Close | FrameViolation | DecodingLost
