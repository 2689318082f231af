"""`ChaosProxy`: a proxy between two peers of a protocol that injects faults by rules.

It is a relay: it accepts sessions at one URL, opens one to another URL for each, and relays their
streams. What the faults of streams do is in `faults/streams.py`, those of whole connections in
`faults/connections.py`, and rules of the protocol are broken by `faults/breach_runs.py`.
"""

from __future__ import annotations

import logging
import random
import ssl
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from polymux.aio import connect, serve
from polymux.aio.connect import Unreachable
from polymux.aio.server import Server
from polymux.capture.synthesis.tcp_connection import PacketSink
from polymux.conform.notation.payload import FrameWords
from polymux.conform.notation.selection import NOTATIONS
from polymux.core.errors import PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import ACCEPTOR, DIALER
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.session.session import Session
from polymux.live.session.socket_options import reset_on_close
from polymux.live.transport import Transport
from polymux.metrics.families import COUNTER, Family
from polymux.protocols.registry import parse_protocol
from polymux.record.session_recorder import Recorder, SessionCapture
from polymux.relay.bridging import paired_ends
from polymux.relay.ends import Arrival, SessionEnd
from polymux.relay.engine import Relay, RelayStats
from polymux.relay.faults.breaches import Place, Step
from polymux.relay.faults.connections import ConnectionFault, FaultyTransport
from polymux.relay.faults.control import ControlSocket
from polymux.relay.faults.relayed import (
    FaultyConnection,
    check_rule,
    placed_breach,
    stream_of,
)
from polymux.relay.faults.rules import FaultRule, RuleSet, StreamFacts, parse_rule
from polymux.relay.metrics import relay_families
from polymux.relay.traits import CannotRelay

log = logging.getLogger("polymux.relay")


