"""Model peers of Minmux: credit, limits, last items, and ids that are used again."""

from random import Random

from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.protocols.minmux.profile import read_profile
from polymux.protocols.minmux.protocol import Minmux as Observed
from polymux.testing.models.base import Fault, Model, Packet, Peer, Truth, Use

MOST = 2**64 - 1
GROUPS = {"give": 0, "write": 0, "stop-read": 1, "stop-write": 1, "oops": 2, "forgo": 2,
          "promise-read": 3, "promise-write": 3}  # fmt: skip
FROM_ONE = ("give", "write", "forgo", "promise-read", "promise-write")
PREFIXED, NEVER, UNIT = "prefixed", "never", 0
Shape = tuple[int | str, int | str]  # bytes of an item, and of the last item
IDS = (0, 1, 2, 3, 62, 63, 311, 2**63, MOST)
UNASSIGNED = 4  # of the profiles that name their streams


def varu64(value: int) -> bytes:
    """A VarU64 in its shortest form."""
    if value < 248:
        return bytes([value])
    width = (value.bit_length() + 7) // 8
    return bytes([247 + width]) + value.to_bytes(width, "big")


def header(group: int, number: int) -> bytes:
    if number < 63:
        return bytes([group << 6 | number])
    return bytes([group << 6 | 63]) + varu64(number - 63)


class Half:
    """A stream as one side knows it, in the use that this side is in."""

    def __init__(self, use: Use) -> None:
        self.use = use
        self.credit = 0  # the writer's: given, read, and not yet spent; the reader's: still out
        self.write_limit: int | None = None
        self.read_limit: int | None = None
        self.last = False  # the last item has passed
        self.said = False  # has this side said anything in this use?
        self.begun = False  # has either?

    def finished(self, shape: Shape) -> bool:
        return self.write_limit == 0 and (shape[1] == UNIT or self.last)

    def over(self, shape: Shape) -> bool:
        return self.finished(shape) and self.read_limit == 0


