# mypyc: compiled
"""The WebSocket layer of a live endpoint, after the HTTP upgrade: frames, pings and the close.

The dialer's masking keys must be unpredictable (RFC 6455, 10.3). They are derived with SHAKE-256
from the nonce given to `Endpoint.start`, since there is no randomness in the core.
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

LENGTH_PREFIX_BYTES: Final[i64] = 4  # before each message that the protocol encodes
MIN_NONCE_BYTES: Final = 16  # of randomness, at least
KEY_BLOCK_BYTES: Final = 1024  # bytes of masking keys derived at a time


class LiveWebSocketLayer(WebSocketLayer):
    """The WebSocket layer of one side. It answers pings and the close, and closes on violations."""

    def __init__(self, connection: Connection, protocol: MessageProtocol, side: i64) -> None:
        super().__init__(connection, protocol, False)
        self.state = FRAMES
        self.side: i64 = side
        self.seed = b""
        self.key_blocks_drawn = 0
        self.key_bytes = b""
        self.key_bytes_used: i64 = 0  # of `key_bytes`
        self.fast_mask: MaskFunction | None = None
        self.pending_pong: bytes | None = None  # the data of the newest ping (5.5.3)
        self.ping_queued = False
        self.close_queued = False
        self.close_code = NO_STATUS
        self.close_reason = ""
        self.close_sent = False  # nothing may be sent after a close frame
        self.close_received = False
        self.peer_close_reason = ""

    def seed_masking_keys(self, nonce: bytes) -> None:
        """Set the random bytes that masking keys are derived from."""
        self.seed = nonce

    def next_masking_key(self) -> bytes | None:
        """A new masking key; None for the acceptor, which does not mask.

        Raises:
            LocalProtocolError: `seed_masking_keys` was not given enough random bytes.
        """
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
        """Use this faster, equivalent function to mask and unmask large payloads."""
        self.fast_mask = mask
        self.direction_decoder(1 - self.side).decoder.run_decoder.fast_mask = mask

    # Receiving

    def on_ping(self, ping: Ping) -> None:
        """Queue a pong; it replaces one that was not sent yet."""
        self.pending_pong = ping.data

    def take_empty_frames(self) -> i64:
        """How many frames without content the peer has sent since the last call."""
        decoder = self.direction_decoder(1 - self.side).decoder
        count = decoder.empty_frames
        decoder.empty_frames = 0
        return count

    def on_close(self, close: Close) -> None:
        """Answer the peer's close frame."""
        self.close_received = True
        self.peer_close_reason = close.reason
        self.queue_close(close.code, "")

    def on_violation(self, violation: FrameViolation) -> None:
        """Close with the code of the rule that the peer broke."""
        self.queue_close(violation.close_code, violation.rule.name)

    # Sending

    def queue_close(self, code: int, reason: str) -> None:
        """Send a close frame after what is queued. Only the first call has an effect."""
        if not self.close_sent and not self.close_queued:
            self.close_queued = True
            self.close_code = code
            self.close_reason = reason

    def queue_ping(self) -> None:
        """Send a ping, which a live peer answers."""
        self.ping_queued = True

    def pending(self) -> bool:
        """Whether a control frame is to be sent."""
        return not self.close_sent and (
            self.pending_pong is not None or self.ping_queued or self.close_queued
        )

    def encode(self, chunks: list[bytes]) -> list[bytes]:
        """Encode messages as WebSocket frames, preceded and followed by control frames.

        Args:
            chunks: messages as the protocol encodes them, each after its length in 4 bytes. A
                length is never split between chunks. A payload may fill a chunk of its own; if it
                is not masked it is not copied.

        Returns:
            The bytes to send, in chunks; empty after a close frame was sent.
        """
        if self.close_sent:
            return []
        encoded: list[bytes] = []
        out = BytesWriter()
        if self.pending_pong is not None:
            out.write(pong_frame(self.pending_pong, self.next_masking_key()))
            self.pending_pong = None
        if self.ping_queued:
            out.write(ping_frame(b"", self.next_masking_key()))
            self.ping_queued = False
        fast_mask = self.fast_mask
        left: i64 = 0  # bytes of the current message that follow
        key: bytes | None = None
        for data in chunks:
            end: i64 = len(data)
            if left == end and key is None and left > 0:
                encoded.append(out.getvalue())
                encoded.append(data)
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
                elif part >= FAST_MASK_MIN_BYTES and fast_mask is not None:
                    if len(out) > 0:
                        encoded.append(out.getvalue())
                        out = BytesWriter()
                    encoded.append(fast_mask(data[pos : pos + part], key))
                else:
                    write_masked(out, data, pos, pos + part, key)
                pos += part
                left -= part
                if left > 0 and key is not None:  # the rest is in the next chunk
                    phase = part & 3
                    key = key[phase:] + key[:phase]
        if self.close_queued:
            out.write(close_frame(self.close_code, self.close_reason, self.next_masking_key()))
            self.close_queued = False
            self.close_sent = True
        if len(out) > 0:
            encoded.append(out.getvalue())
        return encoded
