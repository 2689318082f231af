"""Which protocol is this? A verdict with its evidence, from the first octets of both sides.

Every protocol is tried with its real rule book on up to 64 KiB and scored by how many of its frames
break no rule. Octets that can only be one protocol (a magic number, a handshake) decide with one
frame; without them most frames must fit. Nothing here raises about what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polymux.analysis.detection.other_protocols import multistream_size, stranger, upgraded
from polymux.analysis.detection.sample import GLANCE, Sample, Trial, attempt
from polymux.analysis.detection.signatures import SCORERS, Scorer
from polymux.core.websocket.handshake import MORE, NO, YES
from polymux.protocols.registry import MAKERS

ENOUGH = 75  # of 100: a session with some broken rules is still recognised
MARKED = 50  # where the first octets give it away
UNSTARTED = 97  # where the beginning was not captured, most octets fit almost anything
UNSTARTED_FRAMES = 16
FEW = 64  # octets that say nothing against a protocol of which no frame is whole


@dataclass(frozen=True, slots=True)
class Verdict:
    """`protocol` is a protocol string, or None: not recognised. `skip` are the octets of each side
    before the first frame. `scores` has every variant that was tried, best first. `marked`: the
    first octets can be nothing else. `stranger` names a well-known protocol that is not ours.
    `doubt`: the octets look like another protocol than the one that was named, and why."""

    protocol: str | None
    evidence: str
    score: int = 0
    skip: tuple[int, int] = (0, 0)
    scores: tuple[tuple[str, int], ...] = ()
    marked: bool = False
    stranger: str = ""
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class _Scored:
    scorer: Scorer
    trial: Trial
    mark: str
    score: int


def guess(sample: Sample) -> Verdict:
    """The protocol that explains the sample, with its evidence; or why there is none."""
    if not sample.octets:
        return Verdict(None, "no octets were captured")
    skip = (multistream_size(sample.head(0)), multistream_size(sample.head(1)))
    rest = sample.without(skip)
    found = _ranked(rest, SCORERS)
    scores = tuple((each.trial.text, each.score) for each in found)
    other = stranger(rest.head(0), rest.head(1))
    best = next((each for each in found if _believed(each, sample.started)), None)
    if best is not None and other and not best.mark and not best.trial.path:
        best = None  # what looks like TLS or HTTP is that, whatever else it could be
    if best is None:
        closest = ", ".join(f"{text} {score}" for text, score in scores[:3])
        said = other or f"no protocol fits; the closest: {closest}"
        return Verdict(None, said, 0, skip, scores, stranger=other)
    said = f"seen: {_evidence(best, skip)}"
    return Verdict(best.trial.text, said, best.score, skip, scores, bool(best.mark))


def settle(name: str, options: dict[str, str], sample: Sample) -> tuple[str, str]:
    """A protocol that was named: the variant that fits best, and what shows it ("" if nothing
    had to be found out)."""
    scorer = next((each for each in SCORERS if each.name == name), None)
    if scorer is None or not scorer.key or scorer.key in options:
        return _named(name, options), ""
    best = _ranked(sample, (scorer,), options)[0]
    if best.trial.fitting == 0:
        return _named(name, options), f"no {scorer.key} fits"
    return best.trial.text, f"{scorer.key} found: {_evidence(best, (0, 0))}"


def contradiction(settled: str, options: dict[str, str], sample: Sample) -> str:
    """What the sample plainly is instead of the protocol that was named; "" if it may be that one.

    `settled` is the variant it is read as, `options` are those the caller wrote. The named one is
    contradicted only by another one that fits better, or that its first octets give away.
    """
    if not sample.octets:
        return ""
    name = settled.partition(":")[0]
    scorer = next((each for each in SCORERS if each.name == name), None)
    excused = _excused(scorer, sample) if scorer else ()
    if _plainly(attempt(settled, sample.first(GLANCE), excused), scorer, sample):
        return ""
    own = attempt(settled, sample, excused)
    unread = not own.frames and not own.lost  # its first frame may only not be whole yet
    found = guess(sample)
    if found.protocol is None:
        upgrade = upgraded(sample.head(0), sample.head(1)) if name == "omnistreams" else NO
        if upgrade == MORE or (upgrade == YES and unread):
            return ""
        return found.stranger if int(100 * own.share) < ENOUGH else ""
    better = found.score > int(100 * own.share) and not (unread and sample.octets < FEW)
    if not found.marked and not better:
        return ""
    other = found.protocol.partition(":")[0]
    if other == name and found.skip != (0, 0):
        return f"{name} behind multistream-select, {name}:preamble=multistream"
    if other == name and not (scorer and scorer.key in options and found.protocol != settled):
        return ""
    return f"{found.protocol} ({found.evidence.removeprefix('seen: ')})"


def _plainly(trial: Trial, scorer: Scorer | None, sample: Sample) -> bool:
    """Is it the named protocol beyond doubt? Every frame fits; where that says little, content went
    as the protocol would have it and nothing marks another one."""
    if scorer is None or trial.share < 1:
        return False
    if scorer.proof is None:
        return True
    others = (each.mark for each in SCORERS if each is not scorer and each.mark is not None)
    return scorer.proof(trial) and not any(mark(sample) for mark in others)


def _ranked(
    sample: Sample, scorers: Iterable[Scorer], options: dict[str, str] | None = None
) -> list[_Scored]:
    """All variants that could be it, best first. A protocol that fits almost anything is not tried
    where another one fits so well that it could not be better."""
    certain = [scorer for scorer in scorers if scorer.proof is None]
    found = _tried(sample, certain, options, brief=True)
    if not any(_believed(each, sample.started) and _is_perfect(each) for each in found):
        if any(each.trial.given_up for each in found):
            found = _tried(sample, certain, options)
        doubtful = [scorer for scorer in scorers if scorer.proof is not None]
        found += _tried(sample, doubtful, options, others=found)
    # In the order of the scorers where nothing else decides: the most telling protocol first.
    return sorted(found, key=lambda each: (-bool(each.mark), -each.score))


def _tried(
    sample: Sample,
    scorers: Iterable[Scorer],
    options: dict[str, str] | None,
    *,
    others: Sequence[_Scored] = (),
    brief: bool = False,
) -> list[_Scored]:
    """What does not fit a few octets is not tried on many; nor is a protocol that fits almost
    anything, once another one is believed. `brief`: what has no mark is given up early."""
    glance = sample.first(GLANCE)
    found: list[_Scored] = []
    for scorer in scorers:
        if scorer.name in MAKERS:
            mark = scorer.mark(sample) if scorer.mark else ""
            found += [
                _scored(
                    scorer,
                    mark,
                    attempt(text, glance, _excused(scorer, sample), brief and not mark),
                )
                for text in scorer.variants(options or {})
            ]
    if glance.octets < sample.octets:
        believed = any(_believed(other, sample.started) for other in others)
        for number, each in enumerate(found):
            if each.trial.share <= 0.5 or (each.scorer.proof is not None and believed):
                continue
            trial = attempt(each.trial.text, sample, _excused(each.scorer, sample))
            found[number] = _scored(each.scorer, each.mark, trial)
    return found


def _is_perfect(each: _Scored) -> bool:
    return bool(each.mark) or each.score == 100


def _excused(scorer: Scorer, sample: Sample) -> tuple[str, ...]:
    return () if sample.started else scorer.excused


def _scored(scorer: Scorer, mark: str, trial: Trial) -> _Scored:
    return _Scored(scorer, trial, mark, int(100 * trial.share))


def _believed(each: _Scored, started: bool) -> bool:
    fitting = each.trial.fitting
    if each.scorer.proof is not None and not each.scorer.proof(each.trial):
        return False
    if each.mark:
        return fitting >= 1 and each.score >= MARKED
    if not started:
        return fitting >= max(UNSTARTED_FRAMES, each.scorer.frames) and each.score >= UNSTARTED
    return fitting >= each.scorer.frames and each.score >= ENOUGH


def _evidence(best: _Scored, skip: tuple[int, int]) -> str:
    trial = best.trial
    said = [best.mark] if best.mark else []
    if skip != (0, 0):
        said.append("multistream-select before it")
    said.append(f"{trial.fitting} of the first {trial.frames} frames fit")
    if trial.faults:
        rule, count = trial.faults.most_common(1)[0]
        said.append(f"{count} broke {rule}")
    if best.scorer.hints is not None:
        said += best.scorer.hints(trial)
    return "; ".join(said)


def _named(name: str, options: dict[str, str]) -> str:
    pairs = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}:{pairs}" if pairs else name
