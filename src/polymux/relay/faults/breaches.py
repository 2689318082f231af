"""Breaches: the frames by which each rule of a protocol is broken, for `illegal:RULE`.

They come from the cases of the conformance tester (`protocols/NAME/cases.py`), whose scripts name
the rules that they break, and for rules without such a case from `MORE_SCRIPTS`. A case has a
connection to itself; a breach happens on a connection that is in use. So where the script opens a
stream and speaks with the peer first, a relayed stream takes the place of that stream; all other
streams of the script get ids that are not in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Final

from polymux.conform.catalogue import applies, cases_of
from polymux.conform.notation.payload import FrameWords, parse_frame
from polymux.core.conformance import Case
from polymux.protocols.registry import create, parse_protocol
from polymux.relay.faults.rules import BadRule

OPENINGS: Final = ("OPENED", "ECHO", "BLOCKED", "CLOSED", "BUSY", "SOURCE")  # constants of cases
WAITS_FOR_END: Final = ("CloseReceiver", "ContentWritingCompleted", "*FIN*")
WAITS_FOR_ABORT: Final = ("ResetReceiver", "ChannelTerminated", "*RST*")


class Place(Enum):
    """On which connection and streams a breach happens."""

    HANDSHAKE = "instead of the handshake towards the upstream"
    FRESH = "on ids that are not in use, towards the side that did not open the stream"
    FAR = "on the stream, towards the side that did not open it"
    NEAR = "on the stream, towards the side that opened it"
    ARRIVAL = "the same, before the stream is accepted"


class Step(Enum):
    """A step of a breach that sends no frame of its own."""

    AWAIT_END = "wait until the peer has ended its half of the stream"
    AWAIT_ABORT = "wait until the peer has aborted the stream"
    MIRROR = "wait for the peer's handshake, and send it back"


@dataclass(frozen=True)
class Breach:
    """How a rule is broken.

    Attributes:
        rule: The name of the rule.
        place: Where it happens.
        steps: Frames, bytes that are no frame, and what to wait for.
        ends: The connection is ended after the last step.
    """

    rule: str
    place: Place
    steps: tuple[FrameWords | bytes | Step, ...]
    ends: bool = False


MORE_SCRIPTS: Final[dict[str, tuple[Place, str]]] = {
    "mplex.id-parity": (Place.FRESH, '> NewStream o1 "odd one out"'),
    "mplex.truncated": (Place.FRESH, "> hex 0a\neof"),
    "nerdbank.equal-randoms": (Place.HANDSHAKE, "mirror"),
    "nerdbank.id-parity": (Place.FRESH, '> Offer o1 "odd one out"'),
    "nerdbank.bad-acceptance": (Place.NEAR, "> OfferAccepted p"),
    "nerdbank.content-before-acceptance": (Place.ARRIVAL, '> Content p "early"'),
    "nerdbank.window-exceeded": (Place.FAR, "> Content 1 over=1"),
    "nerdbank.truncated": (Place.FRESH, "> hex 93 02\neof"),
    "omnistreams.metadata-too-long": (Place.FRESH, "> CREATE_RECEIVE_STREAM 1 *524288"),
    "omnistreams.credit-exceeded": (Place.FAR, "> STREAM_DATA 1 over=1"),
    "omnistreams.sent-after-cancel": (
        Place.FAR, '< ResetReceiver 1\n> STREAM_DATA 1 "too late"'),
    "omnistreams.request-on-unknown-id": (Place.FRESH, "> STREAM_REQUEST_DATA 7"),
    "omnistreams.truncated": (Place.FRESH, "> hex 00 00\neof"),
    "streamux.mixed-header-sizes": (Place.HANDSHAKE, "> Initiator length=7 id=7"),
    "streamux.reply-before-end": (Place.NEAR, '> Reply p "early" last=1'),
    "streamux.reply-after-cancel": (Place.NEAR, '< ResetReceiver p\n> Reply p "late" last=1'),
    "streamux.cancel-unknown": (Place.FRESH, "> Cancel 1"),
    "streamux.truncated": (Place.FRESH, "> hex 01\neof"),
    "minmux.unassigned-stream": (Place.FRESH, "> PromiseRead #18446744073709551615 amount=1"),
    "minmux.credit-exceeded": (Place.FRESH, '> Write w7 "x"'),
    "minmux.forgo-exceeds-credit": (Place.FRESH, "> ForgoCredit w7 amount=5"),
    "minmux.truncated": (Place.FRESH, "> hex 3f\neof"),
    "yamux.window-exceeded": (Place.FAR, "> Data 1 over=1"),
    "yamux.write-after-peer-rst": (Place.FAR, '< *RST* 1\n> Data 1 "too late"'),
    "yamux.id-recycled": (Place.FAR, "> WindowUpdate+FIN 1\n< *FIN* 1\n> WindowUpdate+SYN 1"),
    "yamux.backlog": (
        Place.FRESH, "\n".join(f"> WindowUpdate+SYN {number}" for number in range(1, 259))),
    "yamux.truncated": (Place.FRESH, "> hex 00 00\neof"),
}  # fmt: skip
"""Scripts for rules of which the cases have none, or none that fits a connection in use.

