"""What an observer reports, compared with the truth of simulated conversations.

`honest_conversations` and `faulty_conversations` run the models of one protocol, a conversation a
seed, and count. Of honest peers nothing may be reported, and every stream must have ended as it
did, with its bytes and its credit. Of a planted fault exactly that fault must be reported, with its
rule, side, stream and frame, and nothing else. Each conversation is seen from one of three places,
by its seed; a fault that only the place beside its sender can be sure of is seen from there.
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

MODELS: dict[str, type[ProtocolModel]] = {
    "nerdbank": NerdbankModel,
    "omnistreams": OmnistreamsModel,
    "streamux": StreamuxModel,
    "mplex": MplexModel,
    "minmux": MinmuxModel,
}
MAX_ATTEMPTS = 40  # conversations tried until a fault finds its moment
SEED_STRIDE = 1_000_000  # between the seeds of two tries


@dataclass
class Observation:
    """What an observer made of a conversation at one place."""

    vantage: str
    violations: list[Violation]
    streams: dict[str, StreamState]
    observer: Observer


def observe(
    conversation: ModelConversation, vantage: str, cut: tuple[int, int] = (0, 0)
) -> Observation:
    """Feed an observer what was seen at a place; `cut`: bytes missing at the end of each side."""
    seen = conversation.traces[vantage]
    observer = Observer(conversation.model.observer_protocol(Vantage[vantage.upper()]))
    left = [seen.bytes_seen[side] - cut[side] for side in (0, 1)]
    at = 0
    for side, data in seen.chunks:
        at += 1000
        data = data[: left[side]]
        left[side] -= len(data)
        if data:
            observer.feed(side, data, at)
    observer.finish(at + 1000, True, True)
    found = observer.take_violations()
    streams = {
        s.label(): s for s in [*observer.protocol.streams.all(), *observer.take_removed_streams()]
    }
    return Observation(vantage, found, streams, observer)


@dataclass
class Tally:
    """Counts over many conversations; `wrong` has a line with its seed for each that went wrong."""

    conversations: int = 0
    found: int = 0  # planted faults that were reported as planted
    frames: int = 0
    rules: Counter[str] = field(default_factory=Counter)  # planted faults by rule
    wrong: list[str] = field(default_factory=list)  # false reports and wrong accounts
    missed: list[str] = field(default_factory=list)


def honest_conversations(protocol: str, seeds: Iterable[int]) -> Tally:
    """Honest peers of `protocol` (a key of `MODELS`), a conversation for each seed."""
    tally = Tally()
    for seed in seeds:
        talk = ModelConversation(MODELS[protocol], seed)
        tally.conversations += 1
        tally.frames += sum(peer.frame_count for peer in talk.peers)
        problem = check_honest(talk, seed)
        if problem is not None:
            tally.wrong.append(problem)
    return tally


def faulty_conversations(protocol: str, seeds: Iterable[int]) -> Tally:
    """As `honest_conversations`, with one fault planted in each; the faults take turns."""
    tally = Tally()
    for seed in seeds:
        talk, planted, attempt = faulty_conversation(protocol, seed)
        tally.conversations += 1
        tally.frames += sum(peer.frame_count for peer in talk.peers)
        tally.rules[planted.fault.rule] += 1
        missed, others = check_faulty(talk, planted, seed, attempt)
        tally.found += missed is None
        if missed is not None:
            tally.missed.append(missed)
        if others is not None:
            tally.wrong.append(others)
    return tally


def check_honest(conversation: ModelConversation, seed: int) -> str | None:
    """What is wrong with the account of an honest conversation, seen from the seed's place."""
    place = VANTAGE_NAMES[seed % len(VANTAGE_NAMES)]
    account = observe(conversation, place)
    where = f"{conversation.model.protocol_string}, honest, seed {seed}, {place}"
    for violation in account.violations:
        noted = (
            violation.rule.severity is Severity.NOTE
            and violation.rule.name in conversation.model.honest_notes
        )
        if not noted:
            return f"{where}: {violation}"
    return check_frames(conversation, account, where) or check_streams(conversation, account, where)


