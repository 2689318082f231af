"""Results of a run: what each case has shown, and the verdict on each requirement."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from polymux.conform.connection import LogLine
from polymux.core.conformance import SEVERITY_ORDER, Case, Outcome, Requirement, Verdict

FAILURES = (Verdict.FAILED, Verdict.WEDGED)


@dataclass(frozen=True)
class CaseResult:
    """What one case has shown.

    Attributes:
        case: the case.
        verdict: about the peer.
        outcome: what happened; None if the case was not run.
        detail: what was seen, for the user.
        closing: how the peer ended the connection: `clean`, `abrupt`, `late` or `none`.
        seconds: the time it took.
        capture: the path of its capture; "" if none was written.
        log: the frames of both sides.
        violations: (sender, rule) of everything either side broke; sender is `tester` or `peer`.
    """

    case: Case
    verdict: Verdict
    outcome: Outcome | None
    detail: str
    closing: str = ""
    seconds: float = 0.0
    capture: str = ""
    log: tuple[LogLine, ...] = ()
    violations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RequirementResult:
    """The verdict on one requirement: the worst of its cases. None: no case of it was run."""

    requirement: Requirement
    cases: tuple[CaseResult, ...]

    @property
    def verdict(self) -> Verdict | None:
        verdicts = [result.verdict for result in self.cases]
        return max(verdicts, key=SEVERITY_ORDER.index) if verdicts else None


@dataclass
class Results:
    """The results of one run against one peer.

    Attributes:
        peer: the name of the peer in reports.
        protocol: the protocol string.
        role: of the tester.
        level: of cooperation that was asked for.
        cooperation: the level that the peer was found to have.
        requirements: the results, in the order of the catalogue.
        note: what the user has to know about the whole run; "" if nothing.
        seconds: the time it took.
    """

    peer: str
    protocol: str
    role: str
    level: int
    cooperation: int = 0
    requirements: list[RequirementResult] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0

    @property
    def cases(self) -> list[CaseResult]:
        """The results of all cases."""
        return [result for found in self.requirements for result in found.cases]

    def verdict(self, name: str) -> Verdict:
        """The verdict on a case or requirement.

        Raises:
            KeyError: there is none of this id, or it was not run.
        """
        for found in self.requirements:
            if found.requirement.id == name and found.verdict is not None:
                return found.verdict
            for result in found.cases:
                if result.case.id == name:
                    return result.verdict
        raise KeyError(name)

    def failures(self, strict: bool = False) -> list[CaseResult]:
        """The cases that FAILED or are WEDGED; `strict`: those that are NON-STRICT too."""
        bad = (*FAILURES, Verdict.NON_STRICT) if strict else FAILURES
        return [result for result in self.cases if result.verdict in bad]

    def counts(self) -> dict[Verdict, int]:
        """The number of cases with each verdict that occurs, best first."""
        found = Counter(result.verdict for result in self.cases)
        return {verdict: found[verdict] for verdict in SEVERITY_ORDER if found[verdict]}
