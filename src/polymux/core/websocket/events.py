# mypyc: compiled
"""What the WebSocket decoder reports: messages, control frames, violations and lost framing.

Offsets count the bytes of the direction; `wire_bytes` are bytes of complete frames, headers
included.
"""

from typing import TypeAlias

from polymux.core.websocket.rules import FrameRule


class Message:
    """A complete message, unmasked and with its fragments joined.

    `offset` is where its first frame began. `wire_bytes` excludes control frames between its
    fragments. `holes` are (start, size) of bytes of `data` that were not captured and are zeros.
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
    """A ping, which a live endpoint must answer with a pong of the same data.

    `damaged`: some of `data` was not captured and is zeros.
    """

    def __init__(self, data: bytes, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged

    def __repr__(self) -> str:
        return f"Ping({self.data!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"


class Pong:
    """A pong, solicited or not. `damaged`: some of `data` was not captured and is zeros."""

    def __init__(self, data: bytes, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged

    def __repr__(self) -> str:
        return f"Pong({self.data!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"


class Close:
    """The close frame. Its code is `NO_STATUS` if it has none, or if that was not captured."""

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
    """A rule that the frame at `offset` breaks; `detail` says what was found."""

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
    """Nothing can be decoded from `offset` on: the start of the next frame is not known."""

    def __init__(self, detail: str, offset: int) -> None:
        self.detail = detail
        self.offset = offset

    def __repr__(self) -> str:
        return f"DecodingLost({self.detail!r}, {self.offset})"


DecoderEvent: TypeAlias = Message | Ping | Pong | Close | FrameViolation | DecodingLost
