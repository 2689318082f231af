"""`polymux top`: a live view of a recording, a collector, or the sessions of a program."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import click

from polymux.capture.io.paths import is_url
from polymux.cli.support.capture_options import CaptureRequest, selection_options
from polymux.cli.support.output import json_line
from polymux.cli.top.state import TopState
from polymux.core.errors import CaptureError

if TYPE_CHECKING:
    from polymux.cli.top.terminal import Screen
    from polymux.cli.top.view import TopView

DEFAULT_RATE: Final = 5.0  # screens a second
SETTLE_SECONDS: Final = 0.25  # longer than a capture must be silent to be read to its end
READ_SECONDS: Final = 0.05  # longest time between two looks at the keys


class Watch(Protocol):
    """What is watched."""

    def pump(self, seconds: float) -> bool:
        """Read for at most `seconds`. Return whether there is more to read at once."""

    def state(self) -> TopState:
        """What goes on now."""

    def close(self) -> None:
        """Free what it holds."""


@click.command(epilog="Example: polymux top talk.pcapng", no_args_is_help=True)
@partial(selection_options, metavar="CAPTURE|URL")
@click.option(
    "--hz", type=click.FloatRange(0.1, 30), default=DEFAULT_RATE, show_default=True,
    help="Screens a second.",
)  # fmt: skip
@click.option(
    "--once", is_flag=True,
    help="Print the state as JSON lines once everything there is was read, and stop.",
)  # fmt: skip
def top(request: CaptureRequest, hz: float, once: bool) -> None:
    """Show what goes on now: streams that wait and why, sessions, findings as they happen.

    CAPTURE is a file that is being written, or is complete; the name of a rotation; a directory of
    captures; or - for standard input. URL is the unix:// socket of a process: of `record --top`,
    of `collect --top`, or of a program with a polymux.metrics.StateSocket. Press ? for the keys.
    """
    if len(request.files) != 1:
        raise click.UsageError("give one capture, directory or URL")
    if once:
        watch = open_watch(request)
        try:
            print_once(watch)
        finally:
            watch.close()
    else:
        run_screen(request, hz)


def open_watch(request: CaptureRequest) -> Watch:
    """What the argument names.

    Raises:
        click.UsageError: An option is malformed.
        CaptureError: There is nothing to read.
        Unreachable: No process answers at the URL.
    """
    from polymux.cli.top.processes import MeterWatch, RecorderWatch
    from polymux.cli.top.state_client import StateClient

    name = request.files[0]
    options = request.analysis_options("streams", "violations", "stalls")
    if is_url(name):
        client = StateClient(name)
        try:
            state = client.request()
            if state.get("kind") == "sessions":
                return MeterWatch(client)
            return RecorderWatch(client, state, request, options)
        except BaseException:
            client.close()
            raise
    from polymux.cli.top.captures import CaptureWatch

    try:
        return CaptureWatch(request, options)
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None


def print_once(watch: Watch) -> None:
    """Read what there is, and print totals, sessions, streams and findings as JSON lines.

    Raises:
        CaptureError: Nothing of it is a capture.
    """
    for pause in (SETTLE_SECONDS, 0.0):
        while watch.pump(1.0):
            pass
        time.sleep(pause)  # then a protocol that is not decided yet is decided by what there is
    state = watch.state()
    if state.failure:
        raise CaptureError(state.failure)
    totals = {"what": state.title, "status": state.status, **asdict(state.totals)}
    json_line({"table": "totals", **totals})
    for table in ("sessions", "streams", "findings"):
        for line in getattr(state, table):
            json_line({"table": table, **asdict(line)})


def run_screen(request: CaptureRequest, hz: float) -> None:
    """Draw the screen until q is pressed, then print the totals.

    Raises:
        click.UsageError: There is no terminal to draw on.
    """
    from polymux.cli.top.terminal import NoTerminal, Screen
    from polymux.cli.top.view import TopView, findings_text, totals_text

    view = TopView()
    try:
        screen = Screen()
        watch = open_watch(request)
        try:
            with screen:
                draw_until_quit(screen, view, watch, 1 / hz)
        finally:
            watch.close()
    except NoTerminal as problem:
        raise click.UsageError(
            f"top needs a terminal: {problem}; --once prints the state as JSON lines, and "
            "`polymux ls` lists a capture"
        ) from None
    sys.stdout.write(f"{totals_text(view.state)}\n{findings_text(view.state)}\n")


def draw_until_quit(screen: Screen, view: TopView, watch: Watch, interval: float) -> None:
    """Read, draw every `interval` seconds, and react to keys at once."""
    next_draw = 0.0
    while not view.quitting and not screen.stopped:
        more = watch.pump(READ_SECONDS)
        now = time.monotonic()
        changed = now >= next_draw
        if changed:
            view.show(watch.state())
            screen.draw(view.lines(*screen.size))
            next_draw = time.monotonic() + interval
        wait = 0.0 if more else min(next_draw - time.monotonic(), interval)
        pressed = False
        for key in screen.keys(wait):
            view.press(key)
            pressed = True
        if pressed and not view.quitting:
            screen.draw(view.lines(*screen.size))
