"""Model peers of mplex, with ids by parity, sequential, or reused as npm `multiplex` does."""

from collections.abc import Callable
from random import Random

from polymux.testing.models.base import (
    ExpectedStream,
    Fault,
    IdUse,
    ModelFrame,
    ModelPeer,
    ProtocolModel,
)

OPEN, CLOSED, RESET = "open", "closed", "reset"


def encode_uvarint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class KnownStream:
    """What one peer knows of a stream: the state of both halves."""

    def __init__(self, use: IdUse) -> None:
        self.use = use
        self.own = OPEN
        self.other = OPEN
        self.closed_before_reset = False  # by its own side
        self.hit_by_late_frame = False  # a frame of an earlier use was taken for this one

    @property
    def over(self) -> bool:
        return RESET in (self.own, self.other) or (self.own, self.other) == (CLOSED, CLOSED)


class MplexPeer(ModelPeer):
    def __init__(self, side: int, rng: Random, id_scheme: str) -> None:
        super().__init__(side, rng)
        self.id_scheme = id_scheme
        self.next_id = 1 - side if id_scheme == "parity" else 0
        self.streams: dict[tuple[int, int], KnownStream] = {}  # by opener and id

    # Sending

    def send_frame(
        self, flag: int, use: IdUse, body: bytes, verb: str, fault: Fault | None = None
    ) -> ModelFrame:
        """Send a frame. `flag` is the opener's flag; it is adapted to the role of this side."""
        if flag and use.opener != self.side:
            flag -= 1
        data = encode_uvarint(use.stream_id * 8 + flag) + encode_uvarint(len(body)) + body
        return self.write_frame(
            verb, data, use, payload_size=len(body) if verb == "data" else 0, fault=fault
        )

    def random_payload(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([0, 1, 1, 20, 127, 128, 300]))

    def allocate_id(self) -> int:
        if self.id_scheme != "npm":
            self.next_id += 2 if self.id_scheme == "parity" else 1
            return self.next_id - (2 if self.id_scheme == "parity" else 1)
        found = 0
        while (self.side, found) in self.faulted_ids or (
            (self.side, found) in self.streams and not self.streams[self.side, found].over
        ):
            found += 1
        return found

    def open_stream(self) -> None:
        own = self.allocate_id()
        before = self.streams.get((self.side, own))
        use = IdUse(self.side, own, before.use.incarnation + 1 if before else 1)
        self.streams[self.side, own] = KnownStream(use)
        name = self.rng.choice([b"", b"logs", b"i%d" % own])
        data = encode_uvarint(own * 8) + encode_uvarint(len(name)) + name
        self.write_frame("open", data, use)

    # Legal behaviour

    def read(self, packet: ModelFrame) -> None:
        use = packet.use
        assert use is not None
        key = (use.opener, use.stream_id)
        if packet.verb == "open":
            self.streams[key] = KnownStream(use)
            return
        known = self.streams.get(key)  # by id only: a late frame is taken for the newest use
        if known is None or known.over:
            return
        if packet.verb != "data" and known.use is not use:
            known.hit_by_late_frame = True
        if packet.verb == "close" and known.other == OPEN:
            known.other = CLOSED
        elif packet.verb == "reset":
            known.other = RESET

    def live_streams(self) -> list[KnownStream]:
        return [
            known for key, known in self.streams.items()
            if not known.over and key not in self.faulted_ids
        ]  # fmt: skip

    def act(self) -> None:
        live = self.live_streams()
        if not live or (len(live) < 5 and self.rng.random() < 0.25):
            self.open_stream()
            return
        known = self.rng.choice(live)
        what = self.rng.random()
        if what < 0.12:
            known.closed_before_reset = known.own == CLOSED
            known.own = RESET
            text = b"broken" if self.id_scheme == "npm" and self.rng.random() < 0.5 else b""
            self.send_frame(6, known.use, text, "reset")
        elif known.own == OPEN and what < 0.4:
            known.own = CLOSED
            self.send_frame(4, known.use, b"", "close")
        elif known.own == OPEN:
            self.send_frame(2, known.use, self.random_payload(), "data")

    def send_replies(self) -> None:
        """Answer closes with a close, as npm does."""
        for known in self.live_streams():
            if self.id_scheme == "npm" and known.other == CLOSED and known.own == OPEN:
                known.own = CLOSED
                self.send_frame(4, known.use, b"", "close")

    # Faults

    def inject_fault(self, fault: str) -> bool:
        rule = f"mplex.{fault}"
        streams = [t for key, t in self.streams.items() if key not in self.faulted_ids]
        if fault in ("bad-flag", "varint-too-long", "frame-too-long", "unknown-stream"):
            return self.inject_off_stream(fault, rule)
        if fault == "wrong-role-flag":
            return self.inject_wrong_role(rule, streams)
        tests: dict[str, Callable[[KnownStream], bool]] = {
            "id-reused": lambda t: not t.over and t.use.opener == self.side,
            "write-after-close": lambda t: t.own == CLOSED and t.other != RESET,
            "close-twice": lambda t: t.own == CLOSED and t.other != RESET,
            "write-after-reset": lambda t: t.own == RESET and not t.closed_before_reset,
            "write-after-peer-reset": lambda t: t.other == RESET and t.own == OPEN,
            "close-with-payload": lambda t: t.own == OPEN and not t.over,
            "reset-after-close": lambda t: t.own == CLOSED and t.other == CLOSED,
            "varint-noncanonical": lambda t: t.own == OPEN and not t.over,
        }
        fitting = [
            known for known in streams if tests[fault](known) and not known.hit_by_late_frame
        ]
        if not fitting:
            return False
        use = self.rng.choice(fitting).use
        found = Fault(
            rule,
            use.label,
            needs_sender_vantage=fault in ("write-after-peer-reset", "reset-after-close"),
        )
        if fault == "id-reused":
            again = IdUse(use.opener, use.stream_id, use.incarnation + 1)
            found = Fault(rule, again.label)
            self.write_frame("open", encode_uvarint(use.stream_id * 8) + b"\0", again, fault=found)
        elif fault == "close-twice":
            self.send_frame(4, use, b"", "close", found)
        elif fault == "close-with-payload":
            self.send_frame(4, use, b"x", "close", found)
        elif fault == "reset-after-close":
            self.send_frame(6, use, b"", "reset", found)
        elif fault == "varint-noncanonical":
            flag = 2 if use.opener == self.side else 1
            self.write_frame(
                "data",
                encode_uvarint(use.stream_id * 8 + flag) + b"\x81\0x",
                use,
                0,
                1,
                fault=found,
            )
        else:
            self.send_frame(2, use, b"x" * self.rng.randrange(1, 40), "data", found)
        return True

    def inject_off_stream(self, fault: str, rule: str) -> bool:
        """Inject a fault that needs no stream in a certain state."""
        if fault == "bad-flag":
            self.write_frame("bad", encode_uvarint(5 * 8 + 7) + b"\0", fault=Fault(rule))
        elif fault == "varint-too-long":
            self.write_frame("bad", b"\xff" * 12, fault=Fault(rule, loses_framing=True))
        elif fault == "frame-too-long":
            if not (live := [t for t in self.live_streams() if t.own == OPEN]):
                return False
            use = self.rng.choice(live).use
            flag = 2 if use.opener == self.side else 1
            body = bytes((1 << 20) + 1)
            self.write_frame(
                "data",
                encode_uvarint(use.stream_id * 8 + flag) + encode_uvarint(len(body)) + body,
                use,
                0,
                len(body),
                fault=Fault(rule, use.label),
            )
        else:
            flag = self.rng.choice([2, 4, 6])
            self.write_frame("stray", encode_uvarint(70_001 * 8 + flag) + b"\0", fault=Fault(rule))
        return True

    def inject_wrong_role(self, rule: str, streams: list[KnownStream]) -> bool:
        """Send the flag of the other role, on an id that the other side has not opened."""
        for known in streams:
            use = known.use
            twin = (1 - use.opener, use.stream_id)
            if known.over or twin in self.streams or (self.id_scheme != "parity"):
                continue
            flag = 1 if use.opener == self.side else 2
            self.write_frame(
                "stray", encode_uvarint(use.stream_id * 8 + flag) + b"\x01x", use, fault=Fault(rule)
            )
            return True
        return False


