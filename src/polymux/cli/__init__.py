"""The command line: the group `polymux`, and how errors become one line and an exit code.

Each command is a module of `cli.commands` that is imported only when it is used, so that
`polymux ls` needs no Spark and `polymux --help` is fast. This is the top layer: it may
import every other package, and none imports it.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from importlib import import_module

import click

from polymux import __version__
from polymux.cli.support.exit_codes import (
    EXIT_INTERRUPTED,
    EXIT_LIMIT,
    EXIT_NO_PEER,
    EXIT_UNREADABLE,
    EXIT_USAGE,
)
from polymux.core.errors import (
    CaptureError,
    LimitExceeded,
    MissingExtra,
    PolymuxError,
    SessionClosed,
    StreamAborted,
    UnreadableInput,
    UnwritableOutput,
)

# Each is a module of `cli.commands` with a click command of the same name.
COMMANDS = (
    "analyze", "annotate", "bridge", "chaos", "check", "collect", "conform", "connect", "decode",
    "demo", "diff", "dissector", "doctor", "export", "follow", "frames", "index", "keys", "lake",
    "ls", "record", "recover", "redact", "replay", "report", "rules", "serve", "sql", "testee",
    "top", "tunnel",
)  # fmt: skip

ALIASES = {"analyse": "analyze"}

ARGUMENTS = "polymux.cli.arguments"  # in `click.Context.meta`: those of the whole command line


class OutputClosed(Exception):
    """The reader of standard output has closed it, as `head` does. Not an error."""


class Interrupted(Exception):
    """Ctrl-C inside a command. A KeyboardInterrupt would make click print an empty line."""


class LazyCommands(click.Group):
    """A group that imports the module of a command when the command is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments, for commands that run themselves in further processes."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__name__}.commands.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)  # by the convention of `COMMANDS`
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Distinguish a closed pipe, Ctrl-C and a missing extra from failures."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            raise OutputClosed from None
        except KeyboardInterrupt:
            raise Interrupted from None
        except ModuleNotFoundError as problem:
            from polymux.spark.runtime.doctor import extra_providing

            extra = extra_providing(problem.name or "")
            if extra is None:
                raise
            raise MissingExtra(extra, f"polymux {ctx.invoked_subcommand}") from None


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: polymux demo",
)
@click.version_option(__version__, "-V", "--version", prog_name="polymux")
def cli() -> None:
    """Connect to, record and analyse stream-multiplexing protocols."""


def main(member: object = None) -> None:
    """Run a command and exit. Expected errors become one line on standard error and a code.

    Args:
        member: The `cli.processes.member.Member` that this process is, if a command has started it
            as one of several.
    """
    open_closed_streams()
    try:
        sys.exit(cli(standalone_mode=False, obj=member))
    except (click.exceptions.Abort, Interrupted, KeyboardInterrupt):
        discard_output()
        # On a terminal the line begins with ^C.
        click.echo("\n" * sys.stderr.isatty() + "polymux: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as problem:
        from polymux.text.sanitize import escape_hidden

        message = io.StringIO()
        problem.show(message)
        lines = message.getvalue().split("\n")
        click.echo("\n".join(map(escape_hidden, lines)), err=True, nl=False)
        sys.exit(problem.exit_code)
    except OutputClosed:
        discard_output()
        sys.exit(0)
    except OSError as problem:  # reading files and peers raises other errors, so this is output
        from polymux.text.sanitize import escape_hidden

        discard_output()
        reason = problem.strerror or str(problem)
        click.echo(escape_hidden(f"polymux: the output cannot be written: {reason}"), err=True)
        sys.exit(EXIT_LIMIT)
    except PolymuxError as problem:
        from polymux.text.sanitize import escape_hidden

        click.echo(escape_hidden(f"polymux: {problem}"), err=True)
        sys.exit(exit_code_for(problem))


def open_closed_streams() -> None:
    """Open standard streams that are closed, at the null device.

    Otherwise what is opened next, such as a connection, takes their descriptors. `sys.stdin` stays
    None: what reads it says that it is closed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free: this one
            os.set_inheritable(number, True)
            if name != "stdin" and getattr(sys, name) is None:
                setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115


def discard_output() -> None:
    """Discard unwritable standard output: the interpreter would flush it again at exit and fail."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code_for(error: PolymuxError) -> int:
    """Return the exit code for an error that ended a command."""
    if isinstance(error, CaptureError | UnreadableInput):
        return EXIT_UNREADABLE
    if isinstance(error, LimitExceeded | UnwritableOutput):  # first: it may also be a SessionClosed
        return EXIT_LIMIT
    from polymux.aio.connect import Unreachable

    if isinstance(error, Unreachable | SessionClosed | StreamAborted):
        return EXIT_NO_PEER
    return EXIT_USAGE
