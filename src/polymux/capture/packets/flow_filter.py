"""Flow keys as endpoints, and selecting flows by endpoint."""

from __future__ import annotations

import functools
import ipaddress
import struct
from collections.abc import Iterable

_KEY = struct.Struct(">16s16sHH")
_MAPPED = bytes(10) + b"\xff\xff"


def flow_endpoints(flow: bytes) -> tuple[tuple[str, int], tuple[str, int]]:
    """The two endpoints of a 36-byte flow key (`FlowTable.key`) as (address, port)."""
    address1, address2, port1, port2 = _KEY.unpack(flow)
    return (_address(address1), port1), (_address(address2), port2)


@functools.lru_cache(maxsize=1024)
def _address(packed: bytes) -> str:
    if packed.startswith(_MAPPED):
        a, b, c, d = packed[12:]
        return f"{a}.{b}.{c}.{d}"
    return str(ipaddress.IPv6Address(packed))


def endpoint_text(address: str, port: int) -> str:
    """An endpoint as text: `192.0.2.1:80` or `[2001:db8::1]:80`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class FlowFilter:
    """Selects flows by their endpoints; a flow matches if either endpoint does.

    Without ports and filters every flow is accepted.

    Args:
        ports: Listening ports.
        filters: `address:port`, `[address]:port`, `address` or `:port`.

    Raises:
        ValueError: A filter cannot be parsed.
    """

    def __init__(self, ports: Iterable[int] = (), filters: Iterable[str] = ()) -> None:
        self.ports = frozenset(ports)
        self._wanted = [_parse(text) for text in filters]

    def accepts(self, flow: bytes) -> bool:
        """Whether the flow with this 36-byte key is selected."""
        if not self.ports and not self._wanted:
            return True
        ends = flow_endpoints(flow)
        if any(port in self.ports for _, port in ends):
            return True
        return any(
            (address is None or address == end[0]) and (port is None or port == end[1])
            for address, port in self._wanted
            for end in ends
        )


def _parse(text: str) -> tuple[str | None, int | None]:
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            raise ValueError(f"filter {text!r}: write [address]:port")
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = str(ipaddress.ip_address(host)) if host and host != "*" else None
    except ValueError:
        raise ValueError(
            f"filter {text!r}: {host!r} is not an IP address; write address:port"
        ) from None
    if port and (not port.isdecimal() or int(port) > 65535):
        raise ValueError(f"filter {text!r}: {port!r} is not a port")
    if address is None and not port:
        raise ValueError(f"filter {text!r} names neither address nor port")
    return address, int(port) if port else None
