"""Two endpoints, links with delays, and watchers in five places.

    end A | watcher A --- queue --- watcher in the middle --- queue --- watcher B | end B

Everything is driven by one seed. Octets are cut and delayed at random; a watcher beside a side
sees what that side writes and reads at the very moment it does so.
"""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PeerViolation
from polymux.core.observer import Observer
from polymux.core.rules import Severity, Violation
from polymux.core.side import Vantage
from polymux.core.streams import OPEN, Stream
from polymux.protocols.registry import create
from polymux.testing.drivers.base import Driver, driver_for

Portrait = dict[str, tuple[int, ...]]


class Broken(AssertionError):
    """A property does not hold; the text has the seed that shows it."""


class Link:
    """One direction: written by one side, seen in the middle, read by the other side."""

    def __init__(self, sender: int) -> None:
        self.sender = sender
        self.near: list[bytes] = []  # between the writer and the middle
        self.far: list[bytes] = []  # between the middle and the reader

    def idle(self) -> bool:
        return not self.near and not self.far


class World:
    """One simulated connection."""

    def __init__(
        self,
        protocol: str,
        seed: int,
        *,
        other: str | None = None,
        middle: Vantage = Vantage.MIDDLE,
        watched: str | None = None,
        reuses: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0
        self.texts = (protocol, other if other is not None else protocol)
        watch = watched if watched is not None else protocol
        self.ends = [
            Endpoint(create(text, vantage=side), side) for side, text in enumerate(self.texts)
        ]
        self.beside = [Observer(create(watch, vantage=side)) for side in (0, 1)]
        self.middle = Observer(create(watch, vantage=middle))
        self.links = [Link(0), Link(1)]
        self.violations: list[list[Violation]] = [[], [], []]
        self.record: list[tuple[int, bytes, int]] = []  # as the middle saw it
        kind = driver_for(protocol.partition(":")[0])
        self.drivers: list[Driver] = [
            kind(end, Random(seed * 2 + i)) for i, end in enumerate(self.ends)
        ]
        for driver in self.drivers:
            driver.reuses = reuses
        for side, end in enumerate(self.ends):
            end.start(bytes(self.rng.randrange(256) for _ in range(16)))
            self.write(side)

    # --- the world's moves

    def write(self, side: int, formed_only: bool = False) -> None:
        """Flush one endpoint: its watcher sees the octets as they are written."""
        room = 0 if formed_only else self.rng.choice([1, 5000, 200_000])
        data = self.ends[side].data_to_send(room)
        if data:
            self.tick()
            self.beside[side].feed(side, data, self.now)
            self.links[side].near.append(data)

    def carry(self, side: int) -> None:
        """Some octets reach the middle."""
        link = self.links[side]
        if link.near:
            data = self.chip(link.near)
            self.tick()
            self.middle.feed(side, data, self.now)
            self.record.append((side, data, self.now))
            link.far.append(data)

    def deliver(self, side: int) -> None:
        """Some octets of `side` reach the other end; its watcher sees them being read."""
        link = self.links[side]
        if link.far:
            data = self.chip(link.far)
            self.tick()
            reader = 1 - side
            self.write(reader, formed_only=True)  # what was formed before reading leaves before it
            self.beside[reader].feed(side, data, self.now)
            try:
                events = self.ends[reader].receive(data, self.now / 1e9)
            except PeerViolation as blame:
                raise Broken(
                    f"seed {self.seed}: side {reader} convicts its peer: {blame}"
                ) from None
            self.drivers[reader].heard(events)

    def chip(self, queue: list[bytes]) -> bytes:
        """Take a random bite from the front of a queue."""
        first = queue[0]
        size = min(len(first), self.rng.choice([1, 2, 7, 60, 1500, 1 << 20]))
        if size == len(first):
            return queue.pop(0)
        queue[0] = first[size:]
        return first[:size]

    def tick(self) -> None:
        self.now += self.rng.randrange(1, 1_000_000)

    def step(self, acting: bool) -> None:
        side = self.rng.randrange(2)
        move = self.rng.randrange(6 if acting else 5)
        if move == 5:
            self.drivers[side].act()
        elif move == 0:
            self.write(side)
        elif move < 3:
            self.carry(side)
        else:
            self.deliver(side)

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
                self.write(side)
                while self.links[side].near:
                    self.carry(side)
                while self.links[side].far:
                    self.deliver(side)
            quiet = all(link.idle() for link in self.links)
            if quiet and turn > 3 and not any(end.pending() for end in self.ends):
                return
        raise Broken(f"seed {self.seed}: the conversation does not come to rest")

    # --- what the five places say

    def findings(self) -> list[str]:
        """Everything worse than a note that any place says of these honest peers."""
        said: list[str] = []
        places = [("beside the dialer", self.beside[0]), ("beside the acceptor", self.beside[1]),
                  ("in the middle", self.middle)]  # fmt: skip
        for place, observer in places:
            for violation in observer.take_violations():
                if violation.rule.severity is not Severity.NOTE:
                    said.append(f"{place}: {violation}")
            for direction in (observer.conversation.dialer, observer.conversation.acceptor):
                if direction.lost:
                    said.append(f"{place}: lost, {direction.reason}")
            if not observer.balanced():
                said.append(f"{place}: octets are not conserved")
        for side, end in enumerate(self.ends):
            notes = {r.name for r in end.protocol.rules if r.severity is Severity.NOTE}
            said += [f"end {side}: {name}" for name in end.counters.hits if name not in notes]
        return said

    def portraits(self) -> list[Portrait]:
        """Payload per half, ledgers and open halves, as each of the five places sees them."""
        tables = [end.protocol.streams for end in self.ends]
        tables += [observer.protocol.streams for observer in (*self.beside, self.middle)]
        return [{s.label(): portrait(s) for s in [*table.gone, *table.all()]} for table in tables]


def portrait(stream: Stream) -> tuple[int, ...]:
    seen: list[int] = []
    for half in (stream.dialer, stream.acceptor):
        seen += [half.octets, half.units, half.granted, half.spent, int(half.state == OPEN)]
    return tuple(seen)
