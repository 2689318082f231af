# mypyc: compiled
"""What detection finds: the verdict with its evidence."""

from __future__ import annotations

from dataclasses import dataclass


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