class MinmuxPeer(Peer):
    def __init__(self, side: int, rng: Random, model: "Minmux") -> None:
        super().__init__(side, rng)
        self.model = model
        self.halves: dict[int, Half] = {}

    def writes(self, number: int) -> bool:
        return (number & 1) == 1 - self.side

    # --- packets

    def packet(
        self, verb: str, half: Half, amount: int, items: bytes = b"", fault: Fault | None = None
    ) -> Packet:
        number = half.use.number
        data = header(GROUPS[verb], number) + varu64(amount - (verb in FROM_ONE)) + items
        half.said = half.begun = True
        return self.write(verb, data, half.use, amount, len(items), fault=fault)

    def items(self, form: int | str, count: int) -> bytes:
        if form == PREFIXED:
            sizes = [self.rng.choice([0, 1, 30, 260]) for _ in range(count)]
            return b"".join(varu64(size) + self.rng.randbytes(size) for size in sizes)
        return self.rng.randbytes(int(form) * count)

    # --- conduct

    def half(self, number: int) -> Half:
        """The use to speak of now: the next one, if this is over."""
        known = self.halves.get(number)
        if known is None or (self.model.reuse and known.over(self.model.shapes[number])):
            known = Half(self.model.use(number, known.use.incarnation + 1 if known else 1))
            self.halves[number] = known
        return known

    def read(self, packet: Packet) -> None:
        assert packet.use is not None
        number = packet.use.number
        known = self.halves.get(number)
        if known is not None and packet.verb == "forgo" and self.is_late(known, packet):
            known.credit = max(0, known.credit - packet.amount)  # it hits what is there
            return
        half = self.half(number)
        assert half.use is packet.use, "the sides disagree about the use of an id"
        self.note(half, packet)

    def is_late(self, known: Half, packet: Packet) -> bool:
        """Does this speak of a use that is over to this side?"""
        return known.use is not packet.use or known.over(self.model.shapes[known.use.number])

    def note(self, half: Half, packet: Packet) -> None:
        """A packet of either side changes what is known."""
        verb, amount = packet.verb, packet.amount
        half.begun = True
        if verb == "give":
            half.credit += amount
            if half.read_limit is not None:
                half.read_limit -= amount
        elif verb == "write":
            if half.write_limit == 0:
                half.last = True
                return
            half.credit -= amount
            if half.write_limit is not None:
                half.write_limit -= amount
        elif verb == "forgo":
            half.credit -= amount
        elif verb == "stop-read":
            half.read_limit = amount
        elif verb == "stop-write":
            half.write_limit = amount

    def act(self) -> None:
        number = self.rng.choice(self.model.ids)
        known = self.halves.get(number)
        shape = self.model.shapes[number]
        clean = (self.model.writer(number), number) not in self.spoilt
        if not clean or (known is not None and not self.model.reuse and known.over(shape)):
            return
        if self.writes(number):
            self.write_some(number, shape)
        else:
            self.read_some(number)

    def send(self, verb: str, half: Half, amount: int, items: bytes = b"") -> None:
        self.note(half, self.packet(verb, half, amount, items))

    def write_some(self, number: int, shape: Shape) -> None:
        half = self.half(number)
        what = self.rng.random()
        limit = half.write_limit
        if limit == 0:
            if not half.finished(shape):
                self.finish(half, shape)
            elif half.credit > 0 and half.said and what < 0.2:
                self.send("forgo", half, self.rng.randrange(min(half.credit, 50)) + 1)
            return
        if what < 0.08 and shape[1] != NEVER:
            amount = self.rng.choice([0, 0, 1, 5, 40])
            self.send("stop-write", half, amount if limit is None else min(amount, limit))
        elif what < 0.12:
            self.send("promise-write", half, min(self.rng.randrange(1, 9), limit or 9))
        elif half.credit > 0 and what < 0.2:
            self.send("forgo", half, self.rng.randrange(min(half.credit, 300)) + 1)
        elif half.credit > 0:
            most = min(half.credit, 40 if limit is None else limit)
            count = self.rng.choice([1, most, self.rng.randrange(1, most + 1)])
            self.send("write", half, count, self.items(shape[0], count))

    def finish(self, half: Half, shape: Shape) -> None:
        self.send("write", half, 1, self.items(shape[1], 1))

    def stopped(self, half: Half, shape: Shape) -> bool:
        """Is nothing but the last item to come?"""
        return half.write_limit == 0 and not half.finished(shape)

    def read_some(self, number: int) -> None:
        half = self.half(number)
        what = self.rng.random()
        limit = half.read_limit
        if limit == 0:
            return
        if what < 0.1:
            amount = self.rng.choice([0, 0, 1, 9, 300])
            self.send("stop-read", half, amount if limit is None else min(amount, limit))
        elif what < 0.15 and half.said:
            self.send("oops", half, self.rng.randrange(20))
        elif what < 0.2:
            self.send("promise-read", half, min(self.rng.randrange(1, 9), limit or 9))
        else:
            amount = self.rng.choice([1, 2, 7, 20, 300, 70_000, MOST])
            room = MOST - half.credit
            amount = min(amount, room if limit is None else min(room, limit))
            if amount > 0:
                self.send("give", half, amount)

    def answer(self) -> None:
        """A stream that was stopped gets its last item."""
        for number, half in list(self.halves.items()):
            shape = self.model.shapes[number]
            clean = (half.use.opener, number) not in self.spoilt
            if self.writes(number) and clean and self.stopped(half, shape):
                self.finish(half, shape)

    # --- faults

    def plant(self, fault: str) -> bool:
        rule = f"minmux.{fault}"
        numbers = [n for n in self.model.ids if (self.model.writer(n), n) not in self.spoilt]
        self.rng.shuffle(numbers)
        if fault in ("unassigned-stream", "varint-overflow"):
            return self.plant_anywhere(fault, rule)
        for number in numbers:
            half = self.halves.get(number)
            shape = self.model.shapes[number]
            if self.model.reuse and (half is None or half.over(shape) or not half.begun):
                continue
            known = half if half is not None else Half(self.model.use(number, 1))
            found = Fault(rule, known.use.label)
            if self.writes(number) and self.plant_writer(fault, found, known, shape):
                return True
            if not self.writes(number) and self.plant_reader(fault, found, known):
                return True
        return False

    def plant_writer(self, fault: str, found: Fault, half: Half, shape: Shape) -> bool:
        limit = half.write_limit
        if fault == "credit-exceeded" and limit is None and half.credit < 40:
            count = half.credit + self.rng.randrange(1, 4)
            self.packet("write", half, count, self.items(shape[0], count), found)
        elif fault == "write-past-limit" and limit is not None and limit < min(half.credit, 60):
            if limit == 0 and not half.finished(shape):
                return False
            count = limit + 1
            self.packet("write", half, count, self.items(shape[0], count), found)
        elif fault == "limit-raised" and limit is not None:
            self.packet("stop-write", half, limit + self.rng.choice([1, 9]), fault=found)
        elif fault == "endless-stream-stopped" and shape[1] == NEVER:
            self.packet("stop-write", half, self.rng.randrange(3), fault=found)
        elif fault == "forgo-exceeds-credit" and half.credit < MOST:
            self.packet("forgo", half, half.credit + 1, fault=found)
        elif fault == "promise-past-limit" and limit is not None:
            self.packet("promise-write", half, limit + 1, fault=found)
        elif fault == "varint-noncanonical" and half.credit > 0 and limit is None:
            items = self.items(shape[0], 1)
            data = header(0, half.use.number) + b"\xf8\0" + items
            self.write("write", data, half.use, 1, len(items), fault=found)
        elif fault == "item-too-long" and shape[0] == PREFIXED and half.credit and limit is None:
            self.packet("write", half, 1, varu64(65537) + bytes(65537), found)
        elif fault == "bad-item" and shape[0] == PREFIXED and half.credit and limit is None:
            lost = Fault(found.rule, found.stream, lost=True)
            self.packet("write", half, 1, varu64(2**62), lost)
        elif fault == "last-item-missing" and limit == 0 and not half.finished(shape):
            self.omit(found, half.use)
        else:
            return False
        return True

    def plant_reader(self, fault: str, found: Fault, half: Half) -> bool:
        limit = half.read_limit
        if fault == "credit-past-limit" and limit is not None and limit + half.credit < MOST:
            self.packet("give", half, limit + 1, fault=found)
        elif fault == "limit-raised" and limit is not None:
            self.packet("stop-read", half, limit + 1, fault=found)
        elif fault == "credit-overflow" and limit is None and half.credit > 0:
            if half.use.incarnation > 1:  # credit of the use before may have been given up late
                return False
            self.packet("give", half, MOST, fault=found)
        elif fault == "promise-past-limit" and limit is not None:
            self.packet("promise-read", half, limit + 1, fault=found)
        elif fault == "varint-noncanonical" and limit is None and half.credit < 100:
            data = header(0, half.use.number) + b"\xf8\x05"
            self.write("give", data, half.use, 6, fault=found)
        else:
            return False
        return True

    def plant_anywhere(self, fault: str, rule: str) -> bool:
        if fault == "varint-overflow":
            amount = self.rng.random() < 0.5  # of 2^64, or a stream id past 2^64-1
            data = b"\x00" + b"\xff" * 9 if amount else b"\x3f" + b"\xff" * 9 + b"\0"
            self.write("bad", data, fault=Fault(rule, lost=True))
            return True
        if not self.model.named:
            return False
        lost = self.writes(UNASSIGNED)
        use = Use(self.model.writer(UNASSIGNED), UNASSIGNED)
        data = header(0, UNASSIGNED) + b"\0" + b"x" * lost
        self.write("bad", data, use, fault=Fault(rule, lost=lost))
        return True


