"""What two peers exchange before the first frame: fixed bytes, or multistream-select.

In multistream-select every line is a varint length, a text and a line feed. The dialer names the
protocol it wants, the listener repeats it, or says `na` and waits for another name.
"""

from typing import TYPE_CHECKING

from polymux.core.errors import PolymuxError, SessionClosed, Unsupported
from polymux.core.side import DIALER

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

MULTISTREAM_HEADER = b"/multistream/1.0.0\n"
PROTOCOL_IDS = {"mplex": b"/mplex/6.7.0\n"}
NOT_AVAILABLE = b"na\n"
MAX_LINE_BYTES = 1024  # bytes of a line that are read
MAX_PROPOSALS = 16  # names a dialer may try


class Preamble:
    """One side of the exchange. `done`: frames may follow, in both directions."""

    def __init__(self, text: str, protocol: str, side: int) -> None:
        self.done = False
        self.side = side
        self.is_multistream = text == "multistream"
        self.buffered = b""  # of what came, not understood yet
        self.lines_received = 0  # lines
        self.protocol_id = PROTOCOL_IDS.get(protocol, b"")
        if self.is_multistream and not self.protocol_id:
            raise Unsupported(f"multistream-select has no name for {protocol}")
        try:
            self.fixed_bytes = b"" if self.is_multistream else bytes.fromhex(text)
        except ValueError:
            raise PolymuxError(f"preamble is 'multistream' or bytes in hex, not {text!r}") from None

    def initial_bytes(self) -> bytes:
        """What is sent at once."""
        if not self.is_multistream:
            return self.fixed_bytes
        return encode_line(MULTISTREAM_HEADER) + (
            encode_line(self.protocol_id) if self.side == DIALER else b""
        )

    def exchange(self, session: "Session", data: bytes) -> bytes:
        """Bytes that came before the first frame; returns those from it on."""
        answer, rest = self.receive(data)
        if session.transport is not None:
            session.transport.write(answer)
        if self.done:
            session.preamble = None
            session.update_ready()
            session.schedule_flush()
        return rest

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """The next bytes of the peer: what to answer, and what is left once all is done."""
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
        answer = b""
        while not self.done and (said := self._next_line()):
            answer += self._process_line(said)
        return answer, self._take_rest(0) if self.done else b""

    def _take_rest(self, size: int) -> bytes:
        rest, self.buffered = self.buffered[size:], b""
        return rest

    def _next_line(self) -> bytes:
        """The next whole line, or nothing."""
        held = self.buffered
        if len(held) < 2:
            return b""
        size, start = held[0], 1
        if size & 128:
            size, start = (size & 127) + held[1] * 128, 2
        if not 0 < size <= MAX_LINE_BYTES:
            raise SessionClosed(f"the peer speaks no multistream-select: a line of {size} bytes")
        if len(held) < start + size:
            return b""
        self.buffered = held[start + size :]
        return held[start : start + size]

    def _process_line(self, text: bytes) -> bytes:
        self.lines_received += 1
        if self.lines_received == 1:
            if text != MULTISTREAM_HEADER:
                raise SessionClosed(f"the peer speaks no multistream-select: it said {text!r}")
            return b""
        if text == self.protocol_id:
            self.done = True
            return b"" if self.side == DIALER else encode_line(self.protocol_id)
        wanted = self.protocol_id.decode().strip()
        if self.side == DIALER:
            raise SessionClosed(f"the peer has no {wanted}: it said {text!r}")
        if self.lines_received > MAX_PROPOSALS:
            raise SessionClosed(
                f"the peer asked for {MAX_PROPOSALS} protocols, and never for {wanted}"
            )
        return encode_line(NOT_AVAILABLE)


def encode_line(text: bytes) -> bytes:
    return bytes([len(text)]) + text
