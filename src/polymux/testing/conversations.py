"""Compare the reports of an observer with model conversations whose course is known.

`honest_conversations` and `faulty_conversations` run the models of one protocol, one conversation
per seed, and count the results. For honest peers, no violation may be reported, and every stream
must be reported with its true ending, bytes and credit. For an injected fault, exactly that fault
must be reported, with its rule, side, stream and frame. The seed selects one of three vantage
points; a fault that only an observer at its sender can be certain of is observed there.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from polymux.core.frames import VIOLATION_ROW
from polymux.core.observer import Observer
from polymux.core.rules import Severity, Violation
from polymux.core.side import Vantage
from polymux.core.streams import ID_MODULUS, StreamState
from polymux.testing.models.base import (
    VANTAGE_NAMES,
    Fault,
    ModelConversation,
    ModelFrame,
    ProtocolModel,
)
from polymux.testing.models.minmux import MinmuxModel
from polymux.testing.models.mplex import MplexModel
from polymux.testing.models.nerdbank import NerdbankModel
from polymux.testing.models.omnistreams import OmnistreamsModel
from polymux.testing.models.streamux import StreamuxModel
from polymux.testing.models.yamux import YamuxModel

MODELS: dict[str, type[ProtocolModel]] = {
    "nerdbank": NerdbankModel,
    "omnistreams": OmnistreamsModel,
    "streamux": StreamuxModel,
    "mplex": MplexModel,
    "minmux": MinmuxModel,
    "yamux": YamuxModel,
}
MAX_ATTEMPTS = 40  # conversations tried until the fault could be injected
SEED_STRIDE = 1_000_000  # between the seeds of two attempts


@dataclass
class Observation:
    """What an observer at one vantage point reported."""

    vantage: str
    violations: list[Violation]
    streams: dict[str, StreamState]
    observer: Observer


def observe(
    conversation: ModelConversation, vantage: str, cut: tuple[int, int] = (0, 0)
) -> Observation:
    """Feed an observer the bytes seen at a vantage point, except the last `cut` of each side."""
    seen = conversation.traces[vantage]
    observer = Observer(conversation.model.observer_protocol(Vantage[vantage.upper()]))
    left = [seen.bytes_seen[side] - cut[side] for side in (0, 1)]
    timestamp = 0
    for side, data in seen.chunks:
        timestamp += 1000
        data = data[: left[side]]
        left[side] -= len(data)
        if data:
            observer.feed(side, data, timestamp)
    observer.finish(timestamp + 1000, True, True)
    violations = observer.take_violations()
    streams = {
        s.label(): s for s in [*observer.protocol.streams.all(), *observer.take_removed_streams()]
    }
    return Observation(vantage, violations, streams, observer)


@dataclass
class Tally:
    """Counts over many conversations. Lines in `wrong` and `missed` name the seed."""

    conversations: int = 0
    found: int = 0  # injected faults that were reported correctly
    frames: int = 0
    rules: Counter[str] = field(default_factory=Counter)  # injected faults by rule
    wrong: list[str] = field(default_factory=list)  # false violations and wrong figures
    missed: list[str] = field(default_factory=list)  # injected faults not reported


def honest_conversations(protocol: str, seeds: Iterable[int]) -> Tally:
    """Run conversations of honest peers, one per seed, and check what an observer reports.

    Args:
        protocol: a key of `MODELS`.
        seeds: each makes one conversation.
    """
    tally = Tally()
    for seed in seeds:
        conversation = ModelConversation(MODELS[protocol], seed)
        tally.conversations += 1
        tally.frames += sum(peer.frame_count for peer in conversation.peers)
        problem = check_honest(conversation, seed)
        if problem is not None:
            tally.wrong.append(problem)
    return tally


def faulty_conversations(protocol: str, seeds: Iterable[int]) -> Tally:
    """Do as `honest_conversations`, with one fault injected into each; the seed selects it."""
    tally = Tally()
    for seed in seeds:
        conversation, injected, attempt = faulty_conversation(protocol, seed)
        tally.conversations += 1
        tally.frames += sum(peer.frame_count for peer in conversation.peers)
        tally.rules[injected.fault.rule] += 1
        missed, others = check_faulty(conversation, injected, seed, attempt)
        tally.found += missed is None
        if missed is not None:
            tally.missed.append(missed)
        if others is not None:
            tally.wrong.append(others)
    return tally


def check_honest(conversation: ModelConversation, seed: int) -> str | None:
    """Return what is wrong with the report on an honest conversation, or None."""
    vantage = VANTAGE_NAMES[seed % len(VANTAGE_NAMES)]
    observation = observe(conversation, vantage)
    where = f"{conversation.model.protocol_string}, honest, seed {seed}, {vantage}"
    for violation in observation.violations:
        noted = (
            violation.rule.severity is Severity.NOTE
            and violation.rule.name in conversation.model.honest_notes
        )
        if not noted:
            return f"{where}: {violation}"
    return check_frames(conversation, observation, where) or check_streams(
        conversation, observation, where
    )


def check_frames(
    conversation: ModelConversation, observation: Observation, where: str
) -> str | None:
    """Check that every frame has a row with its size and stream, and no violation."""
    sent = {
        (packet.sender, packet.index): packet
        for wire in conversation.directions
        for packet in wire.frames
        if packet.index >= 0
    }
    assert observation.observer.rows is not None  # `observe` makes observers that write rows
    rows = [(batch, i) for batch in observation.observer.rows.take() for i in range(batch.used)]
    if len(rows) != len(sent):
        return f"{where}: {len(rows)} frames are reported, and {len(sent)} were sent"
    for batch, i in rows:
        key = (int(batch.sender[i]), int(batch.frame_index[i]))
        packet = sent[key]
        reported = (int(batch.size[i]), int(batch.opener[i]), batch.stream_id[i] % ID_MODULUS)
        true = (len(packet.data), 255, reported[2])
        if packet.use is not None:
            true = (len(packet.data), packet.use.opener, packet.use.stream_id)
        if reported != true or batch.verdict[i] == VIOLATION_ROW:
            return f"{where}: frame {key} is reported as {reported}, and is {true}"
    return None


def check_streams(
    conversation: ModelConversation, observation: Observation, where: str
) -> str | None:
    """Check ending, bytes, credit and frame counts of every stream that is certain."""
    truths = conversation.model.expected_streams(
        conversation.traces[observation.vantage].passed_frames
    )
    peaks = conversation.model.expected_peaks(
        conversation.traces[observation.vantage].completed_frames
    )
    if set(truths) != set(observation.streams):
        return f"{where}: streams {sorted(set(truths) ^ set(observation.streams))} differ"
    for label, truth in truths.items():
        if not truth.is_certain:
            continue
        stream = observation.streams[label]
        halves = (stream.dialer, stream.acceptor)
        reported: dict[str, object] = {
            "ending": observation.observer.protocol.ending(stream),
            "reset_by": stream.reset_by,
            "payload": [half.content_bytes for half in halves],
            "granted": [
                None if known is None else half.credit_granted
                for known, half in zip(truth.granted, halves, strict=True)
            ],
            "peak": [half.peak_in_flight for half in halves],
            "frames": [half.frames for half in halves],
        }
        for what, figure in reported.items():
            true = peaks.get(label) if what == "peak" else getattr(truth, what)
            if true is not None and figure != true:
                return f"{where}: {what} of {label} is reported as {figure}, and is {true}"
    return None


@dataclass
class InjectedFault:
    """A fault, the frame with it, and the bytes missing at the end of each side."""

    frame: ModelFrame
    fault: Fault
    missing_bytes: tuple[int, int] = (0, 0)


def faulty_conversation(protocol: str, seed: int) -> tuple[ModelConversation, InjectedFault, int]:
    """Return a conversation with a fault, the fault, and the number of failed attempts.

    A fault that cannot be injected is replaced by the next one.
    """
    make = MODELS[protocol]
    faults = make.faults
    for attempt in range(MAX_ATTEMPTS):
        fault = faults[(seed + attempt) % len(faults)]
        truncated = fault == "truncated"
        conversation = ModelConversation(
            make, seed + SEED_STRIDE * (attempt + 1), "" if truncated else fault
        )
        injected = (
            truncate_last_frame(conversation, protocol)
            if truncated
            else injected_fault(conversation)
        )
        if injected is not None:
            return conversation, injected, attempt
    raise AssertionError(f"{protocol}, faulty, seed {seed}: no fault could be injected")


def injected_fault(conversation: ModelConversation) -> InjectedFault | None:
    packet = conversation.faulty_frame
    return None if packet is None or packet.fault is None else InjectedFault(packet, packet.fault)


def truncate_last_frame(conversation: ModelConversation, protocol: str) -> InjectedFault | None:
    """Cut the connection inside the last frame of a side, if the other side has not read it."""
    side = conversation.rng.randrange(2)
    packets = conversation.directions[side].frames
    packet = packets[-1] if packets else None
    if packet is None or len(packet.data) < 2 or packet.index < 0:
        return None
    if packet.verb in conversation.model.reply_verbs:
        return None
    if any(
        other.peer_frames_read > packet.index for other in conversation.directions[1 - side].frames
    ):
        return None
    missing = conversation.rng.randrange(1, len(packet.data))
    label = ""
    if (
        missing <= packet.payload_size
        and packet.use is not None
        and not conversation.model.messages
    ):
        label = packet.use.label
    fault = Fault(f"{protocol}.truncated", label)
    return InjectedFault(packet, fault, (missing, 0) if side == 0 else (0, missing))


def check_faulty(
    conversation: ModelConversation, injected: InjectedFault, seed: int, attempt: int
) -> tuple[str | None, str | None]:
    """Return a message if the fault was missed, and one if anything else was reported."""
    packet, fault, model = injected.frame, injected.fault, conversation.model
    vantage = VANTAGE_NAMES[seed % len(VANTAGE_NAMES)]
    passed = conversation.traces[vantage].passed_frames
    uncertain = (
        packet in passed
        and injected.missing_bytes == (0, 0)
        and not model.is_certain(packet, passed)
    )
    if fault.needs_sender_vantage or uncertain:
        vantage = VANTAGE_NAMES[packet.sender]
    packet = model.frame_to_report(packet, conversation.traces[vantage].passed_frames)
    index = (
        packet.index
        if packet.verb != "omitted"
        else conversation.peers[packet.sender].frame_count - 1
    )
    observation = observe(conversation, vantage, injected.missing_bytes)
    expected_notes = model.honest_notes | (model.missing_reply_rules - {fault.rule})
    reported = [v for v in observation.violations if v.rule.name not in expected_notes]
    expected = (fault.rule, packet.sender, fault.stream, index)
    found = [v for v in reported if (v.rule.name, v.sender, v.stream, v.frame_index) == expected]
    others = [str(v) for v in reported if v not in found[:1]]
    where = f"{model.protocol_string}, {fault.rule}, seed {seed} ({attempt}), {vantage}"
    missed = None if found else f"{where}: missed, expected {expected}; reported {others}"
    return missed, f"{where}: also reported {others}" if found and others else None
