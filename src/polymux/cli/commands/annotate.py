"""`polymux annotate`: a copy of a capture with its findings as packet comments."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import click

from polymux.capture import find_captures
from polymux.capture.io.sources import STDIN
from polymux.capture.pcapng.rewrite import CaptureEdit, rewrite
from polymux.cli.commands.check import SEVERITIES
from polymux.cli.support.capture_options import (
    PROTOCOL_HELP,
    CaptureRequest,
    keys_option,
)
from polymux.cli.support.capture_walk import CaptureRun
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.output import format_value, plural, warn
from polymux.cli.support.packet_findings import SessionFindings
from polymux.cli.support.progress import print_line
from polymux.text.sanitize import escape_hidden

MAX_COMMENTS = 1_000_000  # findings that are kept in memory for the copy


@click.command(
    epilog="Example: polymux annotate talk.pcapng -o talk-findings.pcapng", no_args_is_help=True
)
@click.argument("capture")
@click.option("-o", "--out", required=True, help="The new file; it must not exist.")
@click.option(
    "--protocol",
    default="auto",
    show_default=True,
    shell_complete=protocol_names,
    help=PROTOCOL_HELP,
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    help="Only this port, and optionally its protocol: 9000=mplex.",
)
@click.option("--filter", "filters", multiple=True, help="Only these flows: host:port.")
@keys_option
@click.option(
    "--severity",
    type=click.Choice(SEVERITIES),
    default="warning",
    show_default=True,
    help="Comment on violations of this severity or worse.",
)
@click.option("--stalls/--no-stalls", default=True, show_default=True, help="Comment on stalls.")
@click.pass_context
def annotate(
    context: click.Context,
    capture: str,
    out: str,
    protocol: str,
    ports: tuple[str, ...],
    filters: tuple[str, ...],
    key_files: tuple[str, ...],
    severity: str,
    stalls: bool,
) -> None:
    """Copy CAPTURE to a new pcapng file in which every finding is a packet comment.

    Wireshark lists the comments under Analyze > Expert Information and finds them with the filter
    `frame.comment`. A violation is a comment of the packet in which its frame ends, a stall of the
    packet that ends it. The packets themselves stay as they are.
    """
    request = CaptureRequest((capture,), protocol, ports, filters, "", key_files)
    tables = ("frames", "violations", "stalls") if stalls else ("frames", "violations")
    options = request.analysis_options(*tables)
    severities = SEVERITIES[SEVERITIES.index(severity) :]
    path = only_capture(capture)
    places: list[tuple[int, str]] = []
    with CaptureRun(request, options) as run:
        for session in run.sessions():
            findings = SessionFindings(severities, stalls)
            run.analyze(session, options, findings.emit)
            places += findings.locate(session)
    left_out = len(places) - MAX_COMMENTS
    if left_out > 0:
        warn(f"{plural(left_out, 'finding')} beyond the first {MAX_COMMENTS} left out")
        del places[MAX_COMMENTS:]
    places.sort()
    done = rewrite(path, out, PacketComments(places))
    code = run.exit_code
    if done.damage:
        warn(f"{capture}: the copy ends at {done.damage}")
        code = EXIT_UNREADABLE
    found = f"{plural(len(places), 'finding')} in {plural(done.packets, 'packet')}"
    print_line(format_value(f"{out}: {found}"))
    context.exit(code)


def only_capture(name: str) -> str:
    """The one file that a name stands for.

    Raises:
        click.UsageError: It is several.
        CaptureError: There is none.
    """
    if name == STDIN:
        raise click.UsageError("a copy needs a file, not standard input")
    paths = find_captures((name,))
    if len(paths) != 1:
        raise click.UsageError(f"{name}: name one file, not {len(paths)}")
    return paths[0]


class PacketComments(CaptureEdit):
    """Adds comments to packets.

    Args:
        places: offsets of bytes of packets, and the comments, in ascending order.
    """

    def __init__(self, places: Sequence[tuple[int, str]]) -> None:
        self._offsets = [offset for offset, _ in places]
        self._texts = [escape_hidden(text) for _, text in places]
        self._next = 0

    def touches(self, offset: int, size: int) -> bool:
        offsets, number = self._offsets, self._next
        return number < len(offsets) and offsets[number] < offset + size

    def change(
        self, offset: int, data: bytes, original_length: int, link_type: int
    ) -> tuple[bytes, Sequence[str]]:
        first = self._next
        self._next = bisect_left(self._offsets, offset + len(data), first)
        return data, self._texts[first : self._next]
