# mypyc: compiled
"""What detection finds: candidates with their scores, and the verdict with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polymux.analysis.detection.sample import Trial
from polymux.analysis.detection.signatures import Signature

MIN_SCORE: Final = 75  # percent: a session with some violations is still detected
MIN_SCORE_WITH_MARKER: Final = 50  # with a marker in the first bytes
MIN_SCORE_WITHOUT_START: Final = 97  # without the start, most bytes fit many protocols
MIN_FRAMES_WITHOUT_START: Final = 16


@dataclass(frozen=True, slots=True)
class Detection:
    """The protocol of a session, and why.

    Attributes:
        protocol: the protocol string; None if none was detected.
        evidence: why this protocol, or why none.
        score: percentage of valid frames.
        skip_bytes: bytes of each side before the first frame.
        scores: the variants that were tried to the end, with their scores, best first.
        has_marker: the first bytes occur in no other protocol.
        other_protocol: a well-known protocol that polymux does not decode; "" if none.
        mismatch: the note for a session whose bytes contradict the named protocol; "" if none.
    """

    protocol: str | None
    evidence: str
    score: int = 0
    skip_bytes: tuple[int, int] = (0, 0)
    scores: tuple[tuple[str, int], ...] = ()
    has_marker: bool = False
    other_protocol: str = ""
    mismatch: str = ""


class Candidate:
    """A protocol that was tried. `marker` describes its unambiguous first bytes, "" if absent;
    `score` is the percentage of valid frames."""

    def __init__(self, signature: Signature, trial: Trial, marker: str, score: int) -> None:
        self.signature = signature
        self.trial = trial
        self.marker = marker
        self.score = score


def is_perfect(candidate: Candidate) -> bool:
    """Whether protocols that need a proof are not tried beside this one."""
    return bool(candidate.marker) or candidate.score == 100


def is_credible(candidate: Candidate, from_start: bool) -> bool:
    """Whether a candidate may be the verdict: see `detector`."""
    valid = candidate.trial.valid_frames
    signature = candidate.signature
    if signature.proof is not None and not signature.proof(candidate.trial):
        return False
    if candidate.marker:
        return valid >= 1 and candidate.score >= MIN_SCORE_WITH_MARKER
    if not from_start:
        return (
            valid >= max(MIN_FRAMES_WITHOUT_START, signature.min_frames)
            and candidate.score >= MIN_SCORE_WITHOUT_START
        )
    return valid >= signature.min_frames and candidate.score >= MIN_SCORE


def describe_evidence(best: Candidate, skip_bytes: tuple[int, int]) -> str:
    """Say why the best candidate is the verdict."""
    trial = best.trial
    parts = [best.marker] if best.marker else []
    if skip_bytes != (0, 0):
        parts.append("multistream-select before it")
    parts.append(f"{trial.valid_frames} of the first {trial.frame_count} frames fit")
    if trial.violations_by_rule:
        rule, count = trial.violations_by_rule.most_common(1)[0]
        parts.append(f"{count} broke {rule}")
    if best.signature.hints is not None:
        parts += best.signature.hints(trial)
    return "; ".join(parts)
