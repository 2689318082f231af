"""Which protocol is this? A verdict with its evidence, from the first bytes of both sides.

Every protocol is tried with its real rule book on up to 64 KiB and scored by how many of its frames
break no rule. Bytes that can only be one protocol (a magic number, a handshake) decide with one
frame; without them most frames must fit. Nothing here raises about what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polymux.analysis.detection.other_protocols import (
    detect_other_protocol,
    multistream_size,
    websocket_upgrade_status,
)
from polymux.analysis.detection.sample import SHORT_SAMPLE_BYTES, SessionSample, Trial, try_protocol
from polymux.analysis.detection.signatures import SIGNATURES, Signature
from polymux.core.websocket.handshake import IS_UPGRADE, NEED_MORE, NOT_UPGRADE
from polymux.protocols.registry import PROTOCOLS

MIN_SCORE = 75  # of 100: a session with some broken rules is still recognised
MIN_SCORE_WITH_MARKER = 50  # where the first bytes give it away
MIN_SCORE_WITHOUT_START = 97  # where the beginning was not captured, most bytes fit almost anything
MIN_FRAMES_WITHOUT_START = 16
INCONCLUSIVE_BYTES = 64  # bytes that say nothing against a protocol of which no frame is whole


@dataclass(frozen=True, slots=True)
class Detection:
    """`protocol` is a protocol string, or None: not recognised. `skip` are the bytes of each side
    before the first frame. `scores` has every variant that was tried, best first. `marked`: the
    first bytes can be nothing else. `stranger` names a well-known protocol that is not ours.
    `doubt`: the bytes look like another protocol than the one that was named, and why."""

    protocol: str | None
    evidence: str
    score: int = 0
    skip_bytes: tuple[int, int] = (0, 0)
    scores: tuple[tuple[str, int], ...] = ()
    has_marker: bool = False
    other_protocol: str = ""
    mismatch: str = ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    signature: Signature
    trial: Trial
    marker: str
    score: int


def detect(sample: SessionSample) -> Detection:
    """The protocol that explains the sample, with its evidence; or why there is none."""
    if not sample.size:
        return Detection(None, "no bytes were captured")
    skip = (multistream_size(sample.head(0)), multistream_size(sample.head(1)))
    rest = sample.skipping(skip)
    found = _rank_candidates(rest, SIGNATURES)
    scores = tuple((each.trial.protocol, each.score) for each in found)
    other = detect_other_protocol(rest.head(0), rest.head(1))
    best = next((each for each in found if _is_credible(each, sample.from_start)), None)
    if best is not None and other and not best.marker and not best.trial.websocket_path:
        best = None  # what looks like TLS or HTTP is that, whatever else it could be
    if best is None:
        closest = ", ".join(f"{text} {score}" for text, score in scores[:3])
        said = other or f"no protocol fits; the closest: {closest}"
        return Detection(None, said, 0, skip, scores, other_protocol=other)
    said = f"seen: {_describe_evidence(best, skip)}"
    return Detection(best.trial.protocol, said, best.score, skip, scores, bool(best.marker))


def select_variant(name: str, options: dict[str, str], sample: SessionSample) -> tuple[str, str]:
    """A protocol that was named: the variant that fits best, and what shows it ("" if nothing
    had to be found out)."""
    scorer = next((each for each in SIGNATURES if each.name == name), None)
    if scorer is None or not scorer.variant_option or scorer.variant_option in options:
        return _protocol_string(name, options), ""
    best = _rank_candidates(sample, (scorer,), options)[0]
    if best.trial.valid_frames == 0:
        return _protocol_string(name, options), f"no {scorer.variant_option} fits"
    return best.trial.protocol, f"{scorer.variant_option} found: {_describe_evidence(best, (0, 0))}"


def find_mismatch(variant: str, options: dict[str, str], sample: SessionSample) -> str:
    """What the sample plainly is instead of the protocol that was named; "" if it may be that one.

    `settled` is the variant it is read as, `options` are those the caller wrote. The named one is
    contradicted only by another one that fits better, or that its first bytes give away.
    """
    if not sample.size:
        return ""
    name = variant.partition(":")[0]
    scorer = next((each for each in SIGNATURES if each.name == name), None)
    excused = _excused_rules(scorer, sample) if scorer else ()
    if _is_certain(
        try_protocol(variant, sample.first(SHORT_SAMPLE_BYTES), excused), scorer, sample
    ):
        return ""
    own = try_protocol(variant, sample, excused)
    unread = (
        not own.frame_count and not own.decode_error
    )  # its first frame may only not be whole yet
    found = detect(sample)
    if found.protocol is None:
        upgrade = (
            websocket_upgrade_status(sample.head(0), sample.head(1))
            if name == "omnistreams"
            else NOT_UPGRADE
        )
        if upgrade == NEED_MORE or (upgrade == IS_UPGRADE and unread):
            return ""
        return found.other_protocol if int(100 * own.fit) < MIN_SCORE else ""
    better = found.score > int(100 * own.fit) and not (unread and sample.size < INCONCLUSIVE_BYTES)
    if not found.has_marker and not better:
        return ""
    other = found.protocol.partition(":")[0]
    if other == name and found.skip_bytes != (0, 0):
        return f"{name} behind multistream-select, {name}:preamble=multistream"
    if other == name and not (
        scorer and scorer.variant_option in options and found.protocol != variant
    ):
        return ""
    return f"{found.protocol} ({found.evidence.removeprefix('seen: ')})"


def _is_certain(trial: Trial, signature: Signature | None, sample: SessionSample) -> bool:
    """Is it the named protocol beyond doubt? Every frame fits; where that says little, content went
    as the protocol would have it and nothing marks another one."""
    if signature is None or trial.fit < 1:
        return False
    if signature.proof is None:
        return True
    others = (
        each.marker for each in SIGNATURES if each is not signature and each.marker is not None
    )
    return signature.proof(trial) and not any(mark(sample) for mark in others)


def _rank_candidates(
    sample: SessionSample, signatures: Iterable[Signature], options: dict[str, str] | None = None
) -> list[_Candidate]:
    """All variants that could be it, best first. A protocol that fits almost anything is not tried
    where another one fits so well that it could not be better."""
    certain = [scorer for scorer in signatures if scorer.proof is None]
    found = _try_signatures(sample, certain, options, brief=True)
    if not any(_is_credible(each, sample.from_start) and _is_perfect(each) for each in found):
        if any(each.trial.stopped_early for each in found):
            found = _try_signatures(sample, certain, options)
        doubtful = [scorer for scorer in signatures if scorer.proof is not None]
        found += _try_signatures(sample, doubtful, options, others=found)
    # In the order of the scorers where nothing else decides: the most telling protocol first.
    return sorted(found, key=lambda each: (-bool(each.marker), -each.score))


def _try_signatures(
    sample: SessionSample,
    signatures: Iterable[Signature],
    options: dict[str, str] | None,
    *,
    others: Sequence[_Candidate] = (),
    brief: bool = False,
) -> list[_Candidate]:
    """What does not fit a few bytes is not tried on many; nor is a protocol that fits almost
    anything, once another one is believed. `brief`: what has no mark is given up early."""
    glance = sample.first(SHORT_SAMPLE_BYTES)
    found: list[_Candidate] = []
    for scorer in signatures:
        if scorer.name in PROTOCOLS:
            mark = scorer.marker(sample) if scorer.marker else ""
            found += [
                _make_candidate(
                    scorer,
                    mark,
                    try_protocol(text, glance, _excused_rules(scorer, sample), brief and not mark),
                )
                for text in scorer.variants(options or {})
            ]
    if glance.size < sample.size:
        believed = any(_is_credible(other, sample.from_start) for other in others)
        for number, each in enumerate(found):
            if each.trial.fit <= 0.5 or (each.signature.proof is not None and believed):
                continue
            trial = try_protocol(
                each.trial.protocol, sample, _excused_rules(each.signature, sample)
            )
            found[number] = _make_candidate(each.signature, each.marker, trial)
    return found


def _is_perfect(candidate: _Candidate) -> bool:
    return bool(candidate.marker) or candidate.score == 100


def _excused_rules(signature: Signature, sample: SessionSample) -> tuple[str, ...]:
    return () if sample.from_start else signature.excused_rules


def _make_candidate(signature: Signature, marker: str, trial: Trial) -> _Candidate:
    return _Candidate(signature, trial, marker, int(100 * trial.fit))


def _is_credible(candidate: _Candidate, from_start: bool) -> bool:
    fitting = candidate.trial.valid_frames
    if candidate.signature.proof is not None and not candidate.signature.proof(candidate.trial):
        return False
    if candidate.marker:
        return fitting >= 1 and candidate.score >= MIN_SCORE_WITH_MARKER
    if not from_start:
        return (
            fitting >= max(MIN_FRAMES_WITHOUT_START, candidate.signature.min_frames)
            and candidate.score >= MIN_SCORE_WITHOUT_START
        )
    return fitting >= candidate.signature.min_frames and candidate.score >= MIN_SCORE


def _describe_evidence(best: _Candidate, skip_bytes: tuple[int, int]) -> str:
    trial = best.trial
    said = [best.marker] if best.marker else []
    if skip_bytes != (0, 0):
        said.append("multistream-select before it")
    said.append(f"{trial.valid_frames} of the first {trial.frame_count} frames fit")
    if trial.violations_by_rule:
        rule, count = trial.violations_by_rule.most_common(1)[0]
        said.append(f"{count} broke {rule}")
    if best.signature.hints is not None:
        said += best.signature.hints(trial)
    return "; ".join(said)


def _protocol_string(name: str, options: dict[str, str]) -> str:
    pairs = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}:{pairs}" if pairs else name
