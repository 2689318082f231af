# mypyc: compiled
"""Rules of protocols, violations of them, and replies that are still expected.

The rules of a protocol are a tuple; a set of them is a mask, in which bit n stands for rule n.
"""

from enum import Enum
from typing import Final

from mypy_extensions import i64

from polymux.core.side import Side

CROSSED: Final[i64] = 0x2000000000000000
"""The bit of a mask that is no rule: the frame is legal because it crossed a stop in flight."""


class Origin(str, Enum):
    """Where a rule comes from: the specification, a limit of ours, or advice."""

    SPEC = "spec"
    LIMIT = "limit"
    ADVICE = "advice"


class Severity(str, Enum):
    """How serious a violation is.

    ERROR: an endpoint refuses to send it. WARNING: reported as a finding. NOTE: recorded only.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Certainty(str, Enum):
    """How sure a violation is.

    POSSIBLE: bytes, a beginning or an order that were not seen could excuse it.
    """

    CERTAIN = "certain"
    POSSIBLE = "possible"


class Reaction(str, Enum):
    """What an endpoint does when its peer breaks the rule."""

    IGNORE = "ignore"  # drop the frame and count it
    STREAM = "stream"  # abort the stream
    SESSION = "session"  # end the session


class Rule:
    """One rule of a protocol.

    Args:
        name: `protocol.rule-name`.
        sentence: the rule in one sentence.
        section: where the specification states it.
        severity: how serious a violation is.
        reaction: what an endpoint does when its peer breaks it.
        origin: where the rule comes from.
    """

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
    """A rule that a frame broke.

    Args:
        rule: the rule.
        sender: the side that broke it.
        frame_index: of the frame among its sender's frames, from 0.
        byte_offset: of the frame in its sender's bytes.
        time: timestamp in nanoseconds.
        stream: label of the stream; "": none.
        certainty: how sure it is.
        detail: what was found, for the user.
    """

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
            f"(frame {self.frame_index} of the {self.sender.name.lower()}, "
            f"byte {self.byte_offset}; {self.rule.section})"
        )


class PendingReply:
    """A frame that `side` is expected to send in reply to a frame of the other side.

    Args:
        side: the side that must reply.
        kind: the kind of frame that is expected.
        key: of the stream.
        rule: bit of the rule to report if it never comes; 0: nothing is reported.
        request_index: of the frame it replies to, among the other side's frames.
        requested_at: when that frame was sent, in nanoseconds.
    """

    def __init__(
        self, side: i64, kind: i64, key: i64, rule: i64, request_index: i64, requested_at: i64
    ) -> None:
        self.side: i64 = side
        self.kind: i64 = kind
        self.key: i64 = key
        self.rule: i64 = rule
        self.request_index: i64 = request_index
        self.requested_at: i64 = requested_at
        self.queued: bool = False  # an endpoint has queued the reply

    def save(self) -> list[int]:
        """The reply as plain data: the arguments of `PendingReply`."""
        return [self.side, self.kind, self.key, self.rule, self.request_index, self.requested_at]


def severity_mask(rules: tuple[Rule, ...], severities: tuple[Severity, ...]) -> i64:
    """The mask of all rules with one of these severities."""
    bits: i64 = 0
    bit: i64 = 1
    for rule in rules:
        if rule.severity in severities:
            bits |= bit
        bit <<= 1
    return bits


def reaction_mask(rules: tuple[Rule, ...], reaction: Reaction) -> i64:
    """The mask of all rules with this reaction."""
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
    """The rules whose bits are set in a mask, in order."""
    found: list[Rule] = []
    bit: i64 = 1
    for rule in rules:
        if violation_mask & bit:
            found.append(rule)
        bit <<= 1
    return found
