"""`--fail-on`: whether what was found makes a command fail."""

from __future__ import annotations

from collections.abc import Mapping

from .summary import CAUSES
from .worst import GIVEN_UP

FINDINGS = 1  # the exit code
Row = Mapping[str, object]


class Failing:
    """Counts findings as rows pass. Notes, idle senders and streams that are open are none."""

    def __init__(self) -> None:
        self.violations = 0
        self.others = 0  # stalls, and streams that were given up

    def row(self, table: str, row: Row) -> None:
        if table == "violations":
            self.violations += row["severity"] != "note"
        elif table == "stalls":
            self.others += row["cause"] in CAUSES
        elif table == "streams":
            self.others += row["ending"] in GIVEN_UP

    def code(self, fail_on: str | None, otherwise: int) -> int:
        """The exit code: 1 if something was found that matters, else that of the reading."""
        found = self.violations if fail_on == "violations" else self.violations + self.others
        return FINDINGS if fail_on is not None and found else otherwise