class ChaosProxy:
    """Relays sessions between dialers and an upstream, and injects faults. Use in `async with`.

    Without rules it is transparent: names, content, half-closes, resets with their reasons and
    credit are passed on.

    Args:
        listen: URL to listen at; port 0 takes a free port.
        upstream: URL to connect to, once for each dialer.
        protocol: Protocol string of both.
        rules: Rules, as text (see `parse_rule`).
        control: `unix://` URL at which the rules can be changed; see `faults/control.py`.
        sink: Where both sessions of each connection are recorded, with every injected fault as a
            comment; None: nowhere. The caller closes it after the proxy.
        tls: Server context, if `listen` is tls:// or wss://.
        upstream_tls: Client context for a tls:// or wss:// upstream.
        server_hostname: Name to verify in the upstream's certificate; that of the URL by default.
        limits: Of each session.
        timeouts: Of each session.
        allow: Dialers that may connect, as for `polymux.serve`.

    Attributes:
        rules: The rules in force.
        stats: Counters of the relayed streams.
        connections: Connections accepted.
        refused: Of these, how many found no upstream.
        failure: Why the upstream could not be reached the last time; empty if it could.

    Raises:
        BadRule: A rule is malformed, or cannot be used with this protocol.
        BadUrl: A URL is invalid.
        CannotRelay: The protocol string has seeded channels, which cannot be relayed.
    """

    def __init__(
        self,
        listen: str,
        upstream: str,
        *,
        protocol: str,
        rules: Iterable[str] = (),
        control: str | None = None,
        sink: PacketSink | None = None,
        tls: ssl.SSLContext | None = None,
        upstream_tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        allow: Sequence[str] | None = None,
    ) -> None:
        if parse_protocol(protocol).options.get("seeded"):
            raise CannotRelay(
                f"{protocol}: seeded channels are opened by neither peer, so a relay has none; "
                "use `polymux record` between such peers"
            )
        self.protocol = protocol
        self.upstream = upstream
        self.rules = RuleSet()
        for text in rules:
            rule = parse_rule(text)
            check_rule(rule, protocol)
            self.rules.add(rule)
        self.stats = RelayStats()
        self.connections = 0
        self.refused = 0
        self.failure = ""
        self._listen = listen
        self._control = None
        if control is not None:
            self._control = ControlSocket(
                control, self.rules, lambda rule: check_rule(rule, protocol)
            )
        self._changeable = control is not None
        self._recorder = None if sink is None else Recorder(sink, in_middle=self.may_delay)
        self._tls = tls
        self._upstream_tls = upstream_tls
        self._server_hostname = server_hostname
        self._limits = limits
        self._timeouts = timeouts
        self._allow = allow
        self._server: Server | None = None
        self._relays: set[Relay] = set()  # of the connections that are open
        self._matched: Counter[int] = Counter()  # connections that a rule has matched

    def __repr__(self) -> str:
        return f"<polymux chaos proxy at {self.url} to {self.upstream}>"

    @property
    def url(self) -> str:
        """Where dialers connect, with the actual port after `start`."""
        return self._listen if self._server is None else self._server.url

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            BadUrl: A URL cannot be listened at.
        """
        needs_link = self._changeable or self._recorder is not None or bool(self.rules.rules)
        if self._control is not None:
            await self._control.start()
        try:
            self._server = await serve(
                self._relay,
                self._listen,
                protocol=self.protocol,
                tls=self._tls,
                limits=self._limits,
                timeouts=self._timeouts,
                allow=self._allow,
                recorder=self._accepted_link if needs_link else None,
            )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening and close all sessions."""
        if self._control is not None:
            await self._control.close()
        if self._server is not None:
            await self._server.close()

    async def __aenter__(self) -> ChaosProxy:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    # Connections

    def _accepted_link(self, protocol: str, side: int) -> ChaosLink:
        connection = ChaosConnection(self)
        return connection.link(protocol, ACCEPTOR)

    async def _relay(self, near: Session) -> None:
        """Relay one accepted session until it is over."""
        self.connections += 1
        link = near.recorder
        connection = link.connection if isinstance(link, ChaosLink) else None
        far = await self._connect(near, connection)
        if far is None:
            return
        self.failure = ""
        try:
            if connection is None:
                await self.run_relay(Relay(*paired_ends(near, far), stats=self.stats))
            else:
                await connection.relay(near, far)
        finally:
            far.abort("the relay is over")
            await far.wait_closed()

    async def _connect(self, near: Session, connection: ChaosConnection | None) -> Session | None:
        """Connect to the upstream; if that fails, end the accepted session and return None."""
        try:
            return await connect(
                self.upstream,
                protocol=self.protocol,
                tls=self._upstream_tls,
                server_hostname=self._server_hostname,
                limits=self._limits,
                timeouts=self._timeouts,
                recorder=None if connection is None else connection.far_link,
            )
        except PolymuxError as problem:
            self.refused += 1
            self.failure = str(problem)
            level = logging.WARNING if isinstance(problem, Unreachable) else logging.INFO
            log.log(level, "not relayed: %s", self.failure)
            near.abort("the upstream cannot be reached")
            return None

    async def run_relay(self, relay: Relay) -> None:
        """Run a relay, and count what it holds in the metrics meanwhile."""
        self._relays.add(relay)
        try:
            await relay.run()
        finally:
            self._relays.discard(relay)

    def collect(self) -> list[Family]:
        """Return the metrics of what was relayed and injected, such as for `prometheus_text`."""
        injected = Family("chaos_injected", COUNTER, "Faults injected by each rule.", ("rule",))
        for number, rule in self.rules.rules.items():
            injected.add((rule.text,), self.rules.injected[number])
        return [*relay_families(self.stats, self._relays), injected]

    @property
    def recorder(self) -> Recorder | None:
        """Records the sessions, if they are recorded."""
        return self._recorder

    @property
    def may_delay(self) -> bool:
        """Whether connections may suffer faults of whole connections."""
        return self._changeable or any(
            rule.kind.whole_connection for rule in self.rules.rules.values()
        )

    def selects_connection(self, number: int, rule: FaultRule) -> bool:
        """Whether a rule selects the connection that has just been accepted."""
        self._matched[number] += 1
        return rule.select.counts_in(self._matched[number]) and random.random() < rule.values.get(
            "toxicity", 1.0
        )


