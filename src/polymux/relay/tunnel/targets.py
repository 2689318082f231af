"""Targets of forwarded connections, and which of them a tunnel server allows.

An entry of the allow list is a host name or a network, with ports. A name that a client asks for is
resolved once, by the server; only addresses that an entry allows are connected to, as numbers. So
a name whose owner lets it point elsewhere does not lead around the list.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from polymux.core.errors import PolymuxError
from polymux.live.errors import describe_os_error

MAX_PORT = 65535
MAX_HOST_CHARS = 253

AnyAddress = IPv4Address | IPv6Address
AnyNetwork = IPv4Network | IPv6Network

# Codes of a refusal: the reply codes of SOCKS5 (RFC 1928).
FAILED = 1
NOT_ALLOWED = 2
NETWORK_UNREACHABLE = 3
HOST_UNREACHABLE = 4
CONNECTION_REFUSED = 5
TIMED_OUT = 6
MAX_CODE = 8


class BadForward(PolymuxError):
    """A target, a port or an entry of an allow list is malformed; the text says how to write it."""


class TargetRefused(PolymuxError):
    """A connection was not forwarded; the text says why.

    Attributes:
        code: A reply code of SOCKS5.
    """

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


@dataclass(frozen=True)
class Target:
    """A host and a port. The host is a name or an address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str) -> Target:
    """Parse `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        BadForward: It is malformed.
    """
    host, port = split_host(text)
    if not host:
        raise BadForward(f"{text!r}: no host; write HOST:PORT")
    return Target(host, parse_port(port, text))


def split_host(text: str) -> tuple[str, str]:
    """Split `HOST:REST`, where an IPv6 address is in brackets."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not rest.startswith(":"):
            raise BadForward(f"{text!r}: write an IPv6 address as [ADDRESS]:PORT")
        return host, rest[1:]
    host, colon, rest = text.rpartition(":")
    if not colon:
        raise BadForward(f"{text!r}: no port; write HOST:PORT")
    if ":" in host:
        raise BadForward(f"{text!r}: write an IPv6 address as [ADDRESS]:PORT")
    return host, rest


def is_host(text: str, more: str = "") -> bool:
    """Whether a text of a peer can be a host: its characters, those of `more`, and its length."""
    return (
        0 < len(text) <= MAX_HOST_CHARS
        and text.isascii()
        and all(char.isalnum() or char in "-._:" or char in more for char in text)
    )


def parse_port(text: str, whole: str, least: int = 1) -> int:
    """Parse a port of `whole`, which is named in the error."""
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= MAX_PORT:
        raise BadForward(f"{whole!r}: {text!r} is no port; ports are {least} to {MAX_PORT}")
    return int(text)


def parse_ports(text: str, whole: str) -> tuple[tuple[int, int], ...]:
    """Parse `443`, `80,443`, `8000-8100` or `*` to ranges of ports."""
    if text == "*":
        return ((1, MAX_PORT),)
    ranges = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = parse_port(first, whole)
        high = parse_port(last, whole) if dash else low
        if high < low:
            raise BadForward(f"{whole!r}: the range {part!r} is empty")
        ranges.append((low, high))
    return tuple(ranges)


def as_address(text: str) -> AnyAddress | None:
    """The address in a text, an IPv4 address inside an IPv6 one as such; None: it is a name."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


class AllowedTargets:
    """The targets that a tunnel server connects to; without entries, none.

    Args:
        entries: `HOST:PORTS`, `ADDRESS:PORTS` or `NETWORK:PORTS` (`[NETWORK]:PORTS` for IPv6);
            ports are `443`, `80,443`, `8000-8100` or `*`.

    Raises:
        BadForward: An entry is malformed.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._names: list[tuple[str, tuple[tuple[int, int], ...]]] = []
        self._networks: list[tuple[AnyNetwork, tuple[tuple[int, int], ...]]] = []
        for entry in entries:
            host, ports = split_host(entry)
            ranges = parse_ports(ports, entry)
            try:
                network = ip_network(host)
            except ValueError as problem:
                if "/" in host or as_address(host) is not None:
                    raise BadForward(f"{entry!r}: {problem}") from None
                if not host or "*" in host:
                    raise BadForward(
                        f"{entry!r}: write a host name, an address or a network such as "
                        "192.0.2.0/24 before the ports (0.0.0.0/0 and ::/0 for all)"
                    ) from None
                self._names.append((host_key(host), ranges))
            else:
                self._networks.append((network, ranges))

    def allows_name(self, target: Target) -> bool:
        """Whether an entry has the target's name and port."""
        name = host_key(target.host)
        return any(name == host and in_ranges(target.port, ranges) for host, ranges in self._names)

    def allows_address(self, address: AnyAddress, port: int) -> bool:
        """Whether an entry has this address and port."""
        return any(
            address in network and in_ranges(port, ranges) for network, ranges in self._networks
        )

    async def resolve(self, target: Target) -> list[str]:
        """Return the addresses of a target that may be connected to, in the order to try them.

        Raises:
            TargetRefused: The target is not allowed, or has no address.
        """
        refusal = TargetRefused(NOT_ALLOWED, f"{target} is not allowed")
        literal = as_address(target.host)
        if literal is not None:
            if not self.allows_address(literal, target.port):
                raise refusal
            return [str(literal)]
        by_name = self.allows_name(target)
        if not by_name and not any(in_ranges(target.port, ports) for _, ports in self._networks):
            raise refusal  # without a query
        found = await lookup(target)
        if not by_name:
            found = [each for each in found if self.allows_address(each, target.port)]
            if not found:
                raise refusal
        return [str(address) for address in found]


def host_key(name: str) -> str:
    """A host name as it is compared."""
    return name.rstrip(".").lower()


def in_ranges(port: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    """Whether a port is in one of the ranges."""
    return any(low <= port <= high for low, high in ranges)


async def lookup(target: Target) -> list[AnyAddress]:
    """Return the addresses of a host name.

    Raises:
        TargetRefused: It has none.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise TargetRefused(
            HOST_UNREACHABLE, f"{target} has no address: {describe_os_error(problem)}"
        ) from None
    addresses = [as_address(str(entry[4][0])) for entry in found]
    return list(dict.fromkeys(address for address in addresses if address is not None))
