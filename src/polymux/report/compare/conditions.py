"""Conditions on changes, for gates: `stalled_us > +10%`, `violations > 0`, `resets > +5`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from polymux.core.errors import PolymuxError
from polymux.report.compare.comparison import MEASURES, Change

_PATTERN: Final = re.compile(
    r"\s*(?P<measure>[\w.:-]+?)\s*(?P<sign>[<>])\s*(?P<number>[+-]?\d+(?:\.\d+)?)\s*(?P<percent>%?)\s*",
    re.ASCII,
)
_DETAILED: Final = ("violations", "stalled_us")  # measures with a rule or cause after a colon


class BadCondition(PolymuxError):
    """A condition cannot be parsed; the text says how to write it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    `+10%` and `-10%` are relative changes, which count only if chance does not explain them (new
    and gone violations always count); `+5` and `-5` are absolute changes, likewise; a number
    without a sign is compared with the value after.
    """

    text: str
    measure: str
    rises: bool
    number: float
    relative: bool
    absolute_change: bool

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition.

        Raises:
            BadCondition: It is malformed, or names no measure.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise BadCondition(
                f"condition {text!r}: write MEASURE > +10%, MEASURE < -10%, MEASURE > +5 (change) "
                "or MEASURE > 5 (value after)"
            )
        measure, colon, _ = match["measure"].partition(":")
        if measure not in MEASURES or (colon and measure not in _DETAILED):
            raise BadCondition(
                f"condition {text!r}: no measure {match['measure']!r}; there are "
                f"{', '.join(MEASURES)}, and with a rule or cause violations:RULE and "
                "stalled_us:CAUSE"
            )
        signed = match["number"][0] in "+-"
        if match["percent"] and not signed:
            raise BadCondition(f"condition {text!r}: write the sign of the change, such as +10%")
        return cls(
            text.strip(), match["measure"], match["sign"] == ">", float(match["number"]),
            bool(match["percent"]), signed and not match["percent"],
        )  # fmt: skip

    def violating(self, changes: Iterable[Change]) -> list[Change]:
        """The changes for which the condition holds."""
        return [
            change for change in changes if change.measure == self.measure and self._holds(change)
        ]

    def _holds(self, change: Change) -> bool:
        found = change.difference
        if self.relative or self.absolute_change:
            if not (found.significant or change.reported or self.measure.startswith("violations")):
                return False
            value = 100 * found.change if self.relative else found.after - found.before
        else:
            value = found.after
        if math.isinf(value):
            return self.rises
        return value > self.number if self.rises else value < self.number
