"""SOCKS5 (RFC 1928) as a tunnel client speaks it: CONNECT, without authentication.

`SocksNegotiation` gets bytes and returns what to answer; it does no I/O.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from polymux.core.errors import PolymuxError
from polymux.relay.tunnel.targets import FAILED, Target, is_host

VERSION = 5
CONNECT = 1
NO_AUTHENTICATION = 0
NO_METHOD = 0xFF
IPV4, DOMAIN, IPV6 = 1, 3, 4
SUCCEEDED = 0
COMMAND_NOT_SUPPORTED = 7
ADDRESS_NOT_SUPPORTED = 8


class BadSocks(PolymuxError):
    """A client does not speak SOCKS5, or asks for something else than a connection.

    Attributes:
        answer: What to send it before it is closed.
    """

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        self.answer = answer
        super().__init__(reason)


class SocksNegotiation:
    """One client's negotiation, up to its request.

    Attributes:
        target: Where the client wants to connect to; None until it has said so.
        rest: Bytes that came after the request.
    """

    def __init__(self) -> None:
        self.target: Target | None = None
        self.rest = b""
        self._buffer = b""
        self._greeted = False

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the client. Return what to send it.

        Raises:
            BadSocks: It cannot be served.
        """
        self._buffer += data
        answer = b""
        if not self._greeted:
            answer = self._greet()
        if self._greeted and self.target is None:
            self._read_request()
        return answer

    def _greet(self) -> bytes:
        buffer = self._buffer
        if buffer[:1] and buffer[0] != VERSION:
            raise BadSocks("not SOCKS5: the client speaks another protocol")
        if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
            return b""
        methods = buffer[2 : 2 + buffer[1]]
        if NO_AUTHENTICATION not in methods:
            raise BadSocks(
                "the client offers no SOCKS5 method without authentication",
                bytes((VERSION, NO_METHOD)),
            )
        self._buffer = buffer[2 + buffer[1] :]
        self._greeted = True
        return bytes((VERSION, NO_AUTHENTICATION))

    def _read_request(self) -> None:
        buffer = self._buffer
        if len(buffer) < 5:
            return
        version, command, _, kind = buffer[:4]
        if version != VERSION:
            raise BadSocks("not a request of SOCKS5", reply(FAILED))
        if command != CONNECT:
            raise BadSocks(
                f"SOCKS5 command {command}: only CONNECT (1) is served",
                reply(COMMAND_NOT_SUPPORTED),
            )
        sizes = {IPV4: 4, IPV6: 16, DOMAIN: 1 + buffer[4]}
        if kind not in sizes:
            raise BadSocks(f"SOCKS5 address type {kind} is unknown", reply(ADDRESS_NOT_SUPPORTED))
        end = 4 + sizes[kind]
        if len(buffer) < end + 2:
            return
        raw = buffer[4:end]
        host = read_host(kind, raw)
        self.target = Target(host, int.from_bytes(buffer[end : end + 2], "big"))
        self.rest = buffer[end + 2 :]
        self._buffer = b""
        if self.target.port == 0:
            raise BadSocks("SOCKS5: port 0 cannot be connected to", reply(FAILED))


def read_host(kind: int, raw: bytes) -> str:
    """The host of a request."""
    if kind == IPV4:
        return str(IPv4Address(raw))
    if kind == IPV6:
        return str(IPv6Address(raw))
    name = raw[1:].decode("ascii", "replace")
    if not is_host(name):
        raise BadSocks("SOCKS5: not a host name", reply(ADDRESS_NOT_SUPPORTED))
    return name


def reply(code: int) -> bytes:
    """The reply to a request: SUCCEEDED, or why it failed; the address bound is not told."""
    return bytes((VERSION, code, 0, IPV4)) + bytes(6)
