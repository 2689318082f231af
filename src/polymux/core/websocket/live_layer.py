# mypyc: compiled
"""WebSocket below a live endpoint, after the handshake: frames in, frames out, pings and the close.

Chance comes in as the nonce of `Endpoint.start`: the dialer's masking keys are drawn from it, so
that nobody who has not seen the nonce can foresee them (RFC 6455, 10.3).
"""

from hashlib import shake_256
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.connection import Conversation
from polymux.core.errors import LocalProtocolError
from polymux.core.side import DIALER
from polymux.core.varint import unsigned
from polymux.core.websocket.events import Close, Fault, Ping
from polymux.core.websocket.frames import (
    BINARY,
    NO_STATUS,
    QUICK,
    Mask,
    close,
    ping,
    pong,
    write_head,
    write_masked,
)
from polymux.core.websocket.layer import FRAMES, Carrier, Enveloped

PREFIX: Final[i64] = 4  # of a message as a protocol writes it: its length
NONCE: Final = 16  # octets of chance at least
DRAW: Final = 1024  # octets of masking keys drawn at a time


class LiveCarrier(Carrier):
    """One side's WebSocket. Pings are answered, a close is answered, what is broken is closed."""

    def __init__(self, conversation: Conversation, protocol: Enveloped, side: i64) -> None:
        super().__init__(conversation, protocol, False)
        self.state = FRAMES
        self.side: i64 = side
        self.seed = b""
        self.drawn = 0
        self.keys = b""
        self.used: i64 = 0  # of these octets
        self.mask: Mask | None = None
        self.pong: bytes | None = None  # owed: the answer to the newest ping (5.5.3)
        self.asking = False  # a ping is to go
        self.closing = False  # a close frame is to go
        self.code = NO_STATUS
        self.reason = ""
        self.hung_up = False  # a close frame has been sent: nothing may follow it
        self.ended = False  # the peer's has come
        self.said = ""  # the reason in it

    def sow(self, nonce: bytes) -> None:
        """Take the octets of chance that masking keys are drawn from."""
        self.seed = nonce

    def key(self) -> bytes | None:
        """A fresh masking key; None for a side that masks nothing."""
        if self.side != DIALER:
            return None
        if len(self.seed) < NONCE:
            raise LocalProtocolError(
                f"a WebSocket client needs start(nonce) with {NONCE} random octets or more"
            )
        if self.used == len(self.keys):
            self.keys = shake_256(self.seed + self.drawn.to_bytes(8, "big")).digest(DRAW)
            self.drawn += 1
            self.used = 0
        self.used += 4
        return self.keys[self.used - 4 : self.used]

    def quicken(self, mask: Mask) -> None:
        """Use this mask for large payloads, in and out: it does the same as ours, only quicker."""
        self.mask = mask
        self.course(1 - self.side).decoder.run.mask = mask

    # --- what comes

    def pinged(self, ping: Ping) -> None:
        self.pong = ping.data

    def hollow(self) -> i64:
        """How many frames of the peer have brought nothing since the last call."""
        decoder = self.course(1 - self.side).decoder
        count = decoder.hollow
        decoder.hollow = 0
        return count

    def closed(self, close: Close) -> None:
        self.ended = True
        self.said = close.reason
        self.hang_up(close.code, "")

    def failed(self, fault: Fault) -> None:
        self.hang_up(fault.close_code, fault.rule.name)

    # --- what goes

    def hang_up(self, code: int, reason: str) -> None:
        """Send a close frame after what is queued. The first reason given stands."""
        if not self.hung_up and not self.closing:
            self.closing = True
            self.code = code
            self.reason = reason

    def ask(self) -> None:
        """Send a ping: who is there answers."""
        self.asking = True

    def pending(self) -> bool:
        return not self.hung_up and (self.pong is not None or self.asking or self.closing)

    def wrap(self, chunks: list[bytes]) -> list[bytes]:
        """Messages as the protocol wrote them, each behind its length, as WebSocket frames.

        A length never lies in two chunks; a payload may fill a chunk of its own, and unmasked it is
        then not copied.
        """
        if self.hung_up:
            return []
        wrapped: list[bytes] = []
        out = BytesWriter()
        if self.pong is not None:
            out.write(pong(self.pong, self.key()))
            self.pong = None
        if self.asking:
            out.write(ping(b"", self.key()))
            self.asking = False
        quick = self.mask
        left: i64 = 0  # octets of the message at hand that are still to come
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
                    left = unsigned(data, pos, PREFIX)
                    pos += PREFIX
                    key = self.key()
                    write_head(out, BINARY, left, key)
                part = left if left < end - pos else end - pos
                if key is None:
                    out.write(data[pos : pos + part])
                elif part >= QUICK and quick is not None:
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
        if self.closing:
            out.write(close(self.code, self.reason, self.key()))
            self.closing = False
            self.hung_up = True
        if len(out) > 0:
            wrapped.append(out.getvalue())
        return wrapped
