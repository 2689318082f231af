"""What two peers exchange before the first frame: fixed octets, or multistream-select.

In multistream-select every line is a varint length, a text and a line feed. The dialer names the
protocol it wants, the listener repeats it, or says `na` and waits for another name.
"""

from typing import TYPE_CHECKING

from polymux.core.errors import PolymuxError, SessionClosed, Unsupported
from polymux.core.side import DIALER

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

SELECT = b"/multistream/1.0.0\n"
NAMES = {"mplex": b"/mplex/6.7.0\n"}
NOT_HERE = b"na\n"
LONGEST = 1024  # octets of a line that are read
MOST = 16  # names a dialer may try


class Preamble:
    """One side of the exchange. `done`: frames may follow, in both directions."""

    def __init__(self, text: str, protocol: str, side: int) -> None:
        self.done = False
        self.side = side
        self.lines = text == "multistream"
        self.held = b""  # of what came, not understood yet
        self.heard = 0  # lines
        self.name = NAMES.get(protocol, b"")
        if self.lines and not self.name:
            raise Unsupported(f"multistream-select has no name for {protocol}")
        try:
            self.octets = b"" if self.lines else bytes.fromhex(text)
        except ValueError:
            raise PolymuxError(
                f"preamble is 'multistream' or octets in hex, not {text!r}"
            ) from None

    def begin(self) -> bytes:
        """What is sent at once."""
        if not self.lines:
            return self.octets
        return line(SELECT) + (line(self.name) if self.side == DIALER else b"")

    def exchange(self, session: "Session", data: bytes) -> bytes:
        """Octets that came before the first frame; returns those from it on."""
        answer, rest = self.take(data)
        if session.transport is not None:
            session.transport.write(answer)
        if self.done:
            session.preamble = None
            session._settle_ready()
            session._flush_soon()
        return rest

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """The next octets of the peer: what to answer, and what is left once all is done."""
        self.held += data
        if not self.lines:
            size = len(self.octets)
            if not self.held.startswith(self.octets[: len(self.held)]):
                raise SessionClosed(
                    f"the peer began with {self.held[:size].hex()}, not with the preamble "
                    f"{self.octets.hex()}"
                )
            self.done = len(self.held) >= size
            return b"", self._rest(size) if self.done else b""
        answer = b""
        while not self.done and (said := self._line()):
            answer += self._hear(said)
        return answer, self._rest(0) if self.done else b""

    def _rest(self, size: int) -> bytes:
        rest, self.held = self.held[size:], b""
        return rest

    def _line(self) -> bytes:
        """The next whole line, or nothing."""
        held = self.held
        if len(held) < 2:
            return b""
        size, start = held[0], 1
        if size & 128:
            size, start = (size & 127) + held[1] * 128, 2
        if not 0 < size <= LONGEST:
            raise SessionClosed(f"the peer speaks no multistream-select: a line of {size} octets")
        if len(held) < start + size:
            return b""
        self.held = held[start + size :]
        return held[start : start + size]

    def _hear(self, said: bytes) -> bytes:
        self.heard += 1
        if self.heard == 1:
            if said != SELECT:
                raise SessionClosed(f"the peer speaks no multistream-select: it said {said!r}")
            return b""
        if said == self.name:
            self.done = True
            return b"" if self.side == DIALER else line(self.name)
        wanted = self.name.decode().strip()
        if self.side == DIALER:
            raise SessionClosed(f"the peer has no {wanted}: it said {said!r}")
        if self.heard > MOST:
            raise SessionClosed(f"the peer asked for {MOST} protocols, and never for {wanted}")
        return line(NOT_HERE)


def line(text: bytes) -> bytes:
    return bytes([len(text)]) + text
