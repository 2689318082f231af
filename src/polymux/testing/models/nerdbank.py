"""Model peers of Nerdbank MultiplexingStream: offers, windows, half-closes, terminations."""

from random import Random

from polymux.testing.models.base import (
    ExpectedStream,
    Fault,
    IdUse,
    ModelFrame,
    ModelPeer,
    ProtocolModel,
)
from polymux.testing.models.nerdbank_faults import FAULTS, inject_fault
from polymux.testing.models.nerdbank_wire import (
    CODES,
    encode_frame,
    encode_handshake,
    encode_payload,
)

SEEDED = 2  # `IdUse.opener` of a channel that both sides were configured with


class Channel:
    """What one peer knows of a channel. `send_window` is in bytes; -1: unlimited."""

    def __init__(self, use: IdUse, offered_by_self: bool) -> None:
        self.use = use
        self.offered_by_self = offered_by_self
        self.accepted = use.opener == SEEDED
        self.completed = False
        self.peer_completed = False
        self.terminated = False
        self.peer_terminated = False
        self.send_window = 0
        self.receive_window = 0  # as announced by this peer
        self.unprocessed = 0  # bytes read and not acknowledged
        self.growth_requested = False
        self.stopped_reading = False
        self.peer_stopped_reading = False

    @property
    def is_terminated(self) -> bool:
        return self.terminated or self.peer_terminated


