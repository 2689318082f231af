"""Honest peers that reuse few ids, over links with delays, cause no violation reports.

The peers are written from the spec, without polymux: two dictionaries each. They free an id as soon
as the spec allows it, so that late requests give credit to, and late cancels end, the next stream
on the same id.
"""

from random import Random

import pytest

from polymux.core import connection
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.side import Vantage
from polymux.protocols.registry import create
from polymux.testing import Simulation
from polymux.testing.drivers.omnistreams import OmnistreamsDriver

COMPILED = not connection.__file__.endswith(".py")

CREATE, DATA, END, CANCEL_RECEIVE, REQUEST, CANCEL_SEND = 1, 2, 3, 4, 5, 6
LEGACY = {0: 5, CREATE: 0, DATA: 1, END: 2, REQUEST: 4, CANCEL_SEND: 3}


class Peer:
    """One honest side. `literal`: answers each late message with another cancel."""

    def __init__(self, rng: Random, legacy: bool, literal: bool, ids: int) -> None:
        self.rng = rng
        self.ids = ids
        self.legacy = legacy
        self.literal = literal
        self.writing: dict[int, int] = {}  # id to credit, while open
        self.reading: set[int] = set()
        self.out: list[bytes] = []

    def send(self, kind: int, *rest: int) -> None:
        self.out.append(bytes([LEGACY[kind] if self.legacy else kind, *rest]))

    def act(self) -> None:
        rng = self.rng
        number = rng.randrange(self.ids)
        pick = rng.random()
        if number not in self.writing and pick < 0.5:
            self.writing[number] = 0
            self.send(CREATE, number)
        elif number in self.writing and pick < 0.3:
            while self.writing[number] > 0 and rng.random() < 0.8:
                self.writing[number] -= 1
                self.send(DATA, number, 7)
        elif number in self.writing and pick < 0.45:
            del self.writing[number]
            if self.legacy or rng.random() < 0.7:
                self.send(END, number)
            else:
                self.send(CANCEL_RECEIVE, number)
        elif number in self.reading and pick < 0.8:
            self.send(REQUEST, number, rng.choice([0, 1, 1, 2, 9]))
        elif number in self.reading and pick < 0.9:
            self.reading.discard(number)
            self.send(CANCEL_SEND, number)
        elif pick > 0.97:
            self.send(0)

    def receive(self, message: bytes) -> None:
        code, number = message[0], message[1] if len(message) > 1 else -1
        kinds = {old: new for new, old in LEGACY.items()}
        kind = kinds[code] if self.legacy else code
        if kind == CREATE:
            self.reading.add(number)
        elif kind in (END, CANCEL_RECEIVE):
            self.reading.discard(number)
        elif kind == DATA and number not in self.reading and self.literal:
            self.send(CANCEL_SEND, number)
        elif kind == REQUEST and number in self.writing:
            self.writing[number] += message[2]
        elif kind == CANCEL_SEND:
            self.writing.pop(number, None)


class ObservedLink:
    """Two peers, with observers at each and in the middle. Messages are split and delayed."""

    def __init__(self, seed: int, legacy: bool = False, middle: Vantage = Vantage.MIDDLE) -> None:
        rng = self.rng = Random(seed)
        text = "omnistreams:carrier=length" + (",numbering=legacy" if legacy else "")
        self.literal = rng.random() < 0.3
        ids = rng.randrange(1, 4)
        self.peers = [Peer(rng, legacy, self.literal, ids) for _ in range(2)]
        self.beside = [Observer(create(text, vantage=side), rows=False) for side in (0, 1)]
        self.middle = Observer(create(text, vantage=middle), rows=False)
        self.near: list[list[bytes]] = [[], []]  # bytes between a peer and the middle
        self.far: list[list[bytes]] = [[], []]  # and between the middle and the other peer
        self.taken = [b"", b""]  # the first half of a message that is being read

    def flush(self, side: int) -> None:
        for message in self.peers[side].out:
            data = len(message).to_bytes(4, "big") + message
            self.beside[side].feed(side, data, 0)
            cut = self.rng.randrange(len(data))
            self.near[side] += [data[:cut], data[cut:]]
        self.peers[side].out.clear()

    def carry(self, side: int) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            if self.near[side]:
                data = self.near[side].pop(0)
                self.middle.feed(side, data, 0)
                self.far[side].append(data)

    def deliver(self, side: int) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            if self.far[side]:
                data = self.far[side].pop(0)
                self.beside[1 - side].feed(side, data, 0)
                self.taken[side] += data
                size = int.from_bytes(self.taken[side][:4], "big")
                if len(self.taken[side]) == size + 4:
                    message, self.taken[side] = self.taken[side][4:], b""
                    self.peers[1 - side].receive(message)
                    self.flush(1 - side)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            side = self.rng.randrange(2)
            move = self.rng.randrange(5)
            if move < 3:
                self.peers[side].act()
                self.flush(side)
            elif move == 3:
                self.carry(side)
            else:
                self.deliver(side)

    def findings(self) -> list[str]:
        found = []
        for observer in (*self.beside, self.middle):
            observer.finish(0, False, False)
            for violation in observer.take_violations():
                if violation.rule.name == "omnistreams.truncated":
                    continue  # the run may stop with replies pending
                if self.literal and violation.rule.severity is Severity.NOTE:
                    continue  # a repeated cancel is a note
                found.append(str(violation))
            assert observer.accounts_for_all_bytes()
        return found

    def uses(self) -> int:
        return max((s.incarnation for s in self.middle.protocol.streams.all()), default=0)


@pytest.mark.parametrize("legacy", [False, True])
def test_honest_peers_that_reuse_ids_at_once_have_no_violations_from_any_vantage(
    legacy: bool,
) -> None:
    uses = 0
    for seed in range(750 if COMPILED else 150):
        line = ObservedLink(seed, legacy)
        line.run(250)
        assert line.findings() == [], f"seed {seed}"
        uses = max(uses, line.uses())
    assert uses >= 12, "the ids were not reused enough to show anything"


def test_an_observer_that_takes_all_that_passed_for_read_reports_them() -> None:
    """So the runs above contain messages that cross in flight."""
    wrong = set()
    for seed in range(60):
        line = ObservedLink(seed, middle=Vantage.DIALER)
        line.run(250)
        wrong |= {text.split(":")[0].split(" ")[0] for text in line.findings()}
    assert wrong >= {"omnistreams.credit-exceeded", "omnistreams.sent-after-cancel"}


class FewIds(OmnistreamsDriver):
    id_count = 2


@pytest.mark.parametrize("carrier", ["length", "websocket"])
def test_honest_endpoints_that_reuse_ids_at_once_have_no_violations_from_any_vantage(
    carrier: str,
) -> None:
    for seed in range(300 if COMPILED else 40):
        world = Simulation(f"omnistreams:carrier={carrier}", seed)
        world.drivers = [FewIds(end, Random(seed * 2 + i)) for i, end in enumerate(world.ends)]
        world.run(400)
        assert world.findings() == [], f"seed {seed}"
