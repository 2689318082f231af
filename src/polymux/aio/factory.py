"""Making a session object for a protocol, and setting up its socket."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any, Literal

from polymux.aio.arguments import check_seconds
from polymux.aio.hooks import RecorderFactory
from polymux.aio.metering import SessionMeter
from polymux.aio.protocols.minmux import MinmuxSession
from polymux.aio.protocols.nerdbank import NerdbankSession
from polymux.aio.protocols.omnistreams import OmnistreamsSession
from polymux.aio.protocols.streamux import StreamuxSession
from polymux.aio.session.busy_poll import poll_budget_ns
from polymux.aio.session.preamble import Preamble
from polymux.aio.session.session import Session
from polymux.core.endpoint import Endpoint
from polymux.core.errors import Unsupported
from polymux.core.limits import Limits, Timeouts
from polymux.protocols.registry import create, parse_protocol

# Protocol strings by which a type checker knows the class of the session.
NERDBANK = Literal["nerdbank", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3"]
OMNISTREAMS = Literal[
    "omnistreams", "omnistreams:numbering=spec", "omnistreams:numbering=legacy"
]  # fmt: skip
STREAMUX = Literal["streamux"]
MINMUX = Literal["minmux"]

# Protocols with verbs of their own have a session class of their own.
SESSION_CLASSES: dict[str, type[Session]] = {
    "mplex": Session,
    "nerdbank": NerdbankSession,
    "omnistreams": OmnistreamsSession,
    "streamux": StreamuxSession,
    "minmux": MinmuxSession,
}


MAX_KEEPALIVE_SECONDS = 32767  # seconds between keepalive probes: no system allows more


def session_factory(
    protocol: str,
    side: int,
    limits: Limits | None,
    timeouts: Timeouts | None,
    opens_per_second: float,
    busy_poll: float = 0.0,
    recorder: RecorderFactory | None = None,
    meter: SessionMeter | None = None,
) -> Callable[[], Session]:
    """Check what was asked for now; make sessions of it later."""
    if not isinstance(opens_per_second, int | float):
        given = type(opens_per_second).__name__
        raise TypeError(f"opens_per_second is a number, not {given}")
    if not opens_per_second >= 0:
        raise ValueError(f"opens_per_second is 0 (no bound) or more, not {opens_per_second}")
    check_seconds(busy_poll, "busy_poll")
    name = parse_protocol(protocol).name
    preamble = parse_protocol(protocol).options.get("preamble", "")
    if preamble:
        Preamble(preamble, name, side)
    create(protocol)  # a bad option is an error here, not at the first connection
    kind = SESSION_CLASSES.get(name)
    if kind is None:
        raise Unsupported(f"no live sessions of {name}: choose one of {', '.join(SESSION_CLASSES)}")

    def make() -> Session:
        own = Limits(**limits_as_dict(limits)) if limits is not None else Limits()
        endpoint = Endpoint(create(protocol, own, side), side, direct=True)
        session = kind(endpoint, timeouts if timeouts is not None else Timeouts(), opens_per_second)
        session.busy_poller.budget_ns = poll_budget_ns(busy_poll)
        session.meter = meter
        if preamble:
            session.preamble = Preamble(preamble, name, side)
        if recorder is not None:
            session.recorder = recorder(protocol, side)
        return session

    return make


def limits_as_dict(limits: Limits) -> dict[str, int]:
    return {name: getattr(limits, name) for name in limits.names()}


def configure_tcp_keepalive(session: Session) -> None:
    """Notice a peer that vanished: keepalive probes, and a limit on unacknowledged data."""
    sock = transport_info(session, "socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    interval = max(1, int(min(session.timeouts.keepalive_interval, MAX_KEEPALIVE_SECONDS)))
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", -1), interval),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", -1), interval),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", -1), 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", -1), 2000 * interval),
    ]
    for level, option, value in options:
        if option >= 0:
            with contextlib.suppress(OSError):  # a system without this option does without
                sock.setsockopt(level, option, value)


def set_peer_name(session: Session, fallback: str) -> None:
    found = transport_info(session, "peername")
    if isinstance(found, tuple):
        session.peer = f"{found[0]}:{found[1]}"
    else:
        session.peer = fallback


def transport_info(session: Session, name: str) -> Any:
    """What the transport knows of itself, or None."""
    with contextlib.suppress(AttributeError):  # what uvloop says once the connection is gone
        if session.transport is not None:
            return session.transport.get_extra_info(name)
    return None
