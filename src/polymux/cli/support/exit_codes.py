"""The exit codes of all commands, and the rule of `--fail-on`.

0 means success; `docs/commands.md` lists the others for users. Imports nothing, so that
`polymux --help` stays fast.
"""

from __future__ import annotations

EXIT_FINDINGS = 1  # violations or stalls were found, where the command reports them as a failure
EXIT_USAGE = 2  # a wrong option or name, or an extra that is not installed
EXIT_UNREADABLE = 3  # the input is missing, unreadable or damaged, or content is missing from it
EXIT_NO_PEER = 4  # the peer could not be reached, disconnected, or aborted the stream
EXIT_LIMIT = 5  # a limit was exceeded, or the output could not be written
EXIT_INTERRUPTED = 130  # Ctrl-C, as shells report it


def fail_on_exit_code(fail_on: str | None, findings: int, stalls: int, default: int) -> int:
    """Apply `--fail-on`.

    Args:
        fail_on: `findings`, `violations`, or None if the option was not given.
        findings: Violations of severity warning or error, plus `stalls`.
        stalls: The stalls among them.
        default: The exit code of reading the captures.

    Returns:
        `EXIT_FINDINGS` if anything of the kind that `fail_on` names was found, else `default`.
    """
    count = findings - stalls if fail_on == "violations" else findings
    return EXIT_FINDINGS if fail_on is not None and count else default