class Minmux(Model):
    name = "minmux"
    harmless = frozenset(
        {"limit-raised", "promise-past-limit", "forgo-exceeds-credit", "endless-stream-stopped"}
    )
    debts = frozenset({"minmux.last-item-missing"})
    faults = (
        "forgo-exceeds-credit", "credit-exceeded", "write-past-limit", "credit-past-limit",
        "limit-raised", "endless-stream-stopped", "credit-overflow", "varint-noncanonical",
        "varint-overflow", "unassigned-stream", "bad-item", "item-too-long", "promise-past-limit",
        "last-item-missing", "truncated",
    )  # fmt: skip

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.named = rng.random() < 0.6
        self.reuse = self.named and rng.random() < 0.5
        forms: list[int | str] = [1, 1, 4, PREFIXED, 0]
        lasts: list[int | str] = [UNIT, UNIT, 3, PREFIXED, NEVER]
        self.ids = rng.sample(IDS, rng.randrange(1, 6))
        self.shapes: dict[int, Shape] = {
            number: (rng.choice(forms), rng.choice(lasts)) if self.named else (1, UNIT)
            for number in self.ids
        }
        self.uses: dict[tuple[int, int], Use] = {}
        self.mates = [MinmuxPeer(side, rng, self) for side in (0, 1)]
        self.peers = list(self.mates)

    def observed(self, vantage: int) -> Protocol:
        if not self.named:
            return super().observed(vantage)
        streams = {str(n): {"item": item, "last": last} for n, (item, last) in self.shapes.items()}
        profile = read_profile({"reuse": self.reuse, "stream": streams})
        return Observed(Limits(), vantage, profile)

    def writer(self, number: int) -> int:
        return 1 - (number & 1)

    def use(self, number: int, incarnation: int) -> Use:
        key = (number, incarnation)
        if key not in self.uses:
            self.uses[key] = Use(self.writer(number), number, incarnation)
        return self.uses[key]

    def certain(self, planted: Packet, passed: list[Packet]) -> bool:
        use = planted.use
        return super().certain(planted, passed) and (use is None or use.incarnation == 1)

    def truths(self, passed: list[Packet]) -> dict[str, Truth]:
        found: dict[str, Truth] = {}
        newest: dict[int, Use] = {}
        halves: dict[Use, Half] = {}
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            first = newest.setdefault(use.number, use)
            if use.incarnation > first.incarnation:
                newest[use.number] = use
            truth = found.setdefault(use.label, Truth(granted=[None, None]))
            truth.count(packet)
            half = halves.setdefault(use, Half(use))
            if newest[use.number] is not use:  # late: it looks like a packet of the newest use
                truth.sure = found[newest[use.number].label].sure = False
                continue
            writer = use.opener
            truth.granted[writer] = truth.granted[writer] or 0
            if packet.verb == "give":
                truth.granted[writer] = (truth.granted[writer] or 0) + packet.amount
            truth.payload[packet.sender] += packet.payload
            self.mates[0].note(half, packet)
            shape = self.shapes[use.number]
            if half.finished(shape):
                truth.ending = "clean"
            elif half.read_limit == 0:
                truth.ending = "half-closed"
        return found
