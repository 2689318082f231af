"""Model peers of mplex, with ids by parity, counted, or used again as npm's `multiplex` does."""

from collections.abc import Callable
from random import Random

from polymux.testing.models.base import Fault, Model, Packet, Peer, Truth, Use

OPEN, CLOSED, RESET = "open", "closed", "reset"


def number(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Talked:
    """What one peer knows of a stream: its own half, and the other's."""

    def __init__(self, use: Use) -> None:
        self.use = use
        self.own = OPEN
        self.other = OPEN
        self.closed = False  # was it closed by its own side, before a reset
        self.misled = False  # has a late frame of an earlier use hit it?

    @property
    def over(self) -> bool:
        return RESET in (self.own, self.other) or (self.own, self.other) == (CLOSED, CLOSED)


class MplexPeer(Peer):
    def __init__(self, side: int, rng: Random, ids: str) -> None:
        super().__init__(side, rng)
        self.ids = ids
        self.next = 1 - side if ids == "parity" else 0
        self.streams: dict[tuple[int, int], Talked] = {}  # by opener and id

    # --- frames

    def frame(
        self, flag: int, use: Use, body: bytes, verb: str, fault: Fault | None = None
    ) -> Packet:
        """A frame with the flag of its sender's part: `flag` is the opener's."""
        if flag and use.opener != self.side:
            flag -= 1
        data = number(use.number * 8 + flag) + number(len(body)) + body
        return self.write(verb, data, use, payload=len(body) if verb == "data" else 0, fault=fault)

    def body(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([0, 1, 1, 20, 127, 128, 300]))

    def fresh(self) -> int:
        if self.ids != "npm":
            self.next += 2 if self.ids == "parity" else 1
            return self.next - (2 if self.ids == "parity" else 1)
        found = 0
        while (self.side, found) in self.spoilt or (
            (self.side, found) in self.streams and not self.streams[self.side, found].over
        ):
            found += 1
        return found

    def open(self) -> None:
        own = self.fresh()
        before = self.streams.get((self.side, own))
        use = Use(self.side, own, before.use.incarnation + 1 if before else 1)
        self.streams[self.side, own] = Talked(use)
        name = self.rng.choice([b"", b"logs", b"i%d" % own])
        data = number(own * 8) + number(len(name)) + name
        self.write("open", data, use)

    # --- conduct

    def read(self, packet: Packet) -> None:
        use = packet.use
        assert use is not None
        key = (use.opener, use.number)
        if packet.verb == "open":
            self.streams[key] = Talked(use)
            return
        known = self.streams.get(key)  # by its id: a late frame hits the newest use
        if known is None or known.over:
            return
        if packet.verb != "data" and known.use is not use:
            known.misled = True
        if packet.verb == "close" and known.other == OPEN:
            known.other = CLOSED
        elif packet.verb == "reset":
            known.other = RESET

    def live(self) -> list[Talked]:
        return [
            talked for key, talked in self.streams.items()
            if not talked.over and key not in self.spoilt
        ]  # fmt: skip

    def act(self) -> None:
        live = self.live()
        if not live or (len(live) < 5 and self.rng.random() < 0.25):
            self.open()
            return
        talked = self.rng.choice(live)
        what = self.rng.random()
        if what < 0.12:
            talked.closed = talked.own == CLOSED
            talked.own = RESET
            text = b"broken" if self.ids == "npm" and self.rng.random() < 0.5 else b""
            self.frame(6, talked.use, text, "reset")
        elif talked.own == OPEN and what < 0.4:
            talked.own = CLOSED
            self.frame(4, talked.use, b"", "close")
        elif talked.own == OPEN:
            self.frame(2, talked.use, self.body(), "data")

    def answer(self) -> None:
        """npm answers a close with its own, mostly at once."""
        for talked in self.live():
            if self.ids == "npm" and talked.other == CLOSED and talked.own == OPEN:
                talked.own = CLOSED
                self.frame(4, talked.use, b"", "close")

    # --- faults

    def plant(self, fault: str) -> bool:
        rule = f"mplex.{fault}"
        streams = [t for key, t in self.streams.items() if key not in self.spoilt]
        if fault in ("bad-flag", "varint-too-long", "frame-too-long", "unknown-stream"):
            return self.plant_anywhere(fault, rule)
        if fault == "wrong-role-flag":
            return self.plant_role(rule, streams)
        tests: dict[str, Callable[[Talked], bool]] = {
            "id-reused": lambda t: not t.over and t.use.opener == self.side,
            "write-after-close": lambda t: t.own == CLOSED and t.other != RESET,
            "close-twice": lambda t: t.own == CLOSED and t.other != RESET,
            "write-after-reset": lambda t: t.own == RESET and not t.closed,
            "write-after-peer-reset": lambda t: t.other == RESET and t.own == OPEN,
            "close-with-payload": lambda t: t.own == OPEN and not t.over,
            "reset-after-close": lambda t: t.own == CLOSED and t.other == CLOSED,
            "varint-noncanonical": lambda t: t.own == OPEN and not t.over,
        }
        fitting = [talked for talked in streams if tests[fault](talked) and not talked.misled]
        if not fitting:
            return False
        use = self.rng.choice(fitting).use
        found = Fault(rule, use.label, beside=fault in ("write-after-peer-reset",
                                                        "reset-after-close"))  # fmt: skip
        if fault == "id-reused":
            again = Use(use.opener, use.number, use.incarnation + 1)
            found = Fault(rule, again.label)
            self.write("open", number(use.number * 8) + b"\0", again, fault=found)
        elif fault == "close-twice":
            self.frame(4, use, b"", "close", found)
        elif fault == "close-with-payload":
            self.frame(4, use, b"x", "close", found)
        elif fault == "reset-after-close":
            self.frame(6, use, b"", "reset", found)
        elif fault == "varint-noncanonical":
            flag = 2 if use.opener == self.side else 1
            self.write("data", number(use.number * 8 + flag) + b"\x81\0x", use, 0, 1, fault=found)
        else:
            self.frame(2, use, b"x" * self.rng.randrange(1, 40), "data", found)
        return True

    def plant_anywhere(self, fault: str, rule: str) -> bool:
        """Frames on no stream that is open."""
        if fault == "bad-flag":
            self.write("bad", number(5 * 8 + 7) + b"\0", fault=Fault(rule))
        elif fault == "varint-too-long":
            self.write("bad", b"\xff" * 12, fault=Fault(rule, lost=True))
        elif fault == "frame-too-long":
            if not (live := [t for t in self.live() if t.own == OPEN]):
                return False
            use = self.rng.choice(live).use
            flag = 2 if use.opener == self.side else 1
            body = bytes((1 << 20) + 1)
            self.write("data", number(use.number * 8 + flag) + number(len(body)) + body, use, 0,
                       len(body), fault=Fault(rule, use.label))  # fmt: skip
        else:
            flag = self.rng.choice([2, 4, 6])
            self.write("stray", number(70_001 * 8 + flag) + b"\0", fault=Fault(rule))
        return True

    def plant_role(self, rule: str, streams: list[Talked]) -> bool:
        """The flag of the other part, on an id that the other side has not opened as well."""
        for talked in streams:
            use = talked.use
            twin = (1 - use.opener, use.number)
            if talked.over or twin in self.streams or (self.ids != "parity"):
                continue
            flag = 1 if use.opener == self.side else 2
            self.write("stray", number(use.number * 8 + flag) + b"\x01x", use, fault=Fault(rule))
            return True
        return False


class Mplex(Model):
    name = "mplex"
    harmless = frozenset(
        {
            "write-after-close",
            "close-twice",
            "wrong-role-flag",
            "write-after-peer-reset",
            "write-after-reset",
            "reset-after-close",
        }
    )
    faults = (
        "write-after-close", "close-twice", "write-after-reset", "write-after-peer-reset",
        "id-reused", "unknown-stream", "wrong-role-flag", "close-with-payload", "bad-flag",
        "reset-after-close", "varint-noncanonical", "varint-too-long", "frame-too-long",
        "truncated",
    )  # fmt: skip
    notes = frozenset({"mplex.id-parity", "mplex.id-recycled", "mplex.reset-with-payload"})

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        ids = rng.choice(["parity", "counting", "npm", "npm"])
        self.peers = [MplexPeer(side, rng, ids) for side in (0, 1)]

    def certain(self, planted: Packet, passed: list[Packet]) -> bool:
        """Not if the frame may speak of an earlier use, or a stop of the peer's makes it legal."""
        use, fault = planted.use, planted.fault
        if use is None or fault is None:
            return True
        if planted.sender != use.opener and use.incarnation > 1:
            return False
        for packet in passed[: passed.index(planted)]:
            on = packet.use
            if on is None or (on.opener, on.number) != (use.opener, use.number):
                continue
            if packet.verb == "open" and on.incarnation > use.incarnation:
                return False
            stops = packet.verb in ("close", "reset") and packet.sender != planted.sender
            if stops and fault.rule in ("mplex.id-reused", "mplex.wrong-role-flag"):
                return False
        return True

    def truths(self, passed: list[Packet]) -> dict[str, Truth]:
        found: dict[str, Truth] = {}
        newest: dict[tuple[int, int], Use] = {}
        states: dict[Use, list[str]] = {}
        spoken: set[Use] = set()  # uses in which the side that did not open them has sent anything
        clear: dict[tuple[int, int], bool] = {}  # is no frame of an earlier use to be expected?
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            key = (use.opener, use.number)
            if packet.verb == "open":
                before = newest.get(key)
                if before is not None:
                    clear[key] = clear[key] and states[before][1 - use.opener] != OPEN
                    found[before.label].sure &= over(states[before])
                newest[key] = use
                states[use] = [OPEN, OPEN]
                found[use.label] = Truth(sure=clear.setdefault(key, True))
                found[use.label].count(packet)
                continue
            truth, state, side = found[use.label], states[use], packet.sender
            truth.count(packet)
            if side != use.opener and use not in spoken:
                spoken.add(use)
                if use.incarnation > 1 and packet.verb == "reset":  # or of the use before
                    clear[key] = truth.sure = False
            if newest[key] is not use:  # late: only its sender knows which use it means
                truth.sure = found[newest[key].label].sure = False
            elif packet.verb == "data":
                truth.payload[side] += packet.payload
            elif packet.verb == "close":
                if state[side] == OPEN:
                    state[side] = CLOSED
            elif not over(state) or RESET in state:
                state[side] = RESET
                if truth.reset_by == -1:
                    truth.reset_by = side
            truth.ending = ending(state)
        return found


def over(state: list[str]) -> bool:
    return RESET in state or state == [CLOSED, CLOSED]


def ending(state: list[str]) -> str:
    if RESET in state:
        return "reset"
    return {0: "open", 1: "half-closed", 2: "clean"}[state.count(CLOSED)]
