"""Two endpoints, links with delays, and watchers in five places.

    end A | watcher A --- queue --- watcher in the middle --- queue --- watcher B | end B

Everything is driven by one seed. Bytes are cut and delayed at random; a watcher beside a side
sees what that side writes and reads at the very moment it does so.
"""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PeerViolation
from polymux.core.observer import Observer
from polymux.core.rules import Severity, Violation
from polymux.core.side import Vantage
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.registry import create
from polymux.testing.drivers.base import Driver, driver_for

StreamSummaries = dict[str, tuple[int, ...]]


class PropertyFailed(AssertionError):
    """A property does not hold; the text has the seed that shows it."""


class Link:
    """One direction: written by one side, seen in the middle, read by the other side."""

    def __init__(self, sender: int) -> None:
        self.sender = sender
        self.before_middle: list[bytes] = []  # between the writer and the middle
        self.after_middle: list[bytes] = []  # between the middle and the reader

    def is_empty(self) -> bool:
        return not self.before_middle and not self.after_middle


class Simulation:
    """One simulated connection."""

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
        watch = observer_protocol if observer_protocol is not None else protocol
        self.ends = [
            Endpoint(create(text, vantage=side), side)
            for side, text in enumerate(self.protocol_strings)
        ]
        self.side_observers = [Observer(create(watch, vantage=side)) for side in (0, 1)]
        self.middle_observer = Observer(create(watch, vantage=middle_vantage))
        self.links = [Link(0), Link(1)]
        self.violations: list[list[Violation]] = [[], [], []]
        self.record: list[tuple[int, bytes, int]] = []  # as the middle saw it
        kind = driver_for(protocol.partition(":")[0])
        self.drivers: list[Driver] = [
            kind(end, Random(seed * 2 + i)) for i, end in enumerate(self.ends)
        ]
        for driver in self.drivers:
            driver.reuse_ids = reuse_ids
        for side, end in enumerate(self.ends):
            end.start(bytes(self.rng.randrange(256) for _ in range(16)))
            self.flush(side)

    # --- the world's moves

    def flush(self, side: int, formed_only: bool = False) -> None:
        """Flush one endpoint: its watcher sees the bytes as they are written."""
        room = 0 if formed_only else self.rng.choice([1, 5000, 200_000])
        data = self.ends[side].data_to_send(room)
        if data:
            self.advance_clock()
            self.side_observers[side].feed(side, data, self.now)
            self.links[side].before_middle.append(data)

    def deliver_to_middle(self, side: int) -> None:
        """Some bytes reach the middle."""
        link = self.links[side]
        if link.before_middle:
            data = self.pop_random_prefix(link.before_middle)
            self.advance_clock()
            self.middle_observer.feed(side, data, self.now)
            self.record.append((side, data, self.now))
            link.after_middle.append(data)

    def deliver_to_reader(self, side: int) -> None:
        """Some bytes of `side` reach the other end; its watcher sees them being read."""
        link = self.links[side]
        if link.after_middle:
            data = self.pop_random_prefix(link.after_middle)
            self.advance_clock()
            reader = 1 - side
            self.flush(reader, formed_only=True)  # what was formed before reading leaves before it
            self.side_observers[reader].feed(side, data, self.now)
            try:
                events = self.ends[reader].receive(data, self.now / 1e9)
            except PeerViolation as blame:
                raise PropertyFailed(
                    f"seed {self.seed}: side {reader} convicts its peer: {blame}"
                ) from None
            self.drivers[reader].on_events(events)

    def pop_random_prefix(self, queue: list[bytes]) -> bytes:
        """Take a random bite from the front of a queue."""
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
        """Random honest traffic, then everything is delivered."""
        for _ in range(steps):
            self.step(acting=True)
        self.drain()

    def drain(self) -> None:
        for turn in range(4000):
            for driver in self.drivers:
                driver.wind_down()
            for side in (0, 1):
                self.flush(side)
                while self.links[side].before_middle:
                    self.deliver_to_middle(side)
                while self.links[side].after_middle:
                    self.deliver_to_reader(side)
            quiet = all(link.is_empty() for link in self.links)
            if quiet and turn > 3 and not any(end.pending() for end in self.ends):
                return
        raise PropertyFailed(f"seed {self.seed}: the conversation does not come to rest")

    # --- what the five places say

    def findings(self) -> list[str]:
        """Everything worse than a note that any place says of these honest peers."""
        said: list[str] = []
        places = [
            ("beside the dialer", self.side_observers[0]),
            ("beside the acceptor", self.side_observers[1]),
            ("in the middle", self.middle_observer),
        ]
        for place, observer in places:
            for violation in observer.take_violations():
                if violation.rule.severity is not Severity.NOTE:
                    said.append(f"{place}: {violation}")
            for direction in (observer.connection.dialer, observer.connection.acceptor):
                if direction.decoding_stopped:
                    said.append(f"{place}: lost, {direction.stop_reason}")
            if not observer.accounts_for_all_bytes():
                said.append(f"{place}: bytes are not conserved")
        for side, end in enumerate(self.ends):
            notes = {r.name for r in end.protocol.rules if r.severity is Severity.NOTE}
            said += [f"end {side}: {name}" for name in end.counters.hits if name not in notes]
        return said

    def stream_summaries(self) -> list[StreamSummaries]:
        """Payload per half, ledgers and open halves, as each of the five places sees them."""
        tables = [end.protocol.streams for end in self.ends]
        tables += [
            observer.protocol.streams for observer in (*self.side_observers, self.middle_observer)
        ]
        return [
            {s.label(): stream_summary(s) for s in [*table.removed, *table.all()]}
            for table in tables
        ]


def stream_summary(stream: StreamState) -> tuple[int, ...]:
    seen: list[int] = []
    for half in (stream.dialer, stream.acceptor):
        seen += [
            half.content_bytes,
            half.content_units,
            half.credit_granted,
            half.credit_spent,
            int(half.state == OPEN),
        ]
    return tuple(seen)
