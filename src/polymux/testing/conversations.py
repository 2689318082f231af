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
from polymux.core.streams import WORD, Stream
from polymux.testing.models.base import PLACES, Fault, Model, Packet, Talk
from polymux.testing.models.minmux import Minmux
from polymux.testing.models.mplex import Mplex
from polymux.testing.models.nerdbank import Nerdbank
from polymux.testing.models.omnistreams import Omnistreams
from polymux.testing.models.streamux import Streamux

MODELS: dict[str, type[Model]] = {
    "nerdbank": Nerdbank, "omnistreams": Omnistreams, "streamux": Streamux, "mplex": Mplex,
    "minmux": Minmux,
}  # fmt: skip
TRIES = 40  # conversations tried until a fault finds its moment
FAR = 1_000_000  # between the seeds of two tries


@dataclass
class Account:
    """What an observer made of a conversation at one place."""

    place: str
    violations: list[Violation]
    streams: dict[str, Stream]
    observer: Observer


def observed(talk: Talk, place: str, cut: tuple[int, int] = (0, 0)) -> Account:
    """Feed an observer what was seen at a place; `cut`: bytes missing at the end of each side."""
    seen = talk.places[place]
    observer = Observer(talk.model.observed(Vantage[place.upper()]))
    left = [seen.seen[side] - cut[side] for side in (0, 1)]
    at = 0
    for side, data in seen.chunks:
        at += 1000
        data = data[: left[side]]
        left[side] -= len(data)
        if data:
            observer.feed(side, data, at)
    observer.finish(at + 1000, True, True)
    found = observer.take_violations()
    streams = {s.label(): s for s in [*observer.protocol.streams.all(), *observer.take_gone()]}
    return Account(place, found, streams, observer)


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
        talk = Talk(MODELS[protocol], seed)
        tally.conversations += 1
        tally.frames += sum(peer.count for peer in talk.peers)
        problem = judge_honest(talk, seed)
        if problem is not None:
            tally.wrong.append(problem)
    return tally


def faulty_conversations(protocol: str, seeds: Iterable[int]) -> Tally:
    """As `honest_conversations`, with one fault planted in each; the faults take turns."""
    tally = Tally()
    for seed in seeds:
        talk, planted, attempt = planted_talk(protocol, seed)
        tally.conversations += 1
        tally.frames += sum(peer.count for peer in talk.peers)
        tally.rules[planted.fault.rule] += 1
        missed, others = judge_faulty(talk, planted, seed, attempt)
        tally.found += missed is None
        if missed is not None:
            tally.missed.append(missed)
        if others is not None:
            tally.wrong.append(others)
    return tally


def judge_honest(talk: Talk, seed: int) -> str | None:
    """What is wrong with the account of an honest conversation, seen from the seed's place."""
    place = PLACES[seed % len(PLACES)]
    account = observed(talk, place)
    where = f"{talk.model.text}, honest, seed {seed}, {place}"
    for violation in account.violations:
        noted = violation.rule.severity is Severity.NOTE and violation.rule.name in talk.model.notes
        if not noted:
            return f"{where}: {violation}"
    return wrong_frames(talk, account, where) or wrong_streams(talk, account, where)


def wrong_frames(talk: Talk, account: Account, where: str) -> str | None:
    """Every frame has its row, with its size and stream, and none is called a violation."""
    sent = {
        (packet.sender, packet.index): packet
        for wire in talk.wires for packet in wire.packets if packet.index >= 0
    }  # fmt: skip
    assert account.observer.rows is not None  # an observer that is made as here writes rows
    rows = [(batch, i) for batch in account.observer.rows.take() for i in range(batch.used)]
    if len(rows) != len(sent):
        return f"{where}: {len(rows)} frames are reported, and {len(sent)} were sent"
    for batch, i in rows:
        key = (int(batch.sender[i]), int(batch.ordinal[i]))
        packet = sent[key]
        said = (int(batch.size[i]), int(batch.opener[i]), batch.number[i] % WORD)
        true = (len(packet.data), 255, said[2])
        if packet.use is not None:
            true = (len(packet.data), packet.use.opener, packet.use.number)
        if said != true or batch.verdict[i] == VIOLATION_ROW:
            return f"{where}: frame {key} is reported as {said}, and is {true}"
    return None


