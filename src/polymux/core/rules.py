# mypyc: compiled
"""Rules, and what is said when one is broken."""

from enum import Enum
from typing import Final

from mypy_extensions import i64

from polymux.core.side import Side

CROSSED: Final[i64] = 0x2000000000000000
"""The bit of a verdict that is no rule: legal, because the frames crossed in flight."""


class Origin(str, Enum):
    """Where a rule comes from."""

    SPEC = "spec"
    LIMIT = "limit"
    ADVICE = "advice"


class Severity(str, Enum):
    """`error`: an endpoint refuses to send it. `note`: worth knowing, never a finding."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Certainty(str, Enum):
    """`possible`: bytes, a start or an order that were not seen could excuse it."""

    CERTAIN = "certain"
    POSSIBLE = "possible"


class Reaction(str, Enum):
    """What a live endpoint does about a peer that breaks the rule."""

    IGNORE = "ignore"  # drop the frame and count it
    STREAM = "stream"  # abort the stream
    SESSION = "session"  # end the session


class Rule:
    """One rule of a protocol: its name, one sentence, the place that says so, and its weight."""

    def __init__(
        self,
        name: str,
        sentence: str,
        section: str,
        severity: Severity = Severity.ERROR,
        reaction: Reaction = Reaction.IGNORE,
        origin: Origin = Origin.SPEC,
    ) -> None:
        self.name = name
        self.sentence = sentence
        self.section = section
        self.severity = severity
        self.reaction = reaction
        self.origin = origin

    def __repr__(self) -> str:
        return f"Rule({self.name})"


class Violation:
    """A frame and a rule it broke. `ordinal` is the frame's place among its sender's frames."""

    def __init__(
        self,
        rule: Rule,
        sender: Side,
        frame_index: int,
        byte_offset: int,
        time: int,
        stream: str,
        certainty: Certainty,
        detail: str,
    ) -> None:
        self.rule = rule
        self.sender = sender
        self.frame_index = frame_index
        self.byte_offset = byte_offset
        self.time = time
        self.stream = stream
        self.certainty = certainty
        self.detail = detail

    def __repr__(self) -> str:
        return f"<polymux violation {self}>"

    def __str__(self) -> str:
        where = f" on {self.stream}" if self.stream else ""
        return (
            f"{self.rule.name}{where}: {self.detail} "
            f"(frame {self.frame_index} of the {self.sender.name.lower()}, byte {self.byte_offset}; "
            f"{self.rule.section})"
        )


class PendingReply:
    """Something `side` owes on a stream: the kind of frame that would pay it, and since when."""

    def __init__(
        self, side: i64, kind: i64, key: i64, rule: i64, request_index: i64, requested_at: i64
    ) -> None:
        self.side: i64 = side
        self.kind: i64 = kind
        self.key: i64 = key
        self.rule: i64 = rule  # the bit to report if it is never paid; 0: nothing to report
        self.request_index: i64 = (
            request_index  # ordinal, among the other side's frames, of what it answers
        )
        self.requested_at: i64 = requested_at
        self.queued: bool = False  # the frame that pays it is already queued

    def save(self) -> list[int]:
        return [self.side, self.kind, self.key, self.rule, self.request_index, self.requested_at]


def severity_mask(rules: tuple[Rule, ...], severities: tuple[Severity, ...]) -> i64:
    """The verdict bits of all rules with one of these severities."""
    bits: i64 = 0
    bit: i64 = 1
    for rule in rules:
        if rule.severity in severities:
            bits |= bit
        bit <<= 1
    return bits


def reaction_mask(rules: tuple[Rule, ...], reaction: Reaction) -> i64:
    """The verdict bits of all rules with this reaction."""
    bits: i64 = 0
    bit: i64 = 1
    for rule in rules:
        if rule.reaction is reaction:
            bits |= bit
        bit <<= 1
    return bits


def byte_count_text(count: int) -> str:
    """`1 byte`, `2 bytes`: for the details of violations."""
    return "1 byte" if count == 1 else f"{count} bytes"


def rules_in_mask(rules: tuple[Rule, ...], violation_mask: i64) -> list[Rule]:
    """The rules whose bits stand in a verdict."""
    found: list[Rule] = []
    bit: i64 = 1
    for rule in rules:
        if violation_mask & bit:
            found.append(rule)
        bit <<= 1
    return found
