"""What the two sides exchange before the first frame: fixed bytes, or multistream-select.

In multistream-select a message is a varint length, a text and a line feed. Both sides begin with
the header. The dialer then proposes a protocol id; the acceptor repeats it to agree, or answers
`na` and waits for another proposal.
"""

from polymux.core.errors import PolymuxError, SessionClosed, Unsupported
from polymux.core.side import DIALER

MULTISTREAM_HEADER = b"/multistream/1.0.0\n"
PROTOCOL_IDS = {"mplex": b"/mplex/6.7.0\n", "yamux": b"/yamux/1.0.0\n"}
NOT_AVAILABLE = b"na\n"
MAX_LINE_BYTES = 1024  # of a received line
MAX_PROPOSALS = 16  # by one dialer


class Preamble:
    """One side of the exchange. Performs no I/O.

    Args:
        text: `multistream`, or the fixed bytes in hex.
        protocol: Name of the protocol that follows.
        side: This side, DIALER or ACCEPTOR.

    Raises:
        Unsupported: multistream-select has no id for the protocol.
        PolymuxError: `text` is neither `multistream` nor hex.
    """

    def __init__(self, text: str, protocol: str, side: int) -> None:
        self.done = False  # frames follow, in both directions
        self.side = side
        self.is_multistream = text == "multistream"
        self.buffered = b""  # received, not processed yet
        self.lines_received = 0
        self.protocol_id = PROTOCOL_IDS.get(protocol, b"")
        if self.is_multistream and not self.protocol_id:
            raise Unsupported(f"multistream-select has no name for {protocol}")
        try:
            self.fixed_bytes = b"" if self.is_multistream else bytes.fromhex(text)
        except ValueError:
            raise PolymuxError(f"preamble is 'multistream' or bytes in hex, not {text!r}") from None

    def initial_bytes(self) -> bytes:
        """Return what this side sends first, without waiting for the peer."""
        if not self.is_multistream:
            return self.fixed_bytes
        return encode_line(MULTISTREAM_HEADER) + (
            encode_line(self.protocol_id) if self.side == DIALER else b""
        )

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Process received bytes.

        Returns:
            The reply to send, and once `done` the bytes that follow the preamble.

        Raises:
            SessionClosed: The peer sent something else, or has not the protocol.
        """
        self.buffered += data
        if not self.is_multistream:
            size = len(self.fixed_bytes)
            if not self.buffered.startswith(self.fixed_bytes[: len(self.buffered)]):
                raise SessionClosed(
                    f"the peer began with {self.buffered[:size].hex()}, not with the preamble "
                    f"{self.fixed_bytes.hex()}"
                )
            self.done = len(self.buffered) >= size
            return b"", self._take_rest(size) if self.done else b""
        reply = b""
        while not self.done and (line := self._next_line()):
            reply += self._process_line(line)
        return reply, self._take_rest(0) if self.done else b""

    def _take_rest(self, size: int) -> bytes:
        rest, self.buffered = self.buffered[size:], b""
        return rest

    def _next_line(self) -> bytes:
        """Take the next complete line; empty if there is none."""
        buffered = self.buffered
        if len(buffered) < 2:
            return b""
        size, start = buffered[0], 1
        if size & 128:
            size, start = (size & 127) + buffered[1] * 128, 2
        if not 0 < size <= MAX_LINE_BYTES:
            raise SessionClosed(f"the peer speaks no multistream-select: a line of {size} bytes")
        if len(buffered) < start + size:
            return b""
        self.buffered = buffered[start + size :]
        return buffered[start : start + size]

    def _process_line(self, text: bytes) -> bytes:
        self.lines_received += 1
        if self.lines_received == 1:
            if text != MULTISTREAM_HEADER:
                raise SessionClosed(f"the peer speaks no multistream-select: it sent {text!r}")
            return b""
        if text == self.protocol_id:
            self.done = True
            return b"" if self.side == DIALER else encode_line(self.protocol_id)
        protocol = self.protocol_id.decode().strip()
        if self.side == DIALER:
            raise SessionClosed(f"the peer has no {protocol}: it answered {text!r}")
        if self.lines_received > MAX_PROPOSALS:
            raise SessionClosed(
                f"the peer asked for {MAX_PROPOSALS} protocols, and never for {protocol}"
            )
        return encode_line(NOT_AVAILABLE)


def encode_line(text: bytes) -> bytes:
    return bytes([len(text)]) + text
