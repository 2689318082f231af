"""Model peers of Minmux: credit, limits, last items and reuse of ids."""

from random import Random

from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.protocols.minmux.profile import parse_profile
from polymux.protocols.minmux.protocol import Minmux as Observed
from polymux.testing.models.base import (
    ExpectedStream,
    Fault,
    IdUse,
    ModelFrame,
    ModelPeer,
    ProtocolModel,
)

U64_MAX = 2**64 - 1
PACKET_GROUPS = {"give": 0, "write": 0, "stop-read": 1, "stop-write": 1, "oops": 2, "forgo": 2,
          "promise-read": 3, "promise-write": 3}  # fmt: skip
NONZERO_AMOUNTS = ("give", "write", "forgo", "promise-read", "promise-write")
PREFIXED, NEVER, UNIT = "prefixed", "never", 0
ItemSizes = tuple[int | str, int | str]  # bytes of an item, and of the last item
STREAM_IDS = (0, 1, 2, 3, 62, 63, 311, 2**63, U64_MAX)
UNASSIGNED_ID = 4  # in profiles that assign streams one by one


def encode_varu64(value: int) -> bytes:
    """Return a VarU64 in shortest form."""
    if value < 248:
        return bytes([value])
    width = (value.bit_length() + 7) // 8
    return bytes([247 + width]) + value.to_bytes(width, "big")


def encode_header(group: int, stream_id: int) -> bytes:
    if stream_id < 63:
        return bytes([group << 6 | stream_id])
    return bytes([group << 6 | 63]) + encode_varu64(stream_id - 63)


class KnownUse:
    """What one side knows of a stream, in the use that this side is in."""

    def __init__(self, use: IdUse) -> None:
        self.use = use
        self.credit = 0  # at the writer: read and unspent; at the reader: given and unused
        self.write_limit: int | None = None
        self.read_limit: int | None = None
        self.last_item_passed = False
        self.has_sent = False  # this side, in this use
        self.is_started = False  # either side has sent in this use

    def finished(self, item_sizes: ItemSizes) -> bool:
        return self.write_limit == 0 and (item_sizes[1] == UNIT or self.last_item_passed)

    def over(self, item_sizes: ItemSizes) -> bool:
        return self.finished(item_sizes) and self.read_limit == 0


