"""Which relayed streams suffer which faults: the rules applied to one relayed connection."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from polymux.core.side import ACCEPTOR, DIALER
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.protocols.registry import create, parse_protocol
from polymux.relay.channels import Channel, StreamChannel
from polymux.relay.engine import StreamInfo
from polymux.relay.faults.breach_runs import BreachRun
from polymux.relay.faults.breaches import Breach, Place, find_breach
from polymux.relay.faults.rules import ILLEGAL, BadRule, FaultRule, RuleSet, StreamFacts
from polymux.relay.faults.streams import CREDIT_FAULTS, FaultyDirection, Reorder
from polymux.relay.pump import Filter
from polymux.relay.traits import protocol_traits

log = logging.getLogger("polymux.relay")

UNFINISHED_BREACH_SECONDS: Final = 5.0  # for the peer's part in a breach that has begun
AFTER_BREACH_REASON: Final = "ended by polymux chaos after breaking a rule"


def check_rule(rule: FaultRule, protocol: str) -> None:
    """Check that a rule can be used with this protocol string.

    Raises:
        BadRule: It cannot; the text says why.
    """
    if rule.kind.name == ILLEGAL:
        find_breach(protocol, rule.broken_rule)
    if rule.kind.name in CREDIT_FAULTS and not create(protocol).has_credit:
        raise BadRule(
            f"{rule.text!r}: {protocol} has no credit that could be withheld; use hold, rate or "
            "starve"
        )
    if rule.kind.name == "dribble-credit" and parse_protocol(protocol).name == "minmux":
        raise BadRule(f"{rule.text!r}: credit of Minmux returns by windows only; use rate")


class FaultyConnection:
    """One relayed connection and the faults of its streams.

    Args:
        rules: The rules; changes apply to open streams too.
        protocol: The protocol string.
        annotate: Called with a sentence for each fault that is injected.

    Attributes:
        passed: Chunks of each side that were passed on.
        reorders: The faults of each side that wait for chunks to pass.
    """

    def __init__(self, rules: RuleSet, protocol: str, annotate: Callable[[str], None]) -> None:
        self.rules = rules
        self.protocol = protocol
        self.annotate = annotate
        self.one_way = protocol_traits(create(protocol)).is_one_way
        self.sessions: tuple[Session, ...] = ()  # with the dialer and with the upstream
        self.passed = [0, 0]
        self.reorders: tuple[list[Reorder], list[Reorder]] = ([], [])
        self._news: deque[tuple[FaultyDirection, int]] = deque()  # passed chunks, not yet told
        self._telling = False
        self._streams: dict[FaultyStream, None] = {}  # open ones, in the order of opening
        self._known: dict[int, FaultRule] = {}
        self._matched: Counter[int] = Counter()  # streams that a rule has matched, by its number

    def start(self) -> None:
        """The connection is made: follow the changes of the rules until `close`."""
        self._known = dict(self.rules.rules)
        self.rules.on_change.append(self._on_rules_changed)

    def close(self) -> None:
        """The connection is over."""
        self.rules.on_change.remove(self._on_rules_changed)

    def filters(self, info: StreamInfo) -> tuple[Filter | None, Filter | None]:
        """The filters of a stream; a `FilterFactory`."""
        stream = FaultyStream(self, info)
        self._streams[stream] = None
        for number, rule in self.rules.rules.items():
            self._apply(number, rule, stream)
        return stream.filters

    def arrived(self, session: Session, stream: Stream, facts: StreamFacts) -> None:
        """A stream was opened by the peer of `session`, and is not accepted yet."""
        for number, rule in self.rules.rules.items():
            breach = placed_breach(rule, self.protocol, Place.ARRIVAL)
            if breach is not None and self._selects(number, rule, facts):
                run = BreachRun(
                    breach, self.protocol, session, stream, self._noting(number, rule, facts)
                )
                run.advance()

    def forget(self, stream: FaultyStream) -> None:
        self._streams.pop(stream, None)

    def chunk_passed(self, direction: FaultyDirection) -> None:
        """A chunk was passed on: count it, and tell the faults of other streams that wait for it.

        What they let go on is counted inside this call, and told by its one loop.
        """
        sender = direction.sender
        self.passed[sender] += 1
        if not self.reorders[sender]:
            return
        self._news.append((direction, self.passed[sender]))
        if self._telling:
            return
        self._telling = True
        try:
            while self._news:
                direction, passed = self._news.popleft()
                for reorder in list(self.reorders[direction.sender]):
                    if reorder.direction is not direction:
                        reorder.on_passed(passed)
        finally:
            self._telling = False

    def note(self, number: int, rule: FaultRule, label: str) -> None:
        """A fault has its effect on the stream with this label."""
        self.rules.count(number)
        self.annotate(f"chaos: {rule.fault_text} on {label}")

    def _noting(self, number: int, rule: FaultRule, facts: StreamFacts) -> Callable[[bool], None]:
        return lambda found: self.note_breach(number, rule, facts.label, found)

    def note_breach(self, number: int, rule: FaultRule, label: str, found: bool) -> None:
        """A breach was carried out; `found`: the rule was broken by it."""
        if found:
            self.note(number, rule, label)
        else:
            log.warning("%s: the frames that were sent on %s broke no such rule", rule.text, label)
            self.annotate(f"chaos: {rule.fault_text} on {label} had no effect")

    def _selects(self, number: int, rule: FaultRule, facts: StreamFacts) -> bool:
        if not rule.select.matches(facts):
            return False
        self._matched[number] += 1
        return rule.select.counts_in(self._matched[number])

    def _apply(self, number: int, rule: FaultRule, stream: FaultyStream) -> None:
        of_streams = not rule.kind.whole_connection and self._is_of_streams(rule)
        if of_streams and self._selects(number, rule, stream.facts):
            stream.add(number, rule)

    def _is_of_streams(self, rule: FaultRule) -> bool:
        if rule.kind.name != ILLEGAL:
            return True
        place = find_breach(self.protocol, rule.broken_rule).place
        return place not in (Place.ARRIVAL, Place.HANDSHAKE)

    def _on_rules_changed(self) -> None:
        now = self.rules.rules
        for number in self._known.keys() - now.keys():
            for stream in list(self._streams):
                stream.remove(number)
        for number in now.keys() - self._known.keys():
            for stream in list(self._streams):
                self._apply(number, now[number], stream)
        self._known = dict(now)


def placed_breach(rule: FaultRule, protocol: str, place: Place) -> Breach | None:
    """The breach of a rule if it happens at this place."""
    if rule.kind.name != ILLEGAL:
        return None
    breach = find_breach(protocol, rule.broken_rule)
    return breach if breach.place is place else None


class FaultyStream:
    """One relayed stream: its two filters, and a breach that is being carried out on it."""

    def __init__(self, connection: FaultyConnection, info: StreamInfo) -> None:
        self.connection = connection
        self.info = info
        opener = DIALER if info.from_a else ACCEPTOR
        name = info.name.decode("utf-8", "replace")
        self.facts = StreamFacts(info.near.label, name, opener)
        self.directions = (FaultyDirection(self, DIALER), FaultyDirection(self, ACCEPTOR))
        self._opener = opener
        self._begun: set[int] = set()  # numbers of rules that act once
        self._breach: BreachRun | None = None
        self._open = 2

    @property
    def filters(self) -> tuple[Filter, Filter]:
        """Those of the opener's direction, and of the other."""
        return self.directions[self._opener], self.directions[1 - self._opener]

    def add(self, number: int, rule: FaultRule) -> None:
        for sender in rule.senders:
            if sender == self._opener or not self.connection.one_way:
                self.directions[sender].add(number, rule)

    def remove(self, number: int) -> None:
        for direction in self.directions:
            direction.remove(number)

    def begin_once(self, number: int) -> bool:
        """Whether the fault of this rule has not begun on the stream yet."""
        new = number not in self._begun
        self._begun.add(number)
        return new

    def note(self, number: int, rule: FaultRule) -> None:
        self.connection.note(number, rule, self.facts.label)

    def on_direction_over(self, direction: FaultyDirection) -> None:
        self._open -= 1
        if self._open == 0 or self.connection.one_way:
            self.connection.forget(self)

    # Breaches

    def start_breach(self, number: int, rule: FaultRule) -> None:
        """Carry out the breach of a rule, now and as far as the peer has to do its part."""
        breach = find_breach(self.connection.protocol, rule.broken_rule)
        near = breach.place is Place.NEAR
        stream = stream_of(self.info.near if near else self.info.far)
        session = self.connection.sessions[self._opener if near else 1 - self._opener]
        bound = None if breach.place is Place.FRESH else stream

        loop = asyncio.get_running_loop()

        def end_if_broken() -> None:
            """End a stream that was ended on one side only: it cannot be relayed any further."""
            if self._breach is not None and self._breach.ended_half:
                self.directions[self._opener].pump.relayed.abort_both(AFTER_BREACH_REASON)

        def on_done(found: bool) -> None:
            self.connection.note_breach(number, rule, self.facts.label, found)
            loop.call_soon(end_if_broken)

        self._breach = BreachRun(breach, self.connection.protocol, session, bound, on_done)
        self._breach.advance()
        if not self._breach.is_over and self._breach.ended_half:
            loop.call_later(UNFINISHED_BREACH_SECONDS, end_if_broken)

    def on_change(self) -> None:
        """Content was passed on, or the stream was ended or aborted by a peer."""
        if self._breach is not None and not self._breach.is_over:
            self._breach.advance()


def stream_of(channel: Channel) -> Stream:
    """The stream of a channel of a session."""
    assert isinstance(channel, StreamChannel)  # chaos relays between sessions only
    return channel.stream
