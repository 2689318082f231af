"""An observer's word against the truth of simulated conversations.

`honest(protocol, seed)` and `faulty(protocol, seed)` return what is wrong with the observer's
account of one conversation, or None. Of honest peers nothing may be said that is worse than a note,
and every use of a stream must have ended as it did; of a planted fault exactly that fault must be
said, with its side, stream and frame.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..core.observer import Observer
from ..core.rules import Severity, Violation
from ..core.side import Vantage
from ..core.streams import Stream
from .model import PLACES, Fault, Model, Packet, Talk
from .model_minmux import Minmux
from .model_mplex import Mplex
from .model_omnistreams import Omnistreams
from .model_streamux import Streamux

MODELS: dict[str, Callable[[Random], Model]] = {
    "mplex": Mplex, "streamux": Streamux, "minmux": Minmux, "omnistreams": Omnistreams,
}  # fmt: skip
TRIES = 40  # seeds tried until a fault finds its moment


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


def honest(protocol: str, seed: int) -> str | None:
    """What is wrong with the account of an honest conversation, seen from the seed's place."""
    talk = Talk(MODELS[protocol], seed)
    place = PLACES[seed % len(PLACES)]
    account = observed(talk, place)
    where = f"{talk.model.text}, honest, seed {seed}, {place}"
    for violation in account.violations:
        noted = violation.rule.severity is Severity.NOTE and violation.rule.name in talk.model.notes
        if not noted:
            return f"{where}: {violation}"
    return wrong_streams(talk, account, where)


def wrong_streams(talk: Talk, account: Account, where: str) -> str | None:
    truths = talk.model.truths(talk.places[account.place].passed)
    if set(truths) != set(account.streams):
        return f"{where}: streams {sorted(set(truths) ^ set(account.streams))} differ"
    for label, truth in truths.items():
        if not truth.sure:
            continue
        stream = account.streams[label]
        halves = (stream.dialer, stream.acceptor)
        reset_by = None if truth.reset_by is None else stream.reset_by
        said = (account.observer.protocol.ending(stream), reset_by,
                [half.octets for half in halves])  # fmt: skip
        true = (truth.ending, truth.reset_by, truth.payload)
        if said != true:
            return f"{where}: {label} is said to be {said}, and is {true}"
        granted = [
            None if known is None else half.granted
            for known, half in zip(truth.granted, halves, strict=True)
        ]
        if granted != truth.granted:
            return f"{where}: {label} is said to be granted {granted}, and is {truth.granted}"
    return None


def faulty(protocol: str, seed: int) -> tuple[str, bool, str | None]:
    """The rule of the planted fault, whether it was found, and what else was said."""
    make = MODELS[protocol]
    for attempt in range(TRIES):
        model_faults = make(Random(0)).faults
        fault = model_faults[(seed + attempt) % len(model_faults)]
        talk = Talk(make, seed + 1_000_000 * (attempt + 1), "" if fault == "truncated" else fault)
        planted = cut_short(talk, protocol) if fault == "truncated" else expected(talk)
        if planted is not None:
            break
    else:
        raise AssertionError(f"{protocol}, faulty, seed {seed}: no fault could be planted")
    packet, expects, cut = planted
    place = PLACES[seed % len(PLACES)]
    passed = talk.places[place].passed
    if expects.beside or (packet in passed and not talk.model.certain(packet, passed)):
        place = PLACES[packet.sender]
    packet = talk.model.blamed(packet, talk.places[place].passed)
    index = packet.index if packet.verb != "omitted" else talk.peers[packet.sender].count - 1
    account = observed(talk, place, cut)
    where = f"{talk.model.text}, {expects.rule}, seed {seed} ({attempt}), {place}"
    usual = talk.model.notes | (talk.model.debts - {expects.rule})
    said = [v for v in account.violations if v.rule.name not in usual]
    wanted = (expects.rule, packet.sender, expects.stream, index)
    found = [v for v in said if (v.rule.name, v.sender, v.stream, v.ordinal) == wanted]
    if len(found) == 1 and len(said) == 1:
        return expects.rule, True, None
    others = [str(v) for v in said if v not in found[:1]]
    return expects.rule, bool(found), f"{where}: wanted {wanted}, also said {others}"


def expected(talk: Talk) -> tuple[Packet, Fault, tuple[int, int]] | None:
    packet = talk.planted
    if packet is None or packet.fault is None:
        return None
    return packet, packet.fault, (0, 0)


def cut_short(talk: Talk, protocol: str) -> tuple[Packet, Fault, tuple[int, int]] | None:
    """The connection ends inside the last frame of a side."""
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
    if 0 < missing <= packet.payload and packet.use is not None and not talk.model.messages:
        label = packet.use.label
    fault = Fault(f"{protocol}.truncated", label)
    return packet, fault, (missing, 0) if side == 0 else (0, missing)