class ChaosConnection:
    """One relayed connection: two sessions, their links, and the faults of both."""

    def __init__(self, proxy: ChaosProxy) -> None:
        self.proxy = proxy
        self.links: dict[int, ChaosLink] = {}  # by this proxy's side in the session
        self.faulty = FaultyConnection(proxy.rules, proxy.protocol, self.annotate)
        self._known: dict[int, FaultRule] = {}
        self._selected: set[int] = set()
        self._is_known = False  # which rules select it
        self._noted: set[int] = set()
        self._open = 0

    def link(self, protocol: str, side: int) -> ChaosLink:
        """The link of the session in which this proxy is on `side`."""
        self.links[side] = ChaosLink(self, protocol, side)
        return self.links[side]

    def far_link(self, protocol: str, side: int) -> ChaosLink:
        """The link of the session to the upstream; a `RecorderFactory`."""
        return self.link(protocol, DIALER)

    async def relay(self, near: Session, far: Session) -> None:
        """Relay the streams of two sessions until one of them is over."""
        self.faulty.sessions = (near, far)
        ends = paired_ends(near, far)
        if isinstance(near, NerdbankSession):
            ends = (FaultyEnd(near, self.faulty, DIALER), FaultyEnd(far, self.faulty, ACCEPTOR))
        rules = self.proxy.rules.rules
        needed = bool(rules) or self.proxy.may_delay
        filters = self.faulty.filters if needed else None
        await self.proxy.run_relay(Relay(*ends, stats=self.proxy.stats, filters=filters))

    def annotate(self, text: str) -> None:
        """Write a comment to the recordings of both sessions."""
        log.info("%s", text)
        for link in self.links.values():
            if link.capture is not None:
                link.capture.annotate(text)

    # Faults of the whole connection

    def rules_towards(self, side: int) -> list[tuple[int, FaultRule]]:
        """The rules that concern the bytes that this proxy writes as `side`."""
        return [
            (number, rule)
            for number, rule in self._known.items()
            if number in self._selected and side in rule.senders
        ]

    def on_effect(self, fault: ConnectionFault) -> None:
        """A fault of the whole connection has its effect."""
        if fault.number not in self._noted:
            self._noted.add(fault.number)
            self.proxy.rules.count(fault.number)
            self.annotate(f"chaos: {fault.rule.fault_text} on the connection")

    def end(self, reset: bool) -> None:
        """End both connections: closed, or reset."""
        for link in list(self.links.values()):
            link.end(reset)

    def begun(self) -> None:
        """One of the two connections is made; that of a dialer who is refused never is."""
        self._open += 1
        if self._open > 1:
            return
        rules = self.proxy.rules
        if not self._is_known:  # else the dialer has left before the upstream was reached
            self._is_known = True
            self._known = dict(rules.rules)
            self._selected = {
                number for number, rule in self._known.items() if self._select(number, rule)
            }
        rules.on_change.append(self._on_rules_changed)
        self.faulty.start()

    def over(self) -> None:
        """One of the two connections is gone."""
        self._open -= 1
        if not self._open:
            self.proxy.rules.on_change.remove(self._on_rules_changed)
            self.faulty.close()

    def _select(self, number: int, rule: FaultRule) -> bool:
        if rule.kind.whole_connection:
            return self.proxy.selects_connection(number, rule)
        if placed_breach(rule, self.proxy.protocol, Place.HANDSHAKE) is not None:
            return self.proxy.selects_connection(number, rule)
        return False

    def _on_rules_changed(self) -> None:
        now = self.proxy.rules.rules
        for number in self._known.keys() - now.keys():
            for link in self.links.values():
                link.remove_fault(number)
        added = now.keys() - self._known.keys()
        self._known = dict(now)
        for number in added:
            rule = now[number]
            if rule.kind.whole_connection and self._select(number, rule):
                self._selected.add(number)
                for sender in rule.senders:
                    if sender in self.links:
                        self.links[sender].add_fault(number, rule)


