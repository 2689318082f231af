# mypyc: compiled
"""Where the structure of frames lies in the bytes of a connection: the interface of a layout sink.

A connection with a layout sink takes the slow path for every frame and reports each one. All bytes
that are not reported as structure are content, or could not be decoded.
"""

from mypy_extensions import i64

from polymux.core.frames import FrameHeader


class LayoutSink:
    """Is told where frames, and the parts of frames, begin; this base class does nothing.

    `side` is the sender. Offsets count the bytes of a direction, also inside WebSocket: there a
    frame's `offset` is that of its message on the wire, and `data` holds the message.
    """

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
        """A frame begins at data[pos], which is at `offset`; its payload begins at data[start].

        `complete`: data holds all of it. `head` is valid during the call.
        """
        return

    def part(
        self, side: i64, offset: i64, pos: i64, size: i64, structure: list[tuple[int, int]]
    ) -> None:
        """A part of a frame, `size` bytes, begins at `pos` of some bytes, which is at `offset`.

        `structure` has the ranges of these bytes that are not content.
        """
        return

    def incomplete(self, side: i64, offset: i64, data: bytes) -> None:
        """`data`, at `offset`, begins a frame that will not be complete; it may be empty."""
        return

    def undecodable(self, side: i64, offset: i64, available: i64, violation_mask: i64) -> None:
        """No frame can be decoded at `offset`, where `available` bytes have arrived."""
        return

    def websocket_header(
        self,
        side: i64,
        offset: i64,
        size: i64,
        opcode: i64,
        payload_size: i64,
        key: bytes | None,
    ) -> None:
        """A WebSocket frame has a header of `size` bytes at `offset`, and this masking key."""
        return

    def websocket_control(
        self, side: i64, offset: i64, opcode: i64, payload: bytes, key: bytes | None
    ) -> None:
        """The payload of a complete ping, pong or close, unmasked, which begins at `offset`."""
        return