class MinmuxPeer(ModelPeer):
    def __init__(self, side: int, rng: Random, model: "MinmuxModel") -> None:
        super().__init__(side, rng)
        self.model = model
        self.known_uses: dict[int, KnownUse] = {}

    def is_writer(self, stream_id: int) -> bool:
        return (stream_id & 1) == 1 - self.side

    # Sending

    def write_packet(
        self,
        verb: str,
        known: KnownUse,
        amount: int,
        items: bytes = b"",
        fault: Fault | None = None,
    ) -> ModelFrame:
        number = known.use.stream_id
        data = (
            encode_header(PACKET_GROUPS[verb], number)
            + encode_varu64(amount - (verb in NONZERO_AMOUNTS))
            + items
        )
        known.has_sent = known.is_started = True
        return self.write_frame(verb, data, known.use, amount, len(items), fault=fault)

    def random_items(self, item_size: int | str, count: int) -> bytes:
        if item_size == PREFIXED:
            sizes = [self.rng.choice([0, 1, 30, 260]) for _ in range(count)]
            return b"".join(encode_varu64(size) + self.rng.randbytes(size) for size in sizes)
        return self.rng.randbytes(int(item_size) * count)

    # Legal behaviour

    def current_use(self, stream_id: int) -> KnownUse:
        """Return the use to send in: the next one if the current use is over."""
        known = self.known_uses.get(stream_id)
        if known is None or (self.model.reuse and known.over(self.model.item_sizes[stream_id])):
            known = KnownUse(
                self.model.id_use(stream_id, known.use.incarnation + 1 if known else 1)
            )
            self.known_uses[stream_id] = known
        return known

    def read(self, packet: ModelFrame) -> None:
        assert packet.use is not None
        number = packet.use.stream_id
        known = self.known_uses.get(number)
        if (
            known is not None
            and packet.verb == "forgo"
            and self.is_about_previous_use(known, packet)
        ):
            known.credit = max(
                0, known.credit - packet.amount
            )  # a late packet counts for the newest use
            return
        half = self.current_use(number)
        assert half.use is packet.use, "the sides disagree about the use of an id"
        self.apply_packet(half, packet)

    def is_about_previous_use(self, known: KnownUse, packet: ModelFrame) -> bool:
        """Return whether the packet belongs to a use that is over for this side."""
        return known.use is not packet.use or known.over(self.model.item_sizes[known.use.stream_id])

    def apply_packet(self, known: KnownUse, packet: ModelFrame) -> None:
        """Update a use by a packet of either side."""
        verb, amount = packet.verb, packet.amount
        known.is_started = True
        if verb == "give":
            known.credit += amount
            if known.read_limit is not None:
                known.read_limit -= amount
        elif verb == "write":
            if known.write_limit == 0:
                known.last_item_passed = True
                return
            known.credit -= amount
            if known.write_limit is not None:
                known.write_limit -= amount
        elif verb == "forgo":
            known.credit -= amount
        elif verb == "stop-read":
            known.read_limit = amount
        elif verb == "stop-write":
            known.write_limit = amount

    def act(self) -> None:
        number = self.rng.choice(self.model.ids)
        known = self.known_uses.get(number)
        shape = self.model.item_sizes[number]
        clean = (self.model.writer_of(number), number) not in self.faulted_ids
        if not clean or (known is not None and not self.model.reuse and known.over(shape)):
            return
        if self.is_writer(number):
            self.act_as_writer(number, shape)
        else:
            self.act_as_reader(number)

    def send(self, verb: str, known: KnownUse, amount: int, items: bytes = b"") -> None:
        self.apply_packet(known, self.write_packet(verb, known, amount, items))

    def act_as_writer(self, stream_id: int, item_sizes: ItemSizes) -> None:
        half = self.current_use(stream_id)
        what = self.rng.random()
        limit = half.write_limit
        if limit == 0:
            if not half.finished(item_sizes):
                self.send_last_item(half, item_sizes)
            elif half.credit > 0 and half.has_sent and what < 0.2:
                self.send("forgo", half, self.rng.randrange(min(half.credit, 50)) + 1)
            return
        if what < 0.08 and item_sizes[1] != NEVER:
            amount = self.rng.choice([0, 0, 1, 5, 40])
            self.send("stop-write", half, amount if limit is None else min(amount, limit))
        elif what < 0.12:
            self.send("promise-write", half, min(self.rng.randrange(1, 9), limit or 9))
        elif half.credit > 0 and what < 0.2:
            self.send("forgo", half, self.rng.randrange(min(half.credit, 300)) + 1)
        elif half.credit > 0:
            most = min(half.credit, 40 if limit is None else limit)
            count = self.rng.choice([1, most, self.rng.randrange(1, most + 1)])
            self.send("write", half, count, self.random_items(item_sizes[0], count))

    def send_last_item(self, known: KnownUse, item_sizes: ItemSizes) -> None:
        self.send("write", known, 1, self.random_items(item_sizes[1], 1))

    def awaits_last_item(self, known: KnownUse, item_sizes: ItemSizes) -> bool:
        """Return whether only the last item is missing."""
        return known.write_limit == 0 and not known.finished(item_sizes)

    def act_as_reader(self, stream_id: int) -> None:
        half = self.current_use(stream_id)
        what = self.rng.random()
        limit = half.read_limit
        if limit == 0:
            return
        if what < 0.1:
            amount = self.rng.choice([0, 0, 1, 9, 300])
            self.send("stop-read", half, amount if limit is None else min(amount, limit))
        elif what < 0.15 and half.has_sent:
            self.send("oops", half, self.rng.randrange(20))
        elif what < 0.2:
            self.send("promise-read", half, min(self.rng.randrange(1, 9), limit or 9))
        else:
            amount = self.rng.choice([1, 2, 7, 20, 300, 70_000, U64_MAX])
            room = U64_MAX - half.credit
            amount = min(amount, room if limit is None else min(room, limit))
            if amount > 0:
                self.send("give", half, amount)

    def send_replies(self) -> None:
        """Send the last item of stopped streams."""
        for number, half in list(self.known_uses.items()):
            shape = self.model.item_sizes[number]
            clean = (half.use.opener, number) not in self.faulted_ids
            if self.is_writer(number) and clean and self.awaits_last_item(half, shape):
                self.send_last_item(half, shape)

    # Faults

    def inject_fault(self, fault: str) -> bool:
        rule = f"minmux.{fault}"
        numbers = [
            n for n in self.model.ids if (self.model.writer_of(n), n) not in self.faulted_ids
        ]
        self.rng.shuffle(numbers)
        if fault in ("unassigned-stream", "varint-overflow"):
            return self.inject_off_stream(fault, rule)
        for number in numbers:
            half = self.known_uses.get(number)
            shape = self.model.item_sizes[number]
            if self.model.reuse and (half is None or half.over(shape) or not half.is_started):
                continue
            known = half if half is not None else KnownUse(self.model.id_use(number, 1))
            found = Fault(rule, known.use.label)
            if self.is_writer(number) and self.inject_as_writer(fault, found, known, shape):
                return True
            if not self.is_writer(number) and self.inject_as_reader(fault, found, known):
                return True
        return False

    def inject_as_writer(
        self, fault: str, found: Fault, known: KnownUse, item_sizes: ItemSizes
    ) -> bool:
        limit = known.write_limit
        if fault == "credit-exceeded" and limit is None and known.credit < 40:
            count = known.credit + self.rng.randrange(1, 4)
            self.write_packet("write", known, count, self.random_items(item_sizes[0], count), found)
        elif fault == "write-past-limit" and limit is not None and limit < min(known.credit, 60):
            if limit == 0 and not known.finished(item_sizes):
                return False
            count = limit + 1
            self.write_packet("write", known, count, self.random_items(item_sizes[0], count), found)
        elif fault == "limit-raised" and limit is not None:
            self.write_packet("stop-write", known, limit + self.rng.choice([1, 9]), fault=found)
        elif fault == "endless-stream-stopped" and item_sizes[1] == NEVER:
            self.write_packet("stop-write", known, self.rng.randrange(3), fault=found)
        elif fault == "forgo-exceeds-credit" and known.credit < U64_MAX:
            self.write_packet("forgo", known, known.credit + 1, fault=found)
        elif fault == "promise-past-limit" and limit is not None:
            self.write_packet("promise-write", known, limit + 1, fault=found)
        elif fault == "varint-noncanonical" and known.credit > 0 and limit is None:
            items = self.random_items(item_sizes[0], 1)
            data = encode_header(0, known.use.stream_id) + b"\xf8\0" + items
            self.write_frame("write", data, known.use, 1, len(items), fault=found)
        elif (
            fault == "item-too-long"
            and item_sizes[0] == PREFIXED
            and known.credit
            and limit is None
        ):
            self.write_packet("write", known, 1, encode_varu64(65537) + bytes(65537), found)
        elif fault == "bad-item" and item_sizes[0] == PREFIXED and known.credit and limit is None:
            lost = Fault(found.rule, found.stream, loses_framing=True)
            self.write_packet("write", known, 1, encode_varu64(2**62), lost)
        elif fault == "last-item-missing" and limit == 0 and not known.finished(item_sizes):
            self.omit_reply(found, known.use)
        else:
            return False
        return True

    def inject_as_reader(self, fault: str, found: Fault, known: KnownUse) -> bool:
        limit = known.read_limit
        if fault == "credit-past-limit" and limit is not None and limit + known.credit < U64_MAX:
            self.write_packet("give", known, limit + 1, fault=found)
        elif fault == "limit-raised" and limit is not None:
            self.write_packet("stop-read", known, limit + 1, fault=found)
        elif fault == "credit-overflow" and limit is None and known.credit > 0:
            if known.use.incarnation > 1:  # credit of the previous use may have been forgone late
                return False
            self.write_packet("give", known, U64_MAX, fault=found)
        elif fault == "promise-past-limit" and limit is not None:
            self.write_packet("promise-read", known, limit + 1, fault=found)
        elif fault == "varint-noncanonical" and limit is None and known.credit < 100:
            data = encode_header(0, known.use.stream_id) + b"\xf8\x05"
            self.write_frame("give", data, known.use, 6, fault=found)
        else:
            return False
        return True

    def inject_off_stream(self, fault: str, rule: str) -> bool:
        if fault == "varint-overflow":
            amount = self.rng.random() < 0.5  # an amount of 2^64, or a stream id past 2^64-1
            data = b"\x00" + b"\xff" * 9 if amount else b"\x3f" + b"\xff" * 9 + b"\0"
            self.write_frame("bad", data, fault=Fault(rule, loses_framing=True))
            return True
        if not self.model.assigns_streams:
            return False
        lost = self.is_writer(UNASSIGNED_ID)
        use = IdUse(self.model.writer_of(UNASSIGNED_ID), UNASSIGNED_ID)
        data = encode_header(0, UNASSIGNED_ID) + b"\0" + b"x" * lost
        self.write_frame("bad", data, use, fault=Fault(rule, loses_framing=lost))
        return True


