# mypyc: compiled
"""WebSocket below a live endpoint, after the handshake: frames in, frames out, pings and the close.

Chance comes in as the nonce of `Endpoint.start`: the dialer's masking keys are drawn from it, so
that nobody who has not seen the nonce can foresee them (RFC 6455, 10.3).
"""

from hashlib import shake_256
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.errors import LocalProtocolError
from polymux.core.side import DIALER
from polymux.core.varint import read_big_endian
from polymux.core.websocket.events import Close, FrameViolation, Ping
from polymux.core.websocket.frames import (
    BINARY,
    FAST_MASK_MIN_BYTES,
    NO_STATUS,
    MaskFunction,
    close_frame,
    ping_frame,
    pong_frame,
    write_header,
    write_masked,
)
from polymux.core.websocket.layer import FRAMES, MessageProtocol, WebSocketLayer

LENGTH_PREFIX_BYTES: Final[i64] = 4  # of a message as a protocol writes it: its length
MIN_NONCE_BYTES: Final = 16  # bytes of chance at least
KEY_BLOCK_BYTES: Final = 1024  # bytes of masking keys drawn at a time


class LiveWebSocketLayer(WebSocketLayer):
    """One side's WebSocket. Pings are answered, a close is answered, what is broken is closed."""

    def __init__(self, connection: Connection, protocol: MessageProtocol, side: i64) -> None:
        super().__init__(connection, protocol, False)
        self.state = FRAMES
        self.side: i64 = side
        self.seed = b""
        self.key_blocks_drawn = 0
        self.key_bytes = b""
        self.key_bytes_used: i64 = 0  # of these bytes
        self.fast_mask: MaskFunction | None = None
        self.pending_pong: bytes | None = None  # owed: the answer to the newest ping (5.5.3)
        self.ping_queued = False  # a ping is to go
        self.close_queued = False  # a close frame is to go
        self.close_code = NO_STATUS
        self.close_reason = ""
        self.close_sent = False  # a close frame has been sent: nothing may follow it
        self.close_received = False  # the peer's has come
        self.peer_close_reason = ""  # the reason in it

    def seed_masking_keys(self, nonce: bytes) -> None:
        """Take the bytes of chance that masking keys are drawn from."""
        self.seed = nonce

    def next_masking_key(self) -> bytes | None:
        """A fresh masking key; None for a side that masks nothing."""
        if self.side != DIALER:
            return None
        if len(self.seed) < MIN_NONCE_BYTES:
            raise LocalProtocolError(
                f"a WebSocket client needs start(nonce) with {MIN_NONCE_BYTES} random bytes or more"
            )
        if self.key_bytes_used == len(self.key_bytes):
            self.key_bytes = shake_256(self.seed + self.key_blocks_drawn.to_bytes(8, "big")).digest(
                KEY_BLOCK_BYTES
            )
            self.key_blocks_drawn += 1
            self.key_bytes_used = 0
        self.key_bytes_used += 4
        return self.key_bytes[self.key_bytes_used - 4 : self.key_bytes_used]

    def use_fast_mask(self, mask: MaskFunction) -> None:
        """Use this mask for large payloads, in and out: it does the same as ours, only quicker."""
        self.fast_mask = mask
        self.direction_decoder(1 - self.side).decoder.run_decoder.fast_mask = mask

    # --- what comes

    def on_ping(self, ping: Ping) -> None:
        self.pending_pong = ping.data

    def take_empty_frames(self) -> i64:
        """How many frames of the peer have brought nothing since the last call."""
        decoder = self.direction_decoder(1 - self.side).decoder
        count = decoder.empty_frames
        decoder.empty_frames = 0
        return count

    def on_close(self, close: Close) -> None:
        self.close_received = True
        self.peer_close_reason = close.reason
        self.queue_close(close.code, "")

    def on_violation(self, violation: FrameViolation) -> None:
        self.queue_close(violation.close_code, violation.rule.name)

    # --- what goes

    def queue_close(self, code: int, reason: str) -> None:
        """Send a close frame after what is queued. The first reason given stands."""
        if not self.close_sent and not self.close_queued:
            self.close_queued = True
            self.close_code = code
            self.close_reason = reason

    def queue_ping(self) -> None:
        """Send a ping: who is there answers."""
        self.ping_queued = True

    def pending(self) -> bool:
        return not self.close_sent and (
            self.pending_pong is not None or self.ping_queued or self.close_queued
        )

    def encode(self, chunks: list[bytes]) -> list[bytes]:
        """Messages as the protocol wrote them, each behind its length, as WebSocket frames.

        A length never lies in two chunks; a payload may fill a chunk of its own, and unmasked it is
        then not copied.
        """
        if self.close_sent:
            return []
        wrapped: list[bytes] = []
        out = BytesWriter()
        if self.pending_pong is not None:
            out.write(pong_frame(self.pending_pong, self.next_masking_key()))
            self.pending_pong = None
        if self.ping_queued:
            out.write(ping_frame(b"", self.next_masking_key()))
            self.ping_queued = False
        quick = self.fast_mask
        left: i64 = 0  # bytes of the message at hand that are still to come
        key: bytes | None = None
        for data in chunks:
            end: i64 = len(data)
            if left == end and key is None and left > 0:
                wrapped.append(out.getvalue())
                wrapped.append(data)
                out = BytesWriter()
                left = 0
                continue
            pos: i64 = 0
            while pos < end:
                if left == 0:
                    left = read_big_endian(data, pos, LENGTH_PREFIX_BYTES)
                    pos += LENGTH_PREFIX_BYTES
                    key = self.next_masking_key()
                    write_header(out, BINARY, left, key)
                part = left if left < end - pos else end - pos
                if key is None:
                    out.write(data[pos : pos + part])
                elif part >= FAST_MASK_MIN_BYTES and quick is not None:
                    if len(out) > 0:
                        wrapped.append(out.getvalue())
                        out = BytesWriter()
                    wrapped.append(quick(data[pos : pos + part], key))
                else:
                    write_masked(out, data, pos, pos + part, key)
                pos += part
                left -= part
                if left > 0 and key is not None:  # the rest is in the next chunk
                    turn = part & 3
                    key = key[turn:] + key[:turn]
        if self.close_queued:
            out.write(close_frame(self.close_code, self.close_reason, self.next_masking_key()))
            self.close_queued = False
            self.close_sent = True
        if len(out) > 0:
            wrapped.append(out.getvalue())
        return wrapped
