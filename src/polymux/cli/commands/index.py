"""`polymux index`: write an index beside each capture, so that `analyze` can split it faster."""

from __future__ import annotations

import os

import click

from polymux.cli.support.capture_options import JSON_HELP
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.output import format_value, is_interactive, json_line, plural, warn
from polymux.core.errors import CaptureError


@click.command(epilog="Example: polymux index big.pcapng", no_args_is_help=True)
@click.argument("captures", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
@click.pass_context
def index(context: click.Context, captures: tuple[str, ...], as_json: bool) -> None:
    """Scan CAPTURES once and write FILE.idx beside each.

    With an index, `analyze` does not have to search for the offsets at which a large file can be
    split. An index that no longer matches its file is ignored.
    """
    from polymux.capture import find_captures, plan_ranges, write_index
    from polymux.cli.support.capture_walk import total_file_size
    from polymux.cli.support.progress import ProgressBar, bytes_read_counter, print_line

    interactive = is_interactive(as_json)
    code = 0
    paths = find_captures(captures)
    with ProgressBar(
        "indexing", total_file_size(captures), bytes_read_counter(), printing=interactive
    ):
        for path in paths:
            try:
                name = write_index(path)
            except CaptureError as problem:
                warn(str(problem))
                code = EXIT_UNREADABLE
                continue
            size = os.path.getsize(path)
            ranges = len(plan_ranges(path))
            if interactive:
                counts = f"{plural(ranges, 'range')}, {plural(size, 'byte')}"
                print_line(f"{format_value(name)}: {counts}")
            else:
                json_line({"file": path, "index": name, "bytes": size, "ranges": ranges})
    context.exit(code)
