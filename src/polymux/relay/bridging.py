"""`bridge`: listens with one protocol, and relays every session to a server of another.

A `Bridge` accepts sessions at A. Each gets a session of its own to B, and the streams that either
peer opens are re-opened at the other. When one of the two sessions ends, so does the other.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Sequence

from polymux.aio.connect import connect
from polymux.aio.server import Server, serve
from polymux.core.errors import PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.pending import Pending
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.session.session import Session
from polymux.metrics.families import Family
from polymux.relay.ends import End, SessionEnd
from polymux.relay.engine import FilterFactory, Relay, RelayStats
from polymux.relay.metrics import relay_families
from polymux.relay.minmux_end import MinmuxEnd
from polymux.relay.traits import check_relayable

log = logging.getLogger("polymux.relay")


class Bridge:
    """A running bridge. `bridge` makes it.

    Attributes:
        stats: Counters of all sessions since the start.
        refused: Sessions that were not relayed because B could not be reached.
        failure: Why B could not be reached the last time; empty if it could.
        relays: The relays of the sessions that are open.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.stats = RelayStats()
        self.refused = 0
        self.failure = ""
        self.relays: set[Relay] = set()
        self.sessions = 0  # that were accepted
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """Where the bridge listens, with the port that was bound."""
        assert self._server is not None  # set by `bridge`
        return self._server.url

    def __repr__(self) -> str:
        return f"<polymux bridge to {self.upstream}, sessions open: {len(self.relays)}>"

    def listen(self, server: Server) -> None:
        """The bridge accepts sessions at this server."""
        self._server = server

    async def relay(self, a: End, b: End, filters: FilterFactory | None) -> None:
        """Relay between two ends until one of them is over."""
        relay = Relay(a, b, stats=self.stats, filters=filters)
        self.relays.add(relay)
        try:
            await relay.run()
        finally:
            self.relays.discard(relay)

    def collect(self) -> list[Family]:
        """Return the metrics of what was relayed, such as for `polymux.metrics.prometheus_text`."""
        return relay_families(self.stats, self.relays)

    async def close(self) -> None:
        """Stop listening, and close all sessions."""
        if self._server is not None:
            await self._server.close()

    async def wait_closed(self) -> None:
        """Wait until the bridge is closed; over stdio:, until its only session has ended."""
        if self._server is not None:
            await self._server.wait_closed()

    async def __aenter__(self) -> Bridge:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()


def bridge(
    listen: str,
    upstream: str,
    *,
    protocol_a: str,
    protocol_b: str,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    tls: ssl.SSLContext | None = None,
    upstream_tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    token: str | bytes | None = None,
    upstream_token: str | bytes | None = None,
    timeout: float = 10.0,
    wait: float = 0.0,
    meter: SessionMeter | None = None,
    recorder: RecorderFactory | None = None,
    origins: Sequence[str] = (),
    allow: Sequence[str] | None = None,
    minmux_streams: Iterable[int] = (),
    filters: FilterFactory | None = None,
) -> Pending[Bridge]:
    """Listen at A, open a session to B for every session that is accepted, and relay between them.

    Streams are relayed in both directions with their content, half-closes and resets. Nothing is
    read from one side that the other cannot take, so a stream that is not read holds at most the
    windows of its two sessions. Names, metadata and the reasons of resets are passed on where both
    protocols have them; what cannot be passed on is counted in `Bridge.stats.lost`.

    mplex, Nerdbank and yamux can be joined with one another, omnistreams and Minmux with each
    other, and Streamux with Streamux.

    Args:
        listen: URL to listen on, as for `polymux.serve`.
        upstream: URL to connect to, as for `polymux.connect`.
        protocol_a: Protocol string of the sessions that are accepted.
        protocol_b: Protocol string of the sessions to `upstream`.
        limits: Limits for the sessions of both sides.
        timeouts: Timeouts for the sessions of both sides.
        tls: TLS context with a certificate, if `listen` is tls:// or wss://.
        upstream_tls: TLS context for a tls:// or wss:// upstream; None verifies it by the
            authorities of the system.
        server_hostname: Name to verify in the upstream's certificate; its URL's host by default.
        token: Token that clients have to prove to know.
        upstream_token: Token that the upstream asks for.
        timeout: Seconds for connecting to the upstream.
        wait: For how many seconds to try again while nothing listens there.
        meter: Counts the sessions of both sides, or writes them to an audit log.
        recorder: Records the sessions of both sides.
        origins: Web pages that may connect, as for `polymux.serve`.
        allow: Clients that may connect, as for `polymux.serve`.
        minmux_streams: Minmux: ids that the dialers write and that get credit at once.
        filters: Chooses what acts on the content of each stream; None: nothing.

    Returns:
        A `Pending` bridge, which `async with` closes.

    Raises:
        CannotRelay: The two protocols have streams of different shapes.
        Unreachable: When awaited: the address cannot be listened on.
        BadUrl, PolymuxError, TypeError, ValueError: An argument is invalid, as for `polymux.serve`
            and `polymux.connect`.
    """
    check_relayable(protocol_a, protocol_b)
    made = Bridge(upstream)
    ids = tuple(minmux_streams)

    async def handle(session: Session) -> None:
        made.sessions += 1
        try:
            there = await connect(
                upstream,
                protocol=protocol_b,
                limits=limits,
                timeouts=timeouts,
                tls=upstream_tls,
                server_hostname=server_hostname,
                timeout=timeout,
                wait=wait,
                recorder=recorder,
                meter=meter,
                token=upstream_token,
            )
        except PolymuxError as problem:
            made.refused += 1
            made.failure = str(problem)
            log.warning("%s not relayed: %s", session.peer, problem)
            session.abort("the other side of the bridge could not be reached")
            return
        made.failure = ""
        await made.relay(*paired_ends(session, there, ids), filters)

    serving = serve(
        handle,
        listen,
        protocol=protocol_a,
        limits=limits,
        timeouts=timeouts,
        tls=tls,
        recorder=recorder,
        meter=meter,
        origins=origins,
        allow=allow,
        token=token,
    )

    async def start() -> Bridge:
        made.listen(await serving)
        return made

    start.__qualname__ = "bridge"
    return Pending(start())


def paired_ends(a: Session, b: Session, minmux_streams: tuple[int, ...] = ()) -> tuple[End, End]:
    """Return the ends of an accepted session and of the session that was opened for it.

    Args:
        a: The accepted session.
        b: The other one.
        minmux_streams: Ids that the dialer of `a` writes and that get credit at once, if it is a
            Minmux session.
    """
    keeps_ids = isinstance(a, MinmuxSession) and isinstance(b, MinmuxSession)
    ends: list[End] = []
    for session, ids in ((a, minmux_streams), (b, ())):
        if isinstance(session, MinmuxSession):
            ends.append(MinmuxEnd(session, ids, keeps_ids))
        else:
            ends.append(SessionEnd(session))
    near, far = ends
    if keeps_ids and isinstance(near, MinmuxEnd) and isinstance(far, MinmuxEnd):
        near.partner, far.partner = far, near
    return near, far