def check_frames(
    conversation: ModelConversation, observation: Observation, where: str
) -> str | None:
    """Every frame has its row, with its size and stream, and none is called a violation."""
    sent = {
        (packet.sender, packet.index): packet
        for wire in conversation.directions
        for packet in wire.frames
        if packet.index >= 0
    }
    assert observation.observer.rows is not None  # an observer that is made as here writes rows
    rows = [(batch, i) for batch in observation.observer.rows.take() for i in range(batch.used)]
    if len(rows) != len(sent):
        return f"{where}: {len(rows)} frames are reported, and {len(sent)} were sent"
    for batch, i in rows:
        key = (int(batch.sender[i]), int(batch.frame_index[i]))
        packet = sent[key]
        said = (int(batch.size[i]), int(batch.opener[i]), batch.stream_id[i] % ID_MODULUS)
        true = (len(packet.data), 255, said[2])
        if packet.use is not None:
            true = (len(packet.data), packet.use.opener, packet.use.stream_id)
        if said != true or batch.verdict[i] == VIOLATION_ROW:
            return f"{where}: frame {key} is reported as {said}, and is {true}"
    return None


def check_streams(
    conversation: ModelConversation, observation: Observation, where: str
) -> str | None:
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
        said: dict[str, object] = {
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
        for what, figure in said.items():
            true = peaks.get(label) if what == "peak" else getattr(truth, what)
            if true is not None and figure != true:
                return f"{where}: {what} of {label} is reported as {figure}, and is {true}"
    return None


@dataclass
class InjectedFault:
    """A fault, the frame that has it, and how many bytes of each side a capture lacks."""

    frame: ModelFrame
    fault: Fault
    missing_bytes: tuple[int, int] = (0, 0)


def faulty_conversation(protocol: str, seed: int) -> tuple[ModelConversation, InjectedFault, int]:
    """A conversation with a fault in it; the seed's fault, or one of those that follow it."""
    make = MODELS[protocol]
    faults = make.faults
    for attempt in range(MAX_ATTEMPTS):
        fault = faults[(seed + attempt) % len(faults)]
        cutting = fault == "truncated"
        talk = ModelConversation(make, seed + SEED_STRIDE * (attempt + 1), "" if cutting else fault)
        planted = truncate_last_frame(talk, protocol) if cutting else injected_fault(talk)
        if planted is not None:
            return talk, planted, attempt
    raise AssertionError(f"{protocol}, faulty, seed {seed}: no fault could be planted")


def injected_fault(conversation: ModelConversation) -> InjectedFault | None:
    packet = conversation.faulty_frame
    return None if packet is None or packet.fault is None else InjectedFault(packet, packet.fault)


def truncate_last_frame(conversation: ModelConversation, protocol: str) -> InjectedFault | None:
    """The connection ends inside the last frame of a side, which the other side never knew of."""
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
    """What is said if the fault was missed, and what was reported besides."""
    packet, fault, model = injected.frame, injected.fault, conversation.model
    place = VANTAGE_NAMES[seed % len(VANTAGE_NAMES)]
    passed = conversation.traces[place].passed_frames
    unsure = (
        packet in passed
        and injected.missing_bytes == (0, 0)
        and not model.is_certain(packet, passed)
    )
    if fault.needs_sender_vantage or unsure:
        place = VANTAGE_NAMES[packet.sender]
    packet = model.frame_to_report(packet, conversation.traces[place].passed_frames)
    index = (
        packet.index
        if packet.verb != "omitted"
        else conversation.peers[packet.sender].frame_count - 1
    )
    account = observe(conversation, place, injected.missing_bytes)
    usual = model.honest_notes | (model.missing_reply_rules - {fault.rule})
    said = [v for v in account.violations if v.rule.name not in usual]
    wanted = (fault.rule, packet.sender, fault.stream, index)
    found = [v for v in said if (v.rule.name, v.sender, v.stream, v.frame_index) == wanted]
    others = [str(v) for v in said if v not in found[:1]]
    where = f"{model.protocol_string}, {fault.rule}, seed {seed} ({attempt}), {place}"
    missed = None if found else f"{where}: missed, wanted {wanted}; reported {others}"
    return missed, f"{where}: also reported {others}" if found and others else None
