"""`polymux index`: marks beside a capture, so that many readers can share it."""

from __future__ import annotations

import os

import click

from polymux.cli.support.output import format_value, is_interactive, json_line, plural, warn
from polymux.core.errors import CaptureError

EXIT_UNREADABLE = 3


@click.command(epilog="Example: polymux index big.pcapng", no_args_is_help=True)
@click.argument("captures", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="JSON lines; without it when piped, too.")
@click.pass_context
def index(context: click.Context, captures: tuple[str, ...], as_json: bool) -> None:
    """Walk CAPTURES once and write FILE.idx beside each: `analyze` then need not find out where
    a large file can be cut. An index that no longer fits its file is never used."""
    from polymux.capture import find_captures, plan_ranges, write_index
    from polymux.cli.support.capture_walk import total_file_size
    from polymux.cli.support.progress import ProgressBar, bytes_read_counter, print_line

    people = is_interactive(as_json)
    code = 0
    paths = find_captures(captures)
    with ProgressBar("indexing", total_file_size(captures), bytes_read_counter(), printing=people):
        for path in paths:
            try:
                name = write_index(path)
            except CaptureError as problem:
                warn(str(problem))
                code = EXIT_UNREADABLE
                continue
            size = os.path.getsize(path)
            cuts = plan_ranges(path)
            row = {"file": path, "index": name, "bytes": size, "ranges": len(cuts)}
            if people:
                ranges = plural(len(cuts), "range")
                print_line(f"{format_value(name)}: {ranges}, {plural(size, 'byte')}")
            else:
                json_line(row)
    context.exit(code)
