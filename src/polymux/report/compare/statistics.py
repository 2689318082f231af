"""Whether a difference between two samples is more than chance.

Percentiles are compared by the bootstrap. A bootstrap replicate of the k-th of n sorted values is
the value at place n*B, where B has the distribution Beta(k, n - k + 1): drawing B replaces drawing
and sorting n values. Counts are compared by the exact binomial test, sums of durations as sums of a
random number of random durations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, stdev
from typing import Final

REPLICATES: Final = 400  # enough for a standard error that is right to 4 percent
MIN_TAIL_VALUES: Final = 10  # values beyond a percentile, without which it is not compared
MIN_EVENTS: Final = 10  # of each side, without which a sum is compared by its number of events
MAX_EXACT_EVENTS: Final = 1000  # more are compared by the normal distribution
_SEED: Final = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A value before and after, with the interval of the relative change.

    `change`, `low` and `high` are shares (0.2: 20 percent more), infinite where there was nothing
    before. `significant`: chance does not explain it, at the level that was asked for.
    """

    before: float
    after: float
    change: float
    low: float
    high: float
    significant: bool


def percentile_place(count: int, share: float) -> int:
    """The place, from 1, of a percentile among `count` sorted values (nearest rank)."""
    return max(1, math.ceil(share * count))


def can_compare_percentile(count: int, share: float) -> bool:
    """Whether there are enough values beyond a percentile."""
    return count * min(share, 1 - share) >= MIN_TAIL_VALUES - 1e-9


def compare_percentile(
    before: Sequence[int], after: Sequence[int], share: float, alpha: float
) -> Difference:
    """Compare a percentile of two samples of sorted values; `alpha` is the level of the test."""
    rng = Random(_SEED)
    first = before[percentile_place(len(before), share) - 1]
    second = after[percentile_place(len(after), share) - 1]
    logs = [
        _log(_replicate(rng, after, share)) - _log(_replicate(rng, before, share))
        for _ in range(REPLICATES)
    ]
    return _difference(first, second, _log(second) - _log(first), stdev(logs), alpha)


def compare_counts(
    before: int, of_before: int, after: int, of_after: int, alpha: float
) -> Difference:
    """Compare how often something happened, `before` in `of_before` cases and so on."""
    probability = binomial_test(after, before + after, of_after / (of_before + of_after))
    # Half an event more on both sides keeps the interval finite.
    log_ratio = math.log((after + 0.5) / of_after) - math.log((before + 0.5) / of_before)
    error = math.sqrt(1 / (before + 0.5) + 1 / (after + 0.5))
    found = _difference(before / of_before, after / of_after, log_ratio, error, alpha)
    return Difference(before, after, found.change, found.low, found.high, probability < alpha)


def compare_sums(
    before: tuple[int, int, int], of_before: int, after: tuple[int, int, int], of_after: int,
    alpha: float,
) -> Difference:  # fmt: skip
    """Compare sums of durations, each given as count, sum and sum of squares, in so many cases."""
    if min(before[0], after[0]) < MIN_EVENTS:
        counted = compare_counts(before[0], of_before, after[0], of_after, alpha)
        change = _change(before[1] / of_before, after[1] / of_after)
        # Few events: their number decides, and the interval is that of the number.
        return Difference(
            before[1], after[1], change, counted.low, counted.high, counted.significant
        )
    first, second = before[1] / of_before, after[1] / of_after
    error = math.sqrt(_sum_variance(*before, of_before) + _sum_variance(*after, of_after))
    found = _difference(first, second, _log(second) - _log(first), error, alpha)
    return Difference(before[1], after[1], found.change, found.low, found.high, found.significant)


def _sum_variance(count: int, total: int, squares: int, cases: int) -> float:
    """The relative variance of a sum, if each case has one of the durations or none."""
    if not total:
        return 0.0
    return max(0.0, squares / total**2 - 1 / max(cases, count))


def binomial_test(successes: int, trials: int, share: float) -> float:
    """The two-sided probability of a number of successes at least as unlikely as this one."""
    if trials == 0 or share <= 0 or share >= 1:
        return 1.0
    if trials > MAX_EXACT_EVENTS:
        deviation = abs(successes - trials * share) - 0.5
        return 2 * (1 - NormalDist().cdf(deviation / math.sqrt(trials * share * (1 - share))))
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(share) + (trials - k) * math.log(1 - share)
        for k in range(trials + 1)
    ]  # fmt: skip
    limit = logs[successes] + 1e-9
    return min(1.0, sum(math.exp(value) for value in logs if value <= limit))


def _replicate(rng: Random, values: Sequence[int], share: float) -> int:
    count = len(values)
    place = percentile_place(count, share)
    return values[min(count - 1, int(count * rng.betavariate(place, count - place + 1)))]


def _difference(
    before: float, after: float, log_ratio: float, error: float, alpha: float
) -> Difference:
    reach = NormalDist().inv_cdf(1 - alpha / 2) * error
    return Difference(
        before, after, _change(before, after), _share(log_ratio - reach), _share(log_ratio + reach),
        abs(log_ratio) > reach and before != after,
    )  # fmt: skip


def _share(log_ratio: float) -> float:
    return math.exp(min(log_ratio, 100.0)) - 1


def _change(before: float, after: float) -> float:
    if before:
        return after / before - 1
    return math.inf if after else 0.0


def _log(value: float) -> float:
    return math.log(max(value, 0.5))  # a duration of 0 is one below the clock's resolution