class MplexModel(ProtocolModel):
    name = "mplex"
    survivable_faults = frozenset(
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
    honest_notes = frozenset({"mplex.id-parity", "mplex.id-recycled", "mplex.reset-with-payload"})

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        ids = rng.choice(["parity", "counting", "npm", "npm"])
        self.peers = [MplexPeer(side, rng, ids) for side in (0, 1)]

    def is_certain(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> bool:
        """Not if the frame may belong to an earlier use, or a stop of the peer makes it legal."""
        use, fault = faulty_frame.use, faulty_frame.fault
        if use is None or fault is None:
            return True
        if faulty_frame.sender != use.opener and use.incarnation > 1:
            return False
        for packet in passed[: passed.index(faulty_frame)]:
            on = packet.use
            if on is None or (on.opener, on.stream_id) != (use.opener, use.stream_id):
                continue
            if packet.verb == "open" and on.incarnation > use.incarnation:
                return False
            stops = packet.verb in ("close", "reset") and packet.sender != faulty_frame.sender
            if stops and fault.rule in ("mplex.id-reused", "mplex.wrong-role-flag"):
                return False
        return True

    def expected_streams(self, passed: list[ModelFrame]) -> dict[str, ExpectedStream]:
        found: dict[str, ExpectedStream] = {}
        newest: dict[tuple[int, int], IdUse] = {}
        states: dict[IdUse, list[str]] = {}
        answered: set[IdUse] = set()  # uses in which the receiver has sent anything
        clear: dict[tuple[int, int], bool] = {}  # no frame of an earlier use can follow
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            key = (use.opener, use.stream_id)
            if packet.verb == "open":
                before = newest.get(key)
                if before is not None:
                    clear[key] = clear[key] and states[before][1 - use.opener] != OPEN
                    found[before.label].is_certain &= over(states[before])
                newest[key] = use
                states[use] = [OPEN, OPEN]
                found[use.label] = ExpectedStream(is_certain=clear.setdefault(key, True))
                found[use.label].count_frame(packet)
                continue
            truth, state, side = found[use.label], states[use], packet.sender
            truth.count_frame(packet)
            if side != use.opener and use not in answered:
                answered.add(use)
                if use.incarnation > 1 and packet.verb == "reset":  # may belong to the previous use
                    clear[key] = truth.is_certain = False
            if newest[key] is not use:  # late: only its sender knows which use it belongs to
                truth.is_certain = found[newest[key].label].is_certain = False
            elif packet.verb == "data":
                truth.payload[side] += packet.payload_size
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
