"""Creating session objects for a protocol string."""

from collections.abc import Callable
from typing import Literal, TypedDict

from polymux.core.endpoint import Endpoint
from polymux.core.errors import Unsupported
from polymux.core.limits import Limits, Timeouts
from polymux.live.arguments import check_seconds
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.protocols.streamux import StreamuxSession
from polymux.live.protocols.yamux import YamuxSession
from polymux.live.runtime import Runtime
from polymux.live.session.busy_poll import poll_budget_ns
from polymux.live.session.preamble import Preamble
from polymux.live.session.session import Session
from polymux.live.session.socket_options import peer_name
from polymux.protocols.registry import create, parse_protocol

# Protocol strings from which a type checker infers the session class.
NERDBANK = Literal["nerdbank", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3"]
OMNISTREAMS = Literal["omnistreams", "omnistreams:numbering=spec", "omnistreams:numbering=legacy"]
STREAMUX = Literal["streamux"]
MINMUX = Literal["minmux"]
YAMUX = Literal["yamux", "yamux:dialect=hashicorp", "yamux:dialect=libp2p"]

# Protocols with operations of their own have a session class of their own.
SESSION_CLASSES: dict[str, type[Session]] = {
    "mplex": Session,
    "nerdbank": NerdbankSession,
    "omnistreams": OmnistreamsSession,
    "streamux": StreamuxSession,
    "minmux": MinmuxSession,
    "yamux": YamuxSession,
}


class PipeOptions(TypedDict, total=False):
    """Keyword arguments of `pipe`."""

    limits: Limits | None
    timeouts: Timeouts | None


def session_factory(
    protocol: str,
    side: int,
    limits: Limits | None,
    timeouts: Timeouts | None,
    opens_per_second: float,
    busy_poll: float = 0.0,
    recorder: RecorderFactory | None = None,
    meter: SessionMeter | None = None,
    *,
    runtime: Callable[[], Runtime],
) -> Callable[[], Session]:
    """Check the arguments now, and return a function that creates sessions.

    Args:
        protocol: Protocol string, such as `nerdbank:version=2`.
        side: This process's side, DIALER or ACCEPTOR.
        limits: Limits of each session; None for the defaults.
        timeouts: Timeouts of each session; None for the defaults.
        opens_per_second: Rate limit for opening streams; 0 for none.
        busy_poll: Busy-poll budget in seconds; 0 disables it.
        recorder: Creates the recorder of each session.
        meter: Notified of each session.
        runtime: Returns where a session runs. It is called when one is created.

    Raises:
        PolymuxError: The protocol string is invalid, or has no live sessions (Unsupported).
        TypeError, ValueError: Another argument is invalid.
    """
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
    session_class = SESSION_CLASSES.get(name)
    if session_class is None:
        raise Unsupported(f"no live sessions of {name}: choose one of {', '.join(SESSION_CLASSES)}")

    def make() -> Session:
        own = Limits(**limits_as_dict(limits)) if limits is not None else Limits()
        endpoint = Endpoint(create(protocol, own, side), side, direct=True)
        session = session_class(
            endpoint,
            timeouts if timeouts is not None else Timeouts(),
            runtime(),
            opens_per_second,
        )
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


def set_peer_name(session: Session, fallback: str) -> None:
    """Set `session.peer` to HOST:PORT, or to `fallback` where the transport has no such address."""
    session.peer = peer_name(session.transport, fallback)
