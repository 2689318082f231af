"""Where the command `polymux` begins.

Importing polymux takes a few tenths of a second, and Python answers an interrupt meanwhile with a
traceback. So this lies outside of the package, whose import it surrounds, and itself imports almost
nothing. Only `main` sets a signal handler: importing this module, or polymux, does not.
"""

import os
import signal

INTERRUPTED = 130  # as in `polymux.cli`, which says the same once it is there


def main() -> None:
    """Run the command; from here on an interrupt is one line and an exit code."""
    try:
        heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if heard:  # it is not where a shell has started the command in the background
            signal.signal(signal.SIGINT, leave)
        from polymux.cli import main as run

        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        say()
        raise SystemExit(INTERRUPTED) from None


def leave(number: int, frame: object) -> None:
    """End the process at once: an exception could get lost in what is being imported."""
    say()
    os._exit(INTERRUPTED)


def say() -> None:
    """Not through `sys.stderr`, which may be in the middle of a write."""
    try:  # noqa: SIM105  # contextlib takes its time to be imported
        os.write(2, b"\n" * os.isatty(2) + b"polymux: interrupted\n")  # a terminal has shown ^C
    except OSError:
        pass  # standard error is closed
