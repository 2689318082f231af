"""A simulated connection: two endpoints, links with delays, and three observers.

    endpoint A | observer A --- queue --- middle observer --- queue --- observer B | endpoint B

One seed determines everything. Bytes are split and delayed at random; an observer at a side sees
what that side writes and reads at the moment it does so.
"""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PeerViolation
from polymux.core.observer import Observer
from polymux.core.rules import Severity, Violation
from polymux.core.side import Vantage
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.registry import create
from polymux.testing.drivers.base import Driver
from polymux.testing.drivers.selection import driver_for

StreamSummaries = dict[str, tuple[int, ...]]


class PropertyFailed(AssertionError):
    """A property does not hold. The message names the seed that reproduces it."""


class Link:
    """One direction of the connection: two queues, before and after the middle observer."""

    def __init__(self, sender: int) -> None:
        self.sender = sender
        self.before_middle: list[bytes] = []  # written, not yet observed
        self.after_middle: list[bytes] = []  # observed, not yet read

    def is_empty(self) -> bool:
        return not self.before_middle and not self.after_middle


class Simulation:
    """One simulated connection.

    Args:
        protocol: protocol string of both sides.
        seed: determines the whole run.
        acceptor_protocol: protocol string of the acceptor, if it differs.
        middle_vantage: vantage that the middle observer is told it has.
        observer_protocol: protocol string of the observers, if it differs.
        reuse_ids: drivers reuse ids where the protocol lets the opener choose them.
    """

    def __init__(
        self,
        protocol: str,
        seed: int,
        *,
        acceptor_protocol: str | None = None,
        middle_vantage: Vantage = Vantage.MIDDLE,
        observer_protocol: str | None = None,
        reuse_ids: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0
        self.protocol_strings = (
            protocol,
            acceptor_protocol if acceptor_protocol is not None else protocol,
        )
        observed = observer_protocol if observer_protocol is not None else protocol
        self.ends = [
            Endpoint(create(text, vantage=side), side)
            for side, text in enumerate(self.protocol_strings)
        ]
        self.side_observers = [Observer(create(observed, vantage=side)) for side in (0, 1)]
        self.middle_observer = Observer(create(observed, vantage=middle_vantage))
        self.links = [Link(0), Link(1)]
        self.violations: list[list[Violation]] = [[], [], []]
        self.record: list[
            tuple[int, bytes, int]
        ] = []  # (side, bytes, timestamp) as observed in the middle
        driver_type = driver_for(protocol.partition(":")[0])
        self.drivers: list[Driver] = [
            driver_type(end, Random(seed * 2 + i)) for i, end in enumerate(self.ends)
        ]
        for driver in self.drivers:
            driver.reuse_ids = reuse_ids
        for side, end in enumerate(self.ends):
            end.start(bytes(self.rng.randrange(256) for _ in range(16)))
            self.flush(side)

    # Steps

    def flush(self, side: int, formed_only: bool = False) -> None:
        """Write what an endpoint has to send; the observer at its side sees it at once."""
        room = 0 if formed_only else self.rng.choice([1, 5000, 200_000])
        data = self.ends[side].data_to_send(room)
        if data:
            self.advance_clock()
            self.side_observers[side].feed(side, data, self.now)
            self.links[side].before_middle.append(data)

    def deliver_to_middle(self, side: int) -> None:
        """Deliver some bytes of `side` to the middle observer."""
        link = self.links[side]
        if link.before_middle:
            data = self.pop_random_prefix(link.before_middle)
            self.advance_clock()
            self.middle_observer.feed(side, data, self.now)
            self.record.append((side, data, self.now))
            link.after_middle.append(data)

    def deliver_to_reader(self, side: int) -> None:
        """Deliver some bytes of `side` to the other endpoint and to the observer at that side."""
        link = self.links[side]
        if link.after_middle:
            data = self.pop_random_prefix(link.after_middle)
            self.advance_clock()
            reader = 1 - side
            self.flush(
                reader, formed_only=True
            )  # frames encoded before the read are sent before it
            self.side_observers[reader].feed(side, data, self.now)
            try:
                events = self.ends[reader].receive(data, self.now / 1e9)
            except PeerViolation as violation:
                raise PropertyFailed(
                    f"seed {self.seed}: side {reader} reports a violation: {violation}"
                ) from None
            self.drivers[reader].on_events(events)

    def pop_random_prefix(self, queue: list[bytes]) -> bytes:
        """Remove and return a random number of bytes from the front of a queue."""
        first = queue[0]
        size = min(len(first), self.rng.choice([1, 2, 7, 60, 1500, 1 << 20]))
        if size == len(first):
            return queue.pop(0)
        queue[0] = first[size:]
        return first[:size]

    def advance_clock(self) -> None:
        self.now += self.rng.randrange(1, 1_000_000)

    def step(self, acting: bool) -> None:
        side = self.rng.randrange(2)
        move = self.rng.randrange(6 if acting else 5)
        if move == 5:
            self.drivers[side].act()
        elif move == 0:
            self.flush(side)
        elif move < 3:
            self.deliver_to_middle(side)
        else:
            self.deliver_to_reader(side)

    def run(self, steps: int = 150) -> None:
        """Run `steps` random steps, then deliver everything and end all streams."""
        for _ in range(steps):
            self.step(acting=True)
        self.drain()

    def drain(self) -> None:
        """Deliver everything and end all streams.

        Raises:
            PropertyFailed: traffic does not stop.
        """
        for iteration in range(4000):
            for driver in self.drivers:
                driver.wind_down()
            for side in (0, 1):
                self.flush(side)
                while self.links[side].before_middle:
                    self.deliver_to_middle(side)
                while self.links[side].after_middle:
                    self.deliver_to_reader(side)
            quiet = all(link.is_empty() for link in self.links)
            if quiet and iteration > 3 and not any(end.pending() for end in self.ends):
                return
        raise PropertyFailed(f"seed {self.seed}: the connection does not become idle")

    # Results

    def findings(self) -> list[str]:
        """Return every violation above a note, and every decoding problem, as text."""
        findings: list[str] = []
        observers = [
            ("at the dialer", self.side_observers[0]),
            ("at the acceptor", self.side_observers[1]),
            ("in the middle", self.middle_observer),
        ]
        for vantage, observer in observers:
            for violation in observer.take_violations():
                if violation.rule.severity is not Severity.NOTE:
                    findings.append(f"{vantage}: {violation}")
            for direction in (observer.connection.dialer, observer.connection.acceptor):
                if direction.decoding_stopped:
                    findings.append(f"{vantage}: decoding stopped, {direction.stop_reason}")
            if not observer.accounts_for_all_bytes():
                findings.append(f"{vantage}: bytes are not accounted for")
        for side, end in enumerate(self.ends):
            notes = {r.name for r in end.protocol.rules if r.severity is Severity.NOTE}
            findings += [
                f"endpoint {side}: {name}" for name in end.counters.hits if name not in notes
            ]
        return findings

    def stream_summaries(self) -> list[StreamSummaries]:
        """Return content, credit and state of all streams, for both endpoints and all observers."""
        tables = [end.protocol.streams for end in self.ends]
        tables += [
            observer.protocol.streams for observer in (*self.side_observers, self.middle_observer)
        ]
        return [
            {s.label(): stream_summary(s) for s in [*table.removed, *table.all()]}
            for table in tables
        ]


def stream_summary(stream: StreamState) -> tuple[int, ...]:
    figures: list[int] = []
    for half in (stream.dialer, stream.acceptor):
        figures += [
            half.content_bytes,
            half.content_units,
            half.credit_granted,
            half.credit_spent,
            int(half.state == OPEN),
        ]
    return tuple(figures)
