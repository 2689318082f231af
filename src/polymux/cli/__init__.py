"""The command line. Each command is a small file here; `COMMANDS` lists them.

Imports everything below it; nobody imports this. A command's module is loaded when it is used, so
that `polymux ls` needs no Spark and `polymux --help` is quick.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from importlib import import_module

import click

from polymux import __version__
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

# Name of the command, and the module here that holds it under the same name.
COMMANDS = (
    "analyze", "check", "collect", "connect", "decode", "demo", "doctor", "follow", "frames",
    "index", "ls", "record", "recover", "report", "rules", "serve",
)  # fmt: skip

ALIASES = {"analyse": "analyze"}

EXIT_FINDINGS, EXIT_USAGE, EXIT_UNREADABLE, EXIT_NO_PEER, EXIT_LIMIT, EXIT_INTERRUPTED = (
    1,
    2,
    3,
    4,
    5,
    130,
)


class OutputClosed(Exception):
    """Whoever read our output has closed it, as `head` does: nothing is wrong."""


class Interrupted(Exception):
    """Ctrl-C; told apart here because click would answer it with an empty line."""


class LazyCommands(click.Group):
    """Finds a command by importing its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__name__}.commands.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; click would call a closed pipe a failure."""
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
    """Speak, record and analyse stream-multiplexing protocols."""


def main() -> None:
    """Run a command; every foreseeable problem is one line and an exit code."""
    try:
        sys.exit(cli(standalone_mode=False))
    except (click.exceptions.Abort, Interrupted, KeyboardInterrupt):
        discard_output()
        # A terminal has shown ^C.
        click.echo("\n" * sys.stderr.isatty() + "polymux: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as problem:
        from polymux.text.sanitize import escape_hidden

        said = io.StringIO()
        problem.show(said)
        click.echo("\n".join(map(escape_hidden, said.getvalue().split("\n"))), err=True, nl=False)
        sys.exit(problem.exit_code)
    except OutputClosed:
        discard_output()
        sys.exit(0)
    except OSError as problem:  # what reads files and peers has errors of its own
        from polymux.text.sanitize import escape_hidden

        discard_output()
        reason = problem.strerror or str(problem)
        click.echo(escape_hidden(f"polymux: the output cannot be written: {reason}"), err=True)
        sys.exit(EXIT_LIMIT)
    except PolymuxError as problem:
        from polymux.text.sanitize import escape_hidden

        click.echo(escape_hidden(f"polymux: {problem}"), err=True)
        sys.exit(exit_code_for(problem))


def discard_output() -> None:
    """Let what is left of standard output go: the interpreter flushes it once more at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code_for(error: PolymuxError) -> int:
    """The code of what ended a command: see `docs/commands.md`."""
    from polymux.aio.connect import Unreachable

    if isinstance(error, CaptureError | UnreadableInput):
        return EXIT_UNREADABLE
    if isinstance(error, LimitExceeded | UnwritableOutput):  # before: one that ended the session
        return EXIT_LIMIT
    if isinstance(error, Unreachable | SessionClosed | StreamAborted):
        return EXIT_NO_PEER
    return EXIT_USAGE