class NerdbankPeer(ModelPeer):
    def __init__(self, side: int, rng: Random, model: "NerdbankModel") -> None:
        super().__init__(side, rng)
        self.model = model
        self.version = model.version
        self.random = rng.randbytes(16)
        self.handshake = encode_handshake(self.version, self.random) if self.version < 3 else b""
        self.handshake_fault: Fault | None = None
        self.next_id = len(model.seeded_windows) + 1  # v3; in v1 and v2 set by the handshakes
        self.ready = self.version == 3
        self.channels: dict[tuple[int, int], Channel] = {}
        for number, window in enumerate(model.seeded_windows):
            channel = Channel(model.seeded_uses[number], False)
            channel.send_window = channel.receive_window = window
            self.channels[SEEDED, number] = channel
        self.growth_requests: list[Channel] = []  # not yet answered

    def start(self) -> None:
        if self.version < 3:
            self.write_frame("hello", self.handshake, fault=self.handshake_fault)

    # Sending

    def source(self, use: IdUse) -> int:
        return 0 if use.opener == SEEDED else 1 if use.opener == self.side else -1

    def send_frame(
        self, verb: str, use: IdUse, amount: int = 0, text: bytes = b"", fault: Fault | None = None
    ) -> ModelFrame:
        payload = text if verb == "content" else encode_payload(self.version, verb, amount, text)
        data = encode_frame(
            self.version, CODES[verb], use.stream_id, self.source(use), payload, self.rng
        )
        size = len(text) if verb == "content" else 0
        return self.write_frame(verb, data, use, amount, size, fault=fault)

    # Legal behaviour

    def read(self, packet: ModelFrame) -> None:
        if packet.verb == "hello":
            self.ready = True
            if self.version < 3:
                self.next_id = (
                    1 if self.random > self.model.nerdbank_peers[1 - self.side].random else 2
                )
            return
        use = packet.use
        assert use is not None
        if packet.verb == "offer":
            channel = self.channels[use.opener, use.stream_id] = Channel(use, False)
            channel.send_window = packet.amount if self.version > 1 else -1
            return
        channel = self.channels[use.opener, use.stream_id]
        if packet.verb == "terminate":
            channel.peer_terminated = True
        elif channel.peer_terminated:
            return
        elif packet.verb == "accept":
            channel.accepted = True
            channel.send_window = packet.amount if self.version > 1 else -1
        elif packet.verb == "content":
            channel.unprocessed += packet.payload_size
        elif packet.verb == "complete":
            channel.peer_completed = True
        elif packet.verb == "processed":
            channel.send_window += packet.amount
        elif packet.verb == "unread":
            channel.peer_stopped_reading = True
        elif packet.verb == "grow":
            self.growth_requests.append(channel)
        elif packet.verb == "adjust":
            channel.growth_requested = False
            channel.send_window += packet.amount  # the model's amount is the increase

    def live_channels(self) -> list[Channel]:
        return [
            channel
            for key, channel in self.channels.items()
            if not channel.is_terminated and key not in self.faulted_ids
        ]

    def act(self) -> None:
        if not self.ready:
            return
        live = self.live_channels()
        if len(live) < 5 and (not live or self.rng.random() < 0.2):
            self.offer()
            return
        if not live:
            return
        channel = self.rng.choice(live)
        what = self.rng.random()
        if not channel.accepted and not channel.offered_by_self:
            self.accept_or_reject(channel, what)
        elif what < 0.07:
            self.terminate(channel)
        elif what < 0.3 and channel.unprocessed > 0 and self.version > 1:
            self.acknowledge(channel)
        elif what < 0.45 and not channel.completed:
            self.complete(channel)
        elif what < 0.5 and self.version > 1 and not channel.stopped_reading:
            channel.stopped_reading = True
            self.send_frame("unread", channel.use)
        elif not channel.completed and not channel.peer_stopped_reading:
            self.send_content(channel)

    def offer(self) -> None:
        use = IdUse(self.side, self.next_id)
        self.next_id += 1 if self.version == 3 else 2
        channel = self.channels[self.side, use.stream_id] = Channel(use, True)
        channel.send_window = 0 if self.version > 1 else -1
        channel.receive_window = self.rng.choice([1, 50, 300, 102400])
        self.send_frame(
            "offer", use, channel.receive_window, self.rng.choice([b"", b"echo", b"logs"])
        )

    def accept_or_reject(self, channel: Channel, what: float) -> None:
        if what < 0.15:
            self.terminate(channel)
        elif what < 0.8:
            channel.accepted = True
            channel.receive_window = self.rng.choice([1, 20, 300, 102400])
            self.send_frame("accept", channel.use, channel.receive_window)

    def terminate(self, channel: Channel) -> None:
        channel.terminated = True
        text = self.rng.choice([b"", b"Error: gone"])
        self.send_frame("terminate", channel.use, 0, text)

    def acknowledge(self, channel: Channel) -> None:
        amount = self.rng.choice([channel.unprocessed, self.rng.randrange(channel.unprocessed) + 1])
        channel.unprocessed -= amount
        self.send_frame("processed", channel.use, amount)

    def complete(self, channel: Channel) -> None:
        channel.completed = True
        self.send_frame("complete", channel.use)

    def send_content(self, channel: Channel) -> None:
        size = self.rng.choice([1, 30, 200, 700])
        if channel.send_window >= 0:
            size = min(size, channel.send_window)
            if size == 0:
                if channel.accepted and self.version > 1 and not channel.growth_requested:
                    channel.growth_requested = True
                    self.send_frame("grow", channel.use)
                return
            channel.send_window -= size
        self.send_frame("content", channel.use, 0, self.rng.randbytes(size))

    def send_replies(self) -> None:
        """Send terminations, completions after reading-completed, and window adjustments."""
        for channel in self.growth_requests:
            if (
                not channel.is_terminated
                and (channel.use.opener, channel.use.stream_id) not in self.faulted_ids
            ):
                more = self.rng.choice([0, 0, 100])
                channel.receive_window += more
                data = encode_frame(
                    self.version,
                    CODES["adjust"],
                    channel.use.stream_id,
                    self.source(channel.use),
                    encode_payload(self.version, "adjust", channel.receive_window, b""),
                    self.rng,
                )
                self.write_frame("adjust", data, channel.use, more)
        self.growth_requests = []
        for key, channel in self.channels.items():
            if key in self.faulted_ids or channel.terminated:
                continue
            if channel.peer_terminated or (channel.completed and channel.peer_completed):
                self.terminate(channel)
            elif (
                channel.peer_stopped_reading
                and not channel.completed
                and (channel.accepted or channel.offered_by_self)
            ):
                self.complete(channel)

    def inject_fault(self, fault: str) -> bool:
        return self.ready and inject_fault(self, fault)


