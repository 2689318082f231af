"""Which web pages may open a WebSocket to a server.

A browser lets every page open a WebSocket to any address, also to a server on the user's own
machine, and tells the server the page's origin in the header Origin. Other programs send none.
Without a list, a page is accepted only if it comes from the server itself: its origin has the host
and port that the request was sent to, and that host is an address, `localhost` or the host of the
server's URL. The last condition stops a page whose name was made to resolve to this machine (DNS
rebinding): its origin and the request agree.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from polymux.live.urls import Address

DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
ANY = "*"
OPAQUE = "null"  # the origin of a file, and of a sandboxed frame


class OriginPolicy:
    """Decides by the headers Origin and Host of an upgrade request.

    Args:
        address: Where the server listens.
        allowed: Origins such as `https://example.com`, in addition to the server's own; `null` for
            pages without one, `*` for all.

    Raises:
        ValueError: One of `allowed` is not an origin.
        TypeError: `allowed` is a str.
    """

    def __init__(self, address: Address, allowed: Iterable[str] = ()) -> None:
        if isinstance(allowed, str):
            raise TypeError(f"origins is a list of origins, not the str {allowed!r}")
        self._host = address.host.lower()
        self._scheme = address.scheme
        self._allowed = {self._normalized(origin) for origin in allowed}

    def refusal(self, origins: list[str], hosts: list[str]) -> str:
        """Return why a request is refused; empty if it is accepted.

        Args:
            origins: The values of its Origin headers.
            hosts: The values of its Host headers.
        """
        if not origins or ANY in self._allowed:
            return ""
        if len(origins) > 1:
            return "several Origin headers"
        origin = origins[0]
        try:
            if self._normalized(origin) in self._allowed:
                return ""
        except ValueError:
            return "its Origin is malformed"
        if len(hosts) == 1 and self._is_own(origin, hosts[0]):
            return ""
        return f"pages of {origin[:200]} are not allowed here"

    def _is_own(self, origin: str, host: str) -> bool:
        if origin == OPAQUE:
            return False
        try:
            page = urlsplit(origin)
            server = urlsplit(f"{self._scheme}://{host}")
            page_port = page.port or DEFAULT_PORTS.get(page.scheme, 0)
            server_port = server.port or DEFAULT_PORTS.get(self._scheme, 0)
        except ValueError:
            return False
        name = page.hostname or ""
        return (name, page_port) == (server.hostname, server_port) and self._is_trusted(name)

    def _is_trusted(self, host: str) -> bool:
        """Whether no one but this machine or its administrator decides where `host` leads."""
        if host == self._host or host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            ip_address(host)
        except ValueError:
            return False
        return True

    def _normalized(self, origin: str) -> str:
        """Return an origin in lower case and without the default port of its scheme."""
        if origin in (ANY, OPAQUE):
            return origin
        parts = urlsplit(origin)
        if not parts.scheme or not parts.hostname or parts.path or parts.query or parts.fragment:
            raise ValueError(f"{origin!r} is no origin; write https://HOST or https://HOST:PORT")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        port = parts.port
        shown = "" if port in (None, DEFAULT_PORTS.get(parts.scheme)) else f":{port}"
        return f"{parts.scheme}://{host}{shown}"