class ChaosLink:
    """Stands between a session and its transport: records it, and lets it suffer faults.

    `side` is that of this proxy in the session. A `SessionRecorder`.
    """

    def __init__(self, connection: ChaosConnection, protocol: str, side: int) -> None:
        self.connection = connection
        self.side = side
        recorder = connection.proxy.recorder
        self.capture: SessionCapture | None = None if recorder is None else recorder(protocol, side)
        self._protocol = protocol
        self._transport: Transport | None = None
        self._faulty: FaultyTransport | None = None
        self._handshake: BrokenHandshake | None = None

    def begin(self, transport: Transport) -> Transport:
        self.connection.begun()
        self._transport = transport
        if self.capture is not None:
            transport = self.capture.begin(transport)
        for number, rule in self.connection.rules_towards(self.side):
            breach = placed_breach(rule, self._protocol, Place.HANDSHAKE)
            if breach is not None and self.side == DIALER:
                self.connection.faulty.note(number, rule, "the connection")
                self._handshake = BrokenHandshake(transport, self._protocol, breach.steps)
                # cast: it delegates what it does not define, as do the others here.
                return cast(Transport, self._handshake)
        if self.connection.proxy.may_delay:
            connection = self.connection
            self._faulty = FaultyTransport(transport, connection.end, connection.on_effect)
            transport = cast(Transport, self._faulty)
            for number, rule in connection.rules_towards(self.side):
                if rule.kind.whole_connection:
                    self._faulty.add(number, rule)
        return transport

    def read(self, data: bytes) -> None:
        if self.capture is not None:
            self.capture.read(data)
        if self._handshake is not None:
            self._handshake.on_read(data)

    def ended(self) -> None:
        if self.capture is not None:
            self.capture.ended()

    def closed(self, error: Exception | None) -> None:
        if self.capture is not None:
            self.capture.closed(error)
        if self._faulty is not None:
            self._faulty.release()
        self.connection.over()

    def add_fault(self, number: int, rule: FaultRule) -> None:
        if self._faulty is not None:
            self._faulty.add(number, rule)

    def remove_fault(self, number: int) -> None:
        if self._faulty is not None:
            self._faulty.remove(number)

    def end(self, reset: bool) -> None:
        """Close the connection, or reset it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if reset:
            reset_on_close(transport)
            if self.capture is not None:
                self.capture.on_abort()
            transport.abort()
        else:
            transport.close()


class BrokenHandshake:
    """A transport that sends the steps of a breach instead of what the session writes."""

    def __init__(
        self,
        transport: Transport,
        protocol: str,
        steps: Sequence[FrameWords | bytes | Step],
    ) -> None:
        self._transport = transport
        self._steps = list(steps)
        spec = parse_protocol(protocol)
        self._notation = NOTATIONS[spec.name](dict(spec.options), DIALER)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the steps up to one that waits; what the session wrote is dropped."""
        while self._steps and self._steps[0] is not Step.MIRROR:
            step = self._steps.pop(0)
            if isinstance(step, FrameWords):
                self._transport.write(self._notation.encode(step))
            elif isinstance(step, bytes):
                self._transport.write(step)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def on_read(self, data: bytes) -> None:
        """The peer's handshake arrived: send it back, if that is the next step."""
        if self._steps and self._steps[0] is Step.MIRROR:
            self._steps.pop(0)
            self._transport.write(data)


class FaultyEnd(SessionEnd):
    """The end of a session whose arriving streams may suffer faults before they are accepted."""

    def __init__(self, session: Session, faulty: FaultyConnection, opener: int) -> None:
        super().__init__(session)
        self._faulty = faulty
        self._opener = opener

    async def next_arrival(self) -> Arrival:
        arrival = await super().next_arrival()
        stream = stream_of(arrival.channel)
        name = arrival.name.decode("utf-8", "replace")
        facts = StreamFacts(arrival.channel.label, name, self._opener)
        self._faulty.arrived(self.session, stream, facts)
        return arrival
