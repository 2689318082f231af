"""Requirements of a protocol, and the cases by which a conformance tester examines a peer.

Both are data; `polymux.conform` runs them. A requirement is what a peer has to do. It is wider than
a rule: a rule is what one frame can break, so it can be found in a capture, while a requirement may
ask for a reaction, or for progress. A requirement names the rules that belong to it.

The script of a case has one step on each line:

    > KIND STREAM PAYLOAD key=value   send this frame
    > hex 0f 00                       send these bytes
    < KIND STREAM PAYLOAD             wait for such a frame of the peer
    < content STREAM PAYLOAD          wait until the peer has sent this content on the stream
    ? KIND STREAM PAYLOAD             such a frame must have come by now
    < closed                          wait until the peer has closed the connection
    ! KIND STREAM PAYLOAD             such a frame must not come before the case is over
    alive                             wait until the peer has answered something unrelated
    react STREAM                      find out what the peer does about what was sent
    eof                               end this side's direction
    split                             send everything from here on byte by byte
    mirror                            send the peer's own handshake back to it
    bare                              (first line) do not send the handshake of the protocol

A kind may have wildcards (`*RST*`). A stream is the number of one that the tester opens, counted
from 1; `p` and the number of one that the peer opens, or `p` for the last of these that was waited
for and `pp` for the one before; `#` and an id as it is on the wire; or `*`. A payload is text in
double quotes, `x` and hex digits, or `*N` for N bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final


class Verdict(str, Enum):
    """What a case has shown about a peer, from best to worst."""

    OK = "OK"
    INFORMATIONAL = "INFORMATIONAL"  # several readings are possible, or no reaction was seen
    UNIMPLEMENTED = "UNIMPLEMENTED"  # the peer lacks an optional part, or does not cooperate
    NON_STRICT = "NON-STRICT"  # allowed, but unwise
    FAILED = "FAILED"
    WEDGED = "WEDGED"  # neither an error nor progress


SEVERITY_ORDER: Final = tuple(Verdict)


class Obligation(str, Enum):
    """Where a requirement comes from."""

    MUST = "must"  # the specification demands or forbids it
    SHOULD = "should"
    DIALECT = "dialect"  # implementations differ, and each is right
    AMBIGUOUS = "ambiguous"  # the specification can be read in more than one way
    ROBUSTNESS = "robustness"  # not in the specification


class Outcome(str, Enum):
    """What happened when a case was run."""

    MET = "met"  # every step of the script was fulfilled
    MISSING = "missing"  # an expected frame did not come, but the peer is alive
    FORBIDDEN = "forbidden"  # a frame or content came that must not come
    CLOSED = "closed"  # the peer closed the connection
    REFUSED = "refused"  # the peer aborted the stream
    IGNORED = "ignored"  # neither, and the peer is alive
    SILENT = "silent"  # no reaction, and without cooperation it cannot be told whether it is alive
    WEDGED = "wedged"  # no reaction, and no answer to anything else


MUST: Final = Obligation.MUST
SHOULD: Final = Obligation.SHOULD
DIALECT: Final = Obligation.DIALECT
AMBIGUOUS: Final = Obligation.AMBIGUOUS
ROBUSTNESS: Final = Obligation.ROBUSTNESS


@dataclass(frozen=True)
class Requirement:
    """What a peer has to do.

    Args:
        id: such as `MPLEX-HDR-2`; its first part names the protocol.
        obligation: where it comes from.
        sentence: the requirement in one sentence.
        rules: names of the rules that belong to it.
        without_case: why no case can examine it; empty if there are cases.
    """

    id: str
    obligation: Obligation
    sentence: str
    rules: tuple[str, ...] = ()
    without_case: str = ""


Outcomes = Mapping[Outcome, Verdict]


def outcomes(base: Outcomes | None = None, **verdicts: Verdict) -> Outcomes:
    """The verdict for each outcome: those named, then those of `base`, then the usual ones."""
    usual = {
        Outcome.MET: Verdict.OK,
        Outcome.MISSING: Verdict.FAILED,
        Outcome.FORBIDDEN: Verdict.FAILED,
        Outcome.CLOSED: Verdict.FAILED,
        Outcome.REFUSED: Verdict.FAILED,
        Outcome.IGNORED: Verdict.FAILED,
        Outcome.SILENT: Verdict.INFORMATIONAL,
        Outcome.WEDGED: Verdict.WEDGED,
    }
    named = {Outcome(name): verdict for name, verdict in verdicts.items()}
    return MappingProxyType({**usual, **(base or {}), **named})


OK: Final = Verdict.OK
NON_STRICT: Final = Verdict.NON_STRICT
READING: Final = Verdict.INFORMATIONAL

USUAL: Final = outcomes()
"""The script must be fulfilled."""
MUST_REFUSE: Final = outcomes(closed=OK, refused=OK)
"""The peer must close the connection or abort the stream."""
SHOULD_REFUSE: Final = outcomes(closed=OK, refused=OK, ignored=NON_STRICT)
"""A peer that goes on as if nothing had happened is tolerated."""
MAY_IGNORE: Final = outcomes(closed=OK, refused=OK, ignored=OK)
"""The peer may fail or go on, but must do one of them."""
MUST_GO_ON: Final = outcomes(ignored=OK)
"""The peer must go on: what was sent is legal, or harmless."""
SHOULD_GO_ON: Final = outcomes(ignored=OK, closed=NON_STRICT, refused=NON_STRICT)
"""A peer that closes the connection is tolerated."""
EITHER: Final = outcomes(
    met=READING, missing=READING, forbidden=READING, closed=READING, refused=READING,
    ignored=READING,
)  # fmt: skip
"""Every reaction is right; the report says which was seen."""


@dataclass(frozen=True)
class Case:
    """One exchange with the peer, and what its outcomes mean.

    Args:
        requirement: the id of the requirement it examines.
        name: unique among the cases of the requirement: `MPLEX-HDR-2/flag-7`.
        level: of cooperation that it needs from the peer: 0 none, 1 echoes every stream, 2 obeys
            the commands of `polymux testee`.
        script: the steps.
        verdicts: the verdict for each outcome.
        breaks: names of the rules that the tester itself breaks, in the order of the script.
        options: the case applies only if the protocol string has one of these values, such as
            `{"version": ("1", "2")}`; the first one is the protocol's default if it is empty.
    """

    requirement: str
    name: str
    level: int
    script: str
    verdicts: Outcomes = field(default_factory=lambda: USUAL, repr=False)
    breaks: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def id(self) -> str:
        return f"{self.requirement}/{self.name}"


def echo_cases(echo: str) -> tuple[Case, ...]:
    """The cases of generic requirements that need nothing but the script of an echo."""
    end = f"{echo}\neof\n< closed"
    return (
        Case("GEN-FRAG-1", "byte-by-byte", 1, f"split\n{echo}"),
        Case("GEN-TRUNC-1", "end", 1, end, outcomes(missing=Verdict.NON_STRICT)),
    )


GENERIC_REQUIREMENTS: Final = (
    Requirement("GEN-FRAG-1", Obligation.MUST, "The bytes of a frame may arrive in any pieces."),
    Requirement("GEN-WEDGE-1", Obligation.ROBUSTNESS,
                "After bad input a peer either fails or goes on."),
    Requirement("GEN-ISO-1", Obligation.ROBUSTNESS,
                "An error on one stream leaves the others alone."),
    Requirement("GEN-MEM-1", Obligation.ROBUSTNESS, "The memory of a peer is bounded.",
                without_case="the memory of a peer cannot be seen over a connection"),
    Requirement("GEN-TRUNC-1", Obligation.MUST, "A connection ends at the end of a frame.",
                ("mplex.truncated", "nerdbank.truncated", "omnistreams.truncated",
                 "streamux.truncated", "minmux.truncated", "yamux.truncated")),
    Requirement("GEN-LIVE-1", Obligation.ROBUSTNESS,
                "A peer notices that the other side is silent.",
                without_case="a peer may wait for hours; no time limit of a test could tell"),
)  # fmt: skip
"""Requirements of every protocol; each protocol has its own cases for them."""