class NerdbankModel(ProtocolModel):
    name = "nerdbank"
    survivable_faults = frozenset(
        {
            "unknown-code",
            "completed-twice",
            "content-after-completed",
            "frame-after-termination",
            "terminated-twice",
            "bad-acceptance",
            "window-shrunk",
        }
    )
    faults = FAULTS
    missing_reply_rules = frozenset({"nerdbank.termination-unanswered", "nerdbank.not-terminated"})
    reply_verbs = frozenset({"terminate"})

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.version = rng.choice([1, 2, 3, 3])
        self.protocol_string = f"nerdbank:version={self.version}"
        self.seeded_windows: list[int] = []
        if self.version == 3 and rng.random() < 0.4:
            self.seeded_windows = [rng.choice([5, 500, 102400]) for _ in range(rng.randrange(1, 4))]
            self.protocol_string += f",seeded={'+'.join(map(str, self.seeded_windows))}"
        self.seeded_uses = [IdUse(SEEDED, number) for number in range(len(self.seeded_windows))]
        self.nerdbank_peers = [NerdbankPeer(side, rng, self) for side in (0, 1)]
        self.peers = list(self.nerdbank_peers)
        self.rng = rng

    def prepare_fault(self, fault: str) -> None:
        peer = self.rng.choice(self.nerdbank_peers)
        found = Fault(f"nerdbank.{fault}", loses_framing=True)
        if fault == "bad-magic" and self.version == 1:
            peer.handshake, peer.handshake_fault = b"\x2f\xdf\x1d\x51" + peer.random, found
        elif fault == "bad-handshake" and self.version == 2:
            peer.handshake, peer.handshake_fault = (
                b"\x92\x92\x02\x00\xc4\x0f" + peer.random[1:],
                found,
            )
        elif fault == "version-mismatch" and self.version == 2:
            peer.handshake, peer.handshake_fault = encode_handshake(2, peer.random, 3), found
        elif fault == "equal-randoms" and self.version < 3:
            peer.handshake = encode_handshake(
                self.version, self.nerdbank_peers[1 - peer.side].random
            )
            peer.handshake_fault = Fault(found.rule, loses_framing=True)

    def frame_to_report(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> ModelFrame:
        """Return the second of two equal handshakes; an opener must terminate its channel."""
        rule = faulty_frame.fault.rule if faulty_frame.fault is not None else ""
        if rule == "nerdbank.equal-randoms":
            return [packet for packet in passed if packet.verb == "hello"][1]
        if rule == "nerdbank.not-terminated" and faulty_frame.use is not None:
            faulty_frame.sender = faulty_frame.use.opener % SEEDED
        return faulty_frame

    def is_certain(self, faulty_frame: ModelFrame, passed: list[ModelFrame]) -> bool:
        rule = faulty_frame.fault.rule.partition(".")[2] if faulty_frame.fault is not None else ""
        return rule in ALWAYS_CERTAIN or super().is_certain(faulty_frame, passed)

    def expected_peaks(self, completed: list[ModelFrame]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        pending: dict[tuple[IdUse, int], int] = {}
        for packet in completed:
            use, side = packet.use, packet.sender
            if use is None or self.version == 1:
                continue
            peak = found.setdefault(use.label, [0, 0])
            if packet.verb == "processed":
                pending[use, 1 - side] -= packet.amount
            elif packet.verb == "content":
                pending[use, side] = pending.get((use, side), 0) + packet.payload_size
                peak[side] = max(peak[side], pending[use, side])
        return found

    def expected_streams(self, passed: list[ModelFrame]) -> dict[str, ExpectedStream]:
        found: dict[str, ExpectedStream] = {}
        done: dict[IdUse, set[int]] = {}
        accepted = set(self.seeded_uses)
        for packet in passed:
            use = packet.use
            if use is None or packet.fault is not None:
                continue
            if use.label not in found:
                found[use.label] = ExpectedStream(
                    "open" if use.opener == SEEDED else "never-accepted"
                )
                if self.version > 1:
                    start: int | None = (
                        self.seeded_windows[use.stream_id] if use.opener == SEEDED else 0
                    )
                    found[use.label].granted = [start, start]
            truth, ends = found[use.label], done.setdefault(use, set())
            side, other = packet.sender, 1 - packet.sender
            truth.count_frame(packet)
            if packet.verb == "accept":
                accepted.add(use)
            if packet.verb in ("offer", "accept") and self.version > 1:
                truth.granted[other] = packet.amount
            elif packet.verb in ("processed", "adjust"):
                truth.granted[other] = (truth.granted[other] or 0) + packet.amount
            elif packet.verb == "content":
                truth.payload[side] += packet.payload_size
            elif packet.verb == "complete":
                ends.add(side)
            elif packet.verb == "terminate" and truth.reset_by == -1:
                truth.reset_by = side
                if use not in accepted:
                    truth.ending = "cancelled" if use.opener == side else "rejected"
                else:
                    truth.ending = "clean" if len(ends) == 2 else "reset"
            if truth.reset_by == -1 and use in accepted:
                truth.ending = ("open", "half-closed", "clean")[len(ends)]
        return found


ALWAYS_CERTAIN = {
    "content-after-completed", "completed-twice", "frame-after-termination", "terminated-twice",
    "content-before-acceptance", "payload-too-long",
}  # fmt: skip