`over=1` stands for one unit of content more than the stream has credit for; `o1` for an id that
only the other side may open."""

DEFAULT_VERSION: Final = "3"  # of nerdbank
ONLY_IN_VERSIONS: Final = {
    "nerdbank.equal-randoms": ("1", "2"),
    "nerdbank.id-parity": ("1", "2"),
    "nerdbank.window-exceeded": ("2", "3"),
}
REPLY_RULES: Final = frozenset({
    "nerdbank.not-terminated", "nerdbank.termination-unanswered", "omnistreams.data-unanswered",
    "streamux.cancel-unanswered", "minmux.last-item-missing", "yamux.unacknowledged",
    "yamux.ping-unanswered",
})  # fmt: skip
PROFILE_RULES: Final = frozenset(
    {"minmux.endless-stream-stopped", "minmux.bad-item", "minmux.item-too-long"}
)


def find_breach(protocol: str, rule: str) -> Breach:
    """How this rule of a protocol string is broken.

    Raises:
        BadRule: The protocol has no such rule, or it cannot be broken here; the text says why.
    """
    name = parse_protocol(protocol).name
    if rule not in {known.name for known in create(protocol).rules}:
        raise BadRule(f"illegal:{rule}: {name} has no such rule; `polymux rules {name}` lists them")
    version = parse_protocol(protocol).options.get("version", DEFAULT_VERSION)
    if version not in ONLY_IN_VERSIONS.get(rule, (version,)):
        raise BadRule(f"illegal:{rule}: it does not exist in version {version}")
    if rule == "minmux.unassigned-stream" and "profile" not in parse_protocol(protocol).options:
        raise BadRule(f"illegal:{rule}: without a profile, every id is assigned")
    if rule in MORE_SCRIPTS:
        place, script = MORE_SCRIPTS[rule]
        return Breach(rule, place, tuple(parse_steps(script)), script.endswith("eof"))
    case = find_case(name, protocol, rule)
    if case is None:
        raise BadRule(f"illegal:{rule}: {why_not(protocol, rule)}")
    return breach_of_case(name, case, rule)


def find_case(name: str, protocol: str, rule: str) -> Case | None:
    """The case that breaks this rule first, and needs the least of the peer."""
    fitting = [
        case for case in cases_of(name) if case.breaks[:1] == (rule,) and applies(case, protocol)
    ]
    return min(fitting, key=lambda case: case.level, default=None)


def breach_of_case(name: str, case: Case, rule: str) -> Breach:
    """The script of a case, without its own opening where a relayed stream takes that place."""
    lines = [line.strip() for line in case.script.splitlines() if line.strip()]
    if lines[0] == "bare":
        return Breach(rule, Place.HANDSHAKE, tuple(parse_steps("\n".join(lines[1:]))))
    if case.level == 0:
        return Breach(rule, Place.FRESH, tuple(parse_steps("\n".join(lines))))
    script = without_opening(name, "\n".join(lines))
    place = Place.NEAR if any(" p" in line for line in script.splitlines()) else Place.FAR
    return Breach(rule, place, tuple(parse_steps(script)))


def without_opening(name: str, script: str) -> str:
    """The script after the exchange by which it opens its first stream."""
    module = import_module(f"polymux.protocols.{name}.cases")
    openings = [
        "\n".join(line.strip() for line in text.splitlines() if line.strip())
        for text in (getattr(module, constant, "") for constant in OPENINGS)
    ]
    for opening in sorted(filter(None, openings), key=len, reverse=True):
        if script.startswith(opening):
            return script.removeprefix(opening)
    frames = "\n".join(line for line in script.splitlines() if not line.startswith("!"))
    return frames.partition("\n")[2]  # the first frame opens the stream


def parse_steps(script: str) -> list[FrameWords | bytes | Step]:
    """The steps of a script that concern a connection in use: frames, bytes, and few waits."""
    steps: list[FrameWords | bytes | Step] = []
    for line in script.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == ">" and rest.startswith("hex "):
            steps.append(bytes.fromhex(rest[4:]))
        elif word == ">":
            steps.append(parse_frame(rest))
        elif word == "mirror":
            steps.append(Step.MIRROR)
        elif word == "<" and rest.split()[0] in WAITS_FOR_END:
            steps.append(Step.AWAIT_END)
        elif word == "<" and rest.split()[0] in WAITS_FOR_ABORT:
            steps.append(Step.AWAIT_ABORT)
    return steps


def why_not(protocol: str, rule: str) -> str:
    """Why a rule cannot be broken by frames that a relay sends."""
    if rule in REPLY_RULES:
        return "it is broken by leaving out a reply, and a relay sends all that are due"
    if rule in PROFILE_RULES:
        return "which frame breaks it depends on the items that the profile assigns to a stream"
    if rule == "yamux.open-after-goaway":
        return "it takes a peer that has sent Go Away, and a relay opens nothing after that"
    if rule == "streamux.chunk-too-long":
        return "it is a limit of the reader, which the header cannot exceed by default"
    if any(case.breaks[:1] == (rule,) for case in cases_of(parse_protocol(protocol).name)):
        return f"it does not exist in {protocol}; name another version or option"
    return "no frame of a relay breaks it"
