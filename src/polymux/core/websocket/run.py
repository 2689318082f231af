# mypyc: compiled
"""Runs of whole WebSocket messages: what almost every byte of a busy connection is part of.

The decoder in `websocket` reads frame by frame, whatever comes and however it is cut. Where the
next bytes are binary messages of one frame each, all of them there, and nothing is wrong with any,
`Run` reads them in one loop, to the same items and counts.
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from polymux.core.side import DIALER
from polymux.core.websocket.events import DecoderEvent, Message
from polymux.core.websocket.frames import (
    BINARY,
    FAST_MASK_MIN_BYTES,
    FIN_BIT,
    MaskFunction,
    write_masked,
)

SINGLE_FRAME_BINARY: Final[i64] = FIN_BIT | BINARY


class MessageRunDecoder:
    """Reads such runs of one direction. `mask` is a quicker one than ours, if there is any."""

    def __init__(self, sender: i64, max_message_bytes: i64) -> None:
        self.sender: i64 = sender
        self.max_message_bytes: i64 = max_message_bytes
        self.fast_mask: MaskFunction | None = None
        self.scratch = BytesWriter()

    def read(self, data: bytes, pos: i64, end: i64, offset: int, events: list[DecoderEvent]) -> i64:
        """Append the messages that begin at `pos`, which is `offset` in the direction.

        Returns the position of the first frame that is not one of these, or not all there.
        """
        begin = pos
        bit: i64 = 128 if self.sender == DIALER else 0
        while end - pos >= 2:
            second: i64 = data[pos + 1]
            if data[pos] != SINGLE_FRAME_BINARY or second & 128 != bit:
                break
            size = second & 127
            at = pos + 2
            if size == 126:
                if end - pos < 4:
                    break
                high: i64 = data[pos + 2]
                low: i64 = data[pos + 3]
                size = (high << 8) | low
                at = pos + 4
                if size < 126:  # not the shortest form
                    break
            elif size == 127:
                if end - pos < 10:
                    break
                size = read_i64_be(data, pos + 2)
                at = pos + 10
                if size < 65536:
                    break
            if bit != 0:
                at += 4
            if size > self.max_message_bytes or size > end - at:
                break
            after = at + size
            payload = data[at:after] if bit == 0 else self.unmask(data, at, after)
            events.append(Message(payload, offset + (pos - begin), after - pos, ()))
            pos = after
        return pos

    def unmask(self, data: bytes, start: i64, end: i64) -> bytes:
        """A payload that follows its key."""
        key = data[start - 4 : start]
        quick = self.fast_mask
        if quick is not None and end - start >= FAST_MASK_MIN_BYTES:
            return quick(data[start:end], key)
        out = self.scratch
        write_masked(out, data, start, end, key)
        payload = out.getvalue()
        out.truncate(0)
        return payload
