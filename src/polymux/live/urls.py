"""URLs of transports: `tcp://`, `tls://`, `unix://`, `stdio:`, `exec:CMD`, `ws://`, `wss://`."""

import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from polymux.core.errors import PolymuxError

SCHEMES = ("tcp", "tls", "unix", "stdio", "exec", "ws", "wss")


class BadUrl(PolymuxError):
    """A URL is invalid or cannot be used here; the text says why."""


@dataclass(frozen=True)
class Address:
    """A parsed URL. `command` is set for exec: only, `path` for unix:, ws: and wss:."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.scheme == "exec":
            return "exec:" + shlex.join(self.command)
        if self.scheme == "stdio":
            return "stdio:"
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_url(url: str) -> Address:
    """Parse a URL.

    The port defaults to 80 for ws: and 443 for wss:, and is required for tcp: and tls:.

    Raises:
        BadUrl: The URL is invalid.
        TypeError: It is not a str.
    """
    if not isinstance(url, str):
        raise TypeError(f"a URL is a str such as 'tcp://127.0.0.1:9000', not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        raise BadUrl(f"{url!r}: a URL begins with one of {', '.join(s + ':' for s in SCHEMES)}")
    if scheme == "stdio":
        return Address("stdio")
    if scheme == "exec":
        try:
            command = tuple(shlex.split(rest))
        except ValueError as problem:
            raise BadUrl(f"{url!r}: {str(problem).lower()} in the command") from None
        if not command:
            raise BadUrl(f"{url!r}: exec: is followed by the command to start")
        return Address("exec", command=command)
    if scheme == "unix":
        path = rest.removeprefix("//")
        if not path:
            raise BadUrl(f"{url!r}: unix:// is followed by the path of the socket")
        return Address("unix", path=path)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise BadUrl(f"{url!r}: {problem}") from None
    if not parts.hostname:
        raise BadUrl(f"{url!r}: no host; write {scheme}://HOST:PORT")
    if port is None:
        if scheme in ("tcp", "tls"):
            raise BadUrl(f"{url!r}: no port; write {scheme}://{parts.hostname}:PORT")
        port = 443 if scheme == "wss" else 80
    path = ""
    if scheme in ("ws", "wss"):
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    elif parts.path not in ("", "/") or parts.query:
        raise BadUrl(f"{url!r}: {scheme}:// has no path; write {scheme}://{parts.hostname}:{port}")
    return Address(scheme, parts.hostname, port, path)
