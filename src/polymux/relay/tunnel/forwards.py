"""What a tunnel client forwards: the arguments of -L, -R and -D."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polymux.relay.tunnel.targets import BadForward, Target, as_address, parse_port, parse_target

LOOPBACK = "127.0.0.1"
FORWARD = re.compile(
    r"(?:(?P<bind>\[[^\]]*\]|[^:\[\]]*):)?(?P<port>[^:]*):(?P<target>(?:\[[^\]]*\]|[^:\[\]]+):[^:]+)"
)


@dataclass(frozen=True)
class LocalForward:
    """A port of the client whose connections the server forwards.

    Attributes:
        bind: The address to listen on.
        port: The port; 0 takes a free one.
        target: Where the server connects to; None: SOCKS5, the connection names it.
    """

    bind: str
    port: int
    target: Target | None

    @property
    def listening(self) -> Target:
        """Where the client listens."""
        return Target(self.bind, self.port)


@dataclass(frozen=True)
class RemoteForward:
    """A port of the server whose connections the client forwards; see `LocalForward`."""

    bind: str
    port: int
    target: Target

    @property
    def listening(self) -> Target:
        """Where the server listens."""
        return Target(self.bind, self.port)


def parse_local(text: str) -> LocalForward:
    """Parse the argument of -L: `[BIND:]PORT:HOST:HOSTPORT`.

    Raises:
        BadForward: It is malformed.
    """
    bind, port, target = split_forward(text, "-L")
    return LocalForward(bind, port, target)


def parse_remote(text: str) -> RemoteForward:
    """Parse the argument of -R: `[BIND:]PORT:HOST:HOSTPORT`.

    Raises:
        BadForward: It is malformed.
    """
    bind, port, target = split_forward(text, "-R")
    return RemoteForward(bind, port, target)


def parse_dynamic(text: str) -> LocalForward:
    """Parse the argument of -D: `[BIND:]PORT`.

    Raises:
        BadForward: It is malformed.
    """
    bind, colon, port = text.rpartition(":")
    return LocalForward(clean_bind(bind) if colon else LOOPBACK, parse_port(port, text, 0), None)


def split_forward(text: str, option: str) -> tuple[str, int, Target]:
    """Split `[BIND:]PORT:HOST:HOSTPORT`."""
    found = FORWARD.fullmatch(text)
    if found is None:
        raise BadForward(f"{option} {text!r}: write [BIND:]PORT:HOST:HOSTPORT, such as 8080:db:80")
    port = parse_port(found["port"], text, 0)
    bind = LOOPBACK if found["bind"] is None else clean_bind(found["bind"])
    return bind, port, parse_target(found["target"])


def clean_bind(text: str) -> str:
    """An address to bind to: without brackets; `*` and nothing for all of IPv4."""
    bind = text.removeprefix("[").removesuffix("]")
    return "0.0.0.0" if bind in ("", "*") else bind


def is_loopback(bind: str) -> bool:
    """Whether only this machine can connect to an address that is bound."""
    address = as_address(bind)
    return bind == "localhost" or (address is not None and address.is_loopback)
