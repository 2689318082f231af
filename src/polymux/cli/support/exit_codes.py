"""`--fail-on`: whether what was found makes a command fail."""

from __future__ import annotations

EXIT_FINDINGS = 1


def fail_on_exit_code(fail_on: str | None, findings: int, stalls: int, default: int) -> int:
    """1 if something was found that `fail_on` names, else the code of the reading.

    `findings` are the violations that are no notes, and the `stalls`, as every command counts them.
    """
    found = findings - stalls if fail_on == "violations" else findings
    return EXIT_FINDINGS if fail_on is not None and found else default
