"""The entry point of the command `polymux`.

Importing polymux takes a few tenths of a second, during which Ctrl-C would print a traceback. This
module therefore is outside the package, imports almost nothing, and handles SIGINT while it imports
`polymux.cli`. Only `main` installs a signal handler; importing this module, or polymux, does not.
"""

import os
import signal

EXIT_INTERRUPTED = 130  # the same as in `polymux.cli.support.exit_codes`, not imported yet


def main() -> None:
    """Run the command. An interrupt prints one line and sets the exit code."""
    try:
        # SIGINT is ignored where a shell has started the command in the background.
        handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if handled:
            signal.signal(signal.SIGINT, exit_at_once)
        from polymux.cli import main as run

        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        print_interrupted()
        raise SystemExit(EXIT_INTERRUPTED) from None


def exit_at_once(number: int, frame: object) -> None:
    """End the process: an exception could be swallowed by a module that is being imported."""
    print_interrupted()
    os._exit(EXIT_INTERRUPTED)


def print_interrupted() -> None:
    """Write to the descriptor, because `sys.stderr` may be in the middle of a write."""
    try:  # noqa: SIM105  # importing contextlib takes time
        os.write(2, b"\n" * os.isatty(2) + b"polymux: interrupted\n")  # after the terminal's ^C
    except OSError:
        pass  # standard error is closed
