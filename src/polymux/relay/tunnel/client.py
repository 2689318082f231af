"""`TunnelClient`: local ports, a SOCKS5 proxy and remote ports over one session, which is renewed.

The ports are listened on as long as the client runs, whether or not it is connected. A connection
that comes while it is not waits for the next session, at most `WAIT_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Sequence

from polymux.aio.connect import connect
from polymux.core.errors import PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.live.connection_gate import ConnectionGate, Place, gate_limits
from polymux.live.errors import NotListening, Unreachable, describe_os_error
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.listener import Listener, open_listener
from polymux.live.log_limiter import LogLimiter
from polymux.live.pending import Pending
from polymux.live.session.session import Session
from polymux.live.urls import Address, BadUrl
from polymux.metrics.families import Family
from polymux.relay.channels import Channel
from polymux.relay.ends import Arrival, ArrivalQueue
from polymux.relay.engine import Relay, RelayStats
from polymux.relay.metrics import relay_families
from polymux.relay.sockets import AcceptedSocket, SocketsEnd
from polymux.relay.tunnel.forwards import LocalForward, RemoteForward
from polymux.relay.tunnel.requests import CONNECT, FORWARDED, LISTEN, Request, parse_name
from polymux.relay.tunnel.server import check_tunnel, connect_to, tunnel_limits, warn_if_exposed
from polymux.relay.tunnel.socks import SUCCEEDED, BadSocks, SocksNegotiation, reply
from polymux.relay.tunnel.targets import (
    FAILED,
    NOT_ALLOWED,
    Target,
    TargetRefused,
    as_address,
    lookup,
)
from polymux.relay.tunnel.tunnel_end import TunnelEnd

log = logging.getLogger("polymux.relay")

WAIT_SECONDS = 10.0  # for a session, of a connection that came while there is none
SOCKS_SECONDS = 10.0  # for a SOCKS5 client to say where it wants to go
FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 10.0


class LocalArrival(Arrival):
    """A connection to a local port, to be opened at the server."""

    def __init__(self, channel: AcceptedSocket, target: Target, socks: bool) -> None:
        super().__init__(channel, Request(CONNECT, target).name)
        self._socks = socks

    def accept(self) -> None:
        if self._socks:
            with contextlib.suppress(PolymuxError):  # the pump finds out too
                self.channel.put(reply(SUCCEEDED))

    def refused(self, problem: PolymuxError) -> bool:
        log.info("%s: not forwarded: %s", self.channel.label, problem)
        if not self._socks:
            self.channel.abort("")
            return True
        with contextlib.suppress(PolymuxError):
            self.channel.put(reply(problem.code if isinstance(problem, TargetRefused) else FAILED))
            self.channel.end()
        self.channel.release()
        return True


class SocksClient:
    """A connection to the port of -D, until it has said where it wants to go."""

    def __init__(
        self, channel: AcceptedSocket, on_target: Callable[[AcceptedSocket, Target], None]
    ) -> None:
        self._channel = channel
        self._on_target = on_target
        self._negotiation = SocksNegotiation()
        self._done = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SOCKS_SECONDS, channel.abort_now)
        channel.watch(self._on_change, self._on_change)
        self._on_change()

    def _on_change(self) -> None:
        channel, negotiation = self._channel, self._negotiation
        if self._done:
            return
        try:
            while channel.has_unread() and negotiation.target is None:
                answer = negotiation.receive(channel.take())
                if answer:
                    channel.put(answer)
            if not channel.has_unread() and negotiation.target is None and channel.at_end():
                raise BadSocks("the client ended before its request")
        except BadSocks as problem:
            log.info("%s: %s", channel.label, problem)
            self._finish()
            if problem.answer:
                channel.put(problem.answer)
            channel.end()
            channel.release()
        except PolymuxError:
            self._finish()
            channel.release()
        else:
            if negotiation.target is not None:
                self._finish()
                channel.put_back(negotiation.rest)
                self._on_target(channel, negotiation.target)

    def _finish(self) -> None:
        self._done = True
        self._timer.cancel()


class TunnelClient:
    """The client of a tunnel. Use it in `async with`, and await `run`.

    Args:
        url: URL of the server, as for `polymux.connect`.
        protocol: Protocol string of a protocol with two-way streams.
        local: Ports to listen on here, with a target each or as a SOCKS5 proxy.
        remote: Ports that the server listens on.
        token: The token that the server asks for; demanded unless `url` is a Unix socket or a
            loopback address.
        tls: TLS context, as for `polymux.connect`.
        server_hostname: Name to verify in the server's certificate.
        timeout: Seconds for one attempt to connect.
        give_up_after: Seconds without a session after which `run` raises; 0: never.
        limits: Limits of the session, and on local connections.
        timeouts: Timeouts of the session.
        meter: Counts sessions, such as a `polymux.metrics.Meter`.
        recorder: Records the sessions.

    Attributes:
        stats: Counters of all forwarded connections; end A is the local side.
        bound: Where each of `local` listens, with the port that was bound.
        remote_bound: Where the server listens for each of `remote`, by its place there.
        session: The session; None while there is none.

    Raises:
        BadUrl, CannotRelay, ValueError, TypeError: An argument is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        protocol: str,
        local: Sequence[LocalForward] = (),
        remote: Sequence[RemoteForward] = (),
        token: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        timeout: float = 10.0,
        give_up_after: float = 60.0,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        meter: SessionMeter | None = None,
        recorder: RecorderFactory | None = None,
    ) -> None:
        self.address = check_tunnel(protocol, url, token)
        self.stats = RelayStats()
        self.bound: list[Target] = []
        self.remote_bound: dict[int, Target] = {}
        self.session: Session | None = None
        self.relays: dict[Relay, str] = {}
        self.gate = ConnectionGate(gate_limits(limits or Limits()))
        self._local = tuple(local)
        self._remote = tuple(remote)
        self._give_up_after = give_up_after
        self._listeners: list[Listener] = []
        self._arrivals = ArrivalQueue()
        self._channels: set[AcceptedSocket] = set()
        self._remote_targets: dict[Target, Target] = {}
        self._listening = asyncio.Event()  # all requests to listen were answered
        self._backlog = (limits or Limits()).listen_backlog
        self._log_limiter = LogLimiter(log)
        self._was_set_up = False  # a session has forwarded
        self._lost_at = 0.0  # since when there is none that does, by the clock of the loop
        self._pause = FIRST_BACKOFF_SECONDS
        self.connected = asyncio.Event()

        def dial() -> Pending[Session]:
            return connect(
                url,
                protocol=protocol,
                limits=tunnel_limits(limits),
                timeouts=timeouts,
                tls=tls,
                server_hostname=server_hostname,
                timeout=timeout,
                recorder=recorder,
                meter=meter,
                token=token,
            )

        self._dial = dial

    # Running

    async def start(self) -> None:
        """Listen on the local ports.

        Raises:
            BadUrl: One of them cannot be listened on.
        """
        for forward in self._local:
            listening = forward.listening
            try:
                listener = await open_listener(
                    Address("tcp", listening.host, listening.port),
                    self._socket_factory(forward),
                    self.gate,
                    self._backlog,
                    loop=asyncio.get_running_loop(),
                )
            except OSError as problem:
                await self.close()
                raise BadUrl(
                    f"{listening}: cannot listen there: {describe_os_error(problem)}"
                ) from None
            self._listeners.append(listener)
            self.bound.append(Target(listening.host, listener.address.port))
            warn_if_exposed(self.bound[-1])

    async def run(self) -> None:
        """Connect, forward, and connect again when the session ends, until cancelled.

        Once a session has forwarded, one that cannot be set up counts as lost too: the port of a
        session that the server still believes in is not free again at once.

        Raises:
            Unreachable, SessionClosed: The first connection failed for another reason than that
                nothing listens there yet, or there was none for `give_up_after` seconds.
            TargetRefused: The server does not allow to listen for one of `remote`, or could not
                when it was first asked to.
        """
        self._start_waiting()
        while True:
            session = await self._connect()
            self.session = session
            try:
                await self._forward(session)
            except PolymuxError as problem:
                not_allowed = isinstance(problem, TargetRefused) and problem.code == NOT_ALLOWED
                if not_allowed or not self._was_set_up:
                    raise
                failure: PolymuxError | None = problem
            else:
                failure = None
            finally:
                self.session = None
                self.connected.clear()
                await session.close()
            if failure is not None:
                await self._back_off(failure)
                continue
            self._start_waiting()
            reason = session.failure or session.close_reason or "the server closed it"
            log.warning("the connection to %s ended: %s; connecting again", self.address, reason)

    async def _connect(self) -> Session:
        """Connect, with pauses that grow between the attempts."""
        while True:
            try:
                session = await self._dial()
            except PolymuxError as problem:
                if not self._was_set_up and not isinstance(problem, NotListening):
                    raise
                await self._back_off(problem)
            else:
                log.info("connected to %s", self.address)
                return session

    def _start_waiting(self) -> None:
        """There is no session from now on."""
        self._lost_at = asyncio.get_running_loop().time()
        self._pause = FIRST_BACKOFF_SECONDS

    async def _back_off(self, problem: PolymuxError) -> None:
        """Pause before the next attempt.

        Raises:
            Unreachable: There has been no session for too long.
        """
        waited = asyncio.get_running_loop().time() - self._lost_at
        left = self._give_up_after - waited if self._give_up_after else self._pause
        if left <= 0:
            raise Unreachable(f"{problem}; tried for {waited:.0f} s") from None
        self._log_limiter.warn("connect", f"{problem}; trying again")
        await asyncio.sleep(min(left, self._pause * random.uniform(0.5, 1.0)))
        self._pause = min(2 * self._pause, MAX_BACKOFF_SECONDS)

    async def _forward(self, session: Session) -> None:
        """Forward over a session until it ends."""
        end = TunnelEnd(session, FORWARDED, self._log_limiter)
        relay = Relay(SocketsEnd(self._arrivals, self._dial_local), end, stats=self.stats)
        self.relays[relay] = str(self.address)
        self._listening.clear()
        running = asyncio.ensure_future(relay.run())
        try:
            await self._request_listening(end)
            self._was_set_up = True
            self.connected.set()
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            del self.relays[relay]

    async def _request_listening(self, end: TunnelEnd) -> None:
        """Ask the server to listen for every port of -R."""
        self._remote_targets.clear()
        try:
            for number, forward in enumerate(self._remote):
                asked = forward.listening
                if asked.port:
                    self._remote_targets[asked] = forward.target
                try:
                    _, bound = await end.request(Request(LISTEN, asked))
                except TargetRefused as problem:
                    raise TargetRefused(problem.code, f"-R {asked}: {problem}") from None
                self.remote_bound[number] = bound
                self._remote_targets[bound] = forward.target
                log.info("the server listens on %s for %s", bound, forward.target)
        finally:
            self._listening.set()

    async def close(self) -> None:
        """Stop listening, and close what waits. `run` has to be cancelled before."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for channel in list(self._channels):
            channel.abort("")

    async def __aenter__(self) -> TunnelClient:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    def collect(self) -> list[Family]:
        """Return the metrics of what was forwarded; end `b` is the tunnel."""
        return relay_families(self.stats, self.relays)

    # Connections

    def _socket_factory(self, forward: LocalForward) -> Callable[[Place], AcceptedSocket]:
        def on_connected(channel: AcceptedSocket) -> None:
            self._channels.add(channel)
            channel.closed.add_done_callback(lambda _: self._channels.discard(channel))
            if forward.target is None:
                SocksClient(channel, self._on_socks_target)
            else:
                self._put(channel, forward.target, socks=False)

        return lambda place: AcceptedSocket(place, on_connected)

    def _on_socks_target(self, channel: AcceptedSocket, target: Target) -> None:
        self._put(channel, target, socks=True)

    def _put(self, channel: AcceptedSocket, target: Target, socks: bool) -> None:
        """Queue a connection for the session, which may have to be made first."""
        channel.established()
        arrival = LocalArrival(channel, target, socks)

        def give_up() -> None:
            if self._arrivals.discard(arrival):
                arrival.refused(TargetRefused(FAILED, f"no connection to {self.address}"))

        if self.session is None or self.session.closed.done():
            asyncio.get_running_loop().call_later(WAIT_SECONDS, give_up)
        self._arrivals.put(arrival)

    async def _dial_local(self, name: bytes) -> Channel:
        """Connect to the target of a port of -R."""
        listening = parse_name(name).target
        if listening not in self._remote_targets:
            await self._listening.wait()
        target = self._remote_targets.get(listening)
        if target is None:
            raise TargetRefused(NOT_ALLOWED, f"this side did not ask to listen on {listening}")
        literal = as_address(target.host)
        addresses = [literal] if literal is not None else await lookup(target)
        return await connect_to(target, [str(address) for address in addresses])