def wrong_streams(talk: Talk, account: Account, where: str) -> str | None:
    truths = talk.model.truths(talk.places[account.place].passed)
    peaks = talk.model.peaks(talk.places[account.place].whole)
    if set(truths) != set(account.streams):
        return f"{where}: streams {sorted(set(truths) ^ set(account.streams))} differ"
    for label, truth in truths.items():
        if not truth.sure:
            continue
        stream = account.streams[label]
        halves = (stream.dialer, stream.acceptor)
        said: dict[str, object] = {
            "ending": account.observer.protocol.ending(stream),
            "reset_by": stream.reset_by,
            "payload": [half.octets for half in halves],
            "granted": [
                None if known is None else half.granted
                for known, half in zip(truth.granted, halves, strict=True)
            ],
            "peak": [half.peak for half in halves],
            "frames": [half.frames for half in halves],
        }
        for what, figure in said.items():
            true = peaks.get(label) if what == "peak" else getattr(truth, what)
            if true is not None and figure != true:
                return f"{where}: {what} of {label} is reported as {figure}, and is {true}"
    return None


@dataclass
class Planted:
    """A fault, the frame that has it, and how many bytes of each side a capture lacks."""

    packet: Packet
    fault: Fault
    cut: tuple[int, int] = (0, 0)


def planted_talk(protocol: str, seed: int) -> tuple[Talk, Planted, int]:
    """A conversation with a fault in it; the seed's fault, or one of those that follow it."""
    make = MODELS[protocol]
    faults = make.faults
    for attempt in range(TRIES):
        fault = faults[(seed + attempt) % len(faults)]
        cutting = fault == "truncated"
        talk = Talk(make, seed + FAR * (attempt + 1), "" if cutting else fault)
        planted = cut_short(talk, protocol) if cutting else committed(talk)
        if planted is not None:
            return talk, planted, attempt
    raise AssertionError(f"{protocol}, faulty, seed {seed}: no fault could be planted")


def committed(talk: Talk) -> Planted | None:
    packet = talk.planted
    return None if packet is None or packet.fault is None else Planted(packet, packet.fault)


def cut_short(talk: Talk, protocol: str) -> Planted | None:
    """The connection ends inside the last frame of a side, which the other side never knew of."""
    side = talk.rng.randrange(2)
    packets = talk.wires[side].packets
    packet = packets[-1] if packets else None
    if packet is None or len(packet.data) < 2 or packet.index < 0:
        return None
    if packet.verb in talk.model.answers:
        return None
    if any(other.known > packet.index for other in talk.wires[1 - side].packets):
        return None
    missing = talk.rng.randrange(1, len(packet.data))
    label = ""
    if missing <= packet.payload and packet.use is not None and not talk.model.messages:
        label = packet.use.label
    fault = Fault(f"{protocol}.truncated", label)
    return Planted(packet, fault, (missing, 0) if side == 0 else (0, missing))


def judge_faulty(
    talk: Talk, planted: Planted, seed: int, attempt: int
) -> tuple[str | None, str | None]:
    """What is said if the fault was missed, and what was reported besides."""
    packet, fault, model = planted.packet, planted.fault, talk.model
    place = PLACES[seed % len(PLACES)]
    passed = talk.places[place].passed
    unsure = packet in passed and planted.cut == (0, 0) and not model.certain(packet, passed)
    if fault.beside or unsure:
        place = PLACES[packet.sender]
    packet = model.blamed(packet, talk.places[place].passed)
    index = packet.index if packet.verb != "omitted" else talk.peers[packet.sender].count - 1
    account = observed(talk, place, planted.cut)
    usual = model.notes | (model.debts - {fault.rule})
    said = [v for v in account.violations if v.rule.name not in usual]
    wanted = (fault.rule, packet.sender, fault.stream, index)
    found = [v for v in said if (v.rule.name, v.sender, v.stream, v.ordinal) == wanted]
    others = [str(v) for v in said if v not in found[:1]]
    where = f"{model.text}, {fault.rule}, seed {seed} ({attempt}), {place}"
    missed = None if found else f"{where}: missed, wanted {wanted}; reported {others}"
    return missed, f"{where}: also reported {others}" if found and others else None