class MinmuxModel(ProtocolModel):
    name = "minmux"
    survivable_faults = frozenset(
        {"limit-raised", "promise-past-limit", "forgo-exceeds-credit", "endless-stream-stopped"}
    )
    missing_reply_rules = frozenset({"minmux.last-item-missing"})
    faults = (
        "forgo-exceeds-credit", "credit-exceeded", "write-past-limit", "credit-past-limit",
        "limit-raised", "endless-stream-stopped", "credit-overflow", "varint-noncanonical",
        "varint-overflow", "unassigned-stream", "bad-item", "item-too-long", "promise-past-limit",
        "last-item-missing", "truncated",
    )  # fmt: skip

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.assigns_streams = rng.random() < 0.6
        self.reuse = self.assigns_streams and rng.random() < 0.5
        forms: list[int | str] = [1, 1, 4, PREFIXED, 0]
        lasts: list[int | str] = [UNIT, UNIT, 3, PREFIXED, NEVER]
        self.ids = rng.sample(STREAM_IDS, rng.randrange(1, 6))
        self.item_sizes: dict[int, ItemSizes] = {
            number: (rng.choice(forms), rng.choice(lasts)) if self.assigns_streams else (1, UNIT)
            for number in self.ids
        }
        self.uses: dict[tuple[int, int], IdUse] = {}
        self.minmux_peers = [MinmuxPeer(side, rng, self) for side in (0, 1)]
        self.peers = list(self.minmux_peers)

    def observer_protocol(self, vantage: int) -> Protocol:
        if not self.assigns_streams:
            return super().observer_protocol(vantage)
        streams = {
            str(n): {"item": item, "last": last} for n, (item, last) in self.item_sizes.items()
        }
        profile = parse_profile({"reuse": self.reuse, "stream": streams})
        return Observed(Limits(), vantage, profile)

    def writer_of(self, stream_id: int) -> int:
        return 1 - (stream_id & 1)

    def id_use(self, stream_id: int, incarnation: int) -> IdUse:
        key = (stream_id, incarnation)
        if key not in self.uses:
            self.uses[key] = IdUse(self.writer_of(stream_id), stream_id, incarnation)
        return self.uses[key]

    def is_certain(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> bool:
        use = faulty_frame.use
        return super().is_certain(faulty_frame, passed) and (use is None or use.incarnation == 1)

    def expected_streams(self, passed: list[ModelFrame]) -> dict[str, ExpectedStream]:
        found: dict[str, ExpectedStream] = {}
        newest: dict[int, IdUse] = {}
        halves: dict[IdUse, KnownUse] = {}
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            first = newest.setdefault(use.stream_id, use)
            if use.incarnation > first.incarnation:
                newest[use.stream_id] = use
            truth = found.setdefault(use.label, ExpectedStream(granted=[None, None]))
            truth.count_frame(packet)
            half = halves.setdefault(use, KnownUse(use))
            if newest[use.stream_id] is not use:  # late: looks like a packet of the newest use
                truth.is_certain = found[newest[use.stream_id].label].is_certain = False
                continue
            writer = use.opener
            truth.granted[writer] = truth.granted[writer] or 0
            if packet.verb == "give":
                truth.granted[writer] = (truth.granted[writer] or 0) + packet.amount
            truth.payload[packet.sender] += packet.payload_size
            self.minmux_peers[0].apply_packet(half, packet)
            shape = self.item_sizes[use.stream_id]
            if half.finished(shape):
                truth.ending = "clean"
            elif half.read_limit == 0:
                truth.ending = "half-closed"
        return found
