"""`polymux recover`: publish the files of a killed recorder, and repair damaged captures."""

from __future__ import annotations

import os
import sys

import click

from polymux.capture.io.listing import expand
from polymux.cli.support.capture_walk import total_file_size
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.output import format_value, plural, warn
from polymux.cli.support.progress import ProgressBar, bytes_read_counter, print_line
from polymux.core.errors import CaptureError


@click.command(
    epilog="Example: polymux recover talk.pcapng.part, or polymux recover bad.pcapng --out good",
    no_args_is_help=True,
)
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--out", help="Copy every complete block of one FILE to this new file, skipping damage."
)
@click.pass_context
def recover(context: click.Context, files: tuple[str, ...], out: str | None) -> None:
    """Publish FILES that a killed recorder left as NAME.part, without their incomplete last block.

    With --out, FILE may be any truncated or damaged capture; it is not changed.
    """
    paths = [match for name in files for match in expand(name) or [name]]
    if out is not None and len(paths) != 1:
        raise click.UsageError("--out takes one FILE at a time")
    if out is not None and os.path.exists(out):
        raise click.UsageError(f"--out {out}: is there already; name a new file")
    code = 0
    with ProgressBar(
        "recovering", total_file_size(files), bytes_read_counter(), printing=sys.stdout.isatty()
    ):
        for path in paths:
            try:
                print_line(
                    format_value(publish_file(path) if out is None else repair_file(path, out))
                )
            except CaptureError as problem:
                warn(str(problem))
                code = EXIT_UNREADABLE
    context.exit(code)


def publish_file(path: str) -> str:
    from polymux.capture import index_file
    from polymux.capture import recover as publish

    name = publish(path)
    return f"{name}: published, {plural(index_file(name).summary.packets, 'packet')}"


def repair_file(path: str, out: str) -> str:
    from polymux.capture import repair

    done = repair(path, out)
    return (
        f"{out}: {plural(done.packets, 'packet')} in {done.bytes_kept} bytes; "
        f"{done.bytes_dropped} bytes left out, reading resumed {plural(done.resumed, 'time')}"
    )
