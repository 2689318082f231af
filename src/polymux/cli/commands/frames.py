"""`polymux frames`: print every frame, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import CaptureRequest, capture_options, format_option
from polymux.cli.support.capture_walk import analyze_captures
from polymux.cli.support.exit_codes import EXIT_USAGE
from polymux.cli.support.live_capture import analyze_live, is_live
from polymux.cli.support.output import TABLE, format_value, line_writer, rows_of, warn
from polymux.cli.support.progress import print_line

if TYPE_CHECKING:
    import pyarrow as pa

MAX_LISTED_VALUES = 40  # most streams or kinds that the message of `explain_no_match` lists


class LimitReached(Exception):
    """`--limit` frames have been printed."""


@click.command(
    epilog="Example: polymux frames talk.pcapng --stream d1 --limit 100", no_args_is_help=True
)
@capture_options
@format_option
@click.option("--stream", default="", help="Only this stream: d1, a2, d0.2, s0.")
@click.option(
    "--sender", type=click.Choice(["dialer", "acceptor"]), help="Only frames that this side sent."
)
@click.option("--kind", "kinds", multiple=True, help="Only frames of this kind; repeatable.")
@click.option(
    "--verdict",
    type=click.Choice(["clean", "crossed", "violation"]),
    help="Only frames with this verdict.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many frames.")
@click.pass_context
def frames(
    context: click.Context,
    request: CaptureRequest,
    output_format: str,
    stream: str,
    sender: str | None,
    kinds: tuple[str, ...],
    verdict: str | None,
    limit: int | None,
) -> None:
    """Print the frames of CAPTURES in the order in which they were captured.

    `-` reads a capture from standard input and prints each frame as soon as it is complete:
    `tcpdump -U -w - port 9000 | polymux frames -`.
    """
    if stream:
        from polymux.analysis.schema.stream_keys import parse_stream_key

        parse_stream_key(stream)
    write = print_frame if output_format == TABLE else line_writer(output_format)
    conditions = {"stream": stream, "sender": sender, "verdict": verdict}
    values = {name: value for name, value in conditions.items() if value}
    seen = SeenFrames(stream, kinds)
    printed = 0

    def emit(table: str, batch: pa.RecordBatch) -> None:
        nonlocal printed
        seen.add(batch)
        for row in rows_of(table, filter_batch(batch, values, kinds)):
            printed += 1
            write(row)
            if printed == limit:
                raise LimitReached

    options = request.analysis_options("frames")
    try:
        if is_live(request.files):
            code = analyze_live(request, options, emit)
        else:
            code = analyze_captures(request, options, emit, printing=output_format == TABLE)
    except LimitReached:
        code = 0
    if not printed:
        code = max(code, seen.explain_no_match())
    context.exit(code)


class SeenFrames:
    """The streams and kinds that exist, for the message when no frame matches the options."""

    def __init__(self, stream: str, kinds: tuple[str, ...]) -> None:
        self.frames = 0
        self._requested = {"stream": (stream,) if stream else (), "kind": kinds}
        self._existing: dict[str, dict[str, None]] = {"stream": {}, "kind": {}}

    def add(self, batch: pa.RecordBatch) -> None:
        self.frames += batch.num_rows
        for name, existing in self._existing.items():
            if self._requested[name] and len(existing) <= MAX_LISTED_VALUES:
                for value in batch.column(name).unique().to_pylist():
                    if value is not None:
                        existing[value] = None

    def explain_no_match(self) -> int:
        """Warn why nothing was printed. Return exit code 2 if a stream or kind does not exist."""
        if not self.frames:
            return 0  # either a warning gave the reason already, or nothing was sent
        code = 0
        for name, requested in self._requested.items():
            existing = self._existing[name]
            if (
                requested
                and len(existing) <= MAX_LISTED_VALUES
                and not any(value in existing for value in requested)
            ):
                listed = ", ".join(sorted(existing)[:MAX_LISTED_VALUES])
                warn(f"no frame has --{name} {', '.join(requested)}; there are: {listed}")
                code = EXIT_USAGE
        if not code:
            subject = (
                f"none of the {self.frames} frames matches"
                if self.frames > 1
                else "the only frame does not match"
            )
            warn(f"{subject} the options")
        return code


def filter_batch(
    batch: pa.RecordBatch, values: dict[str, str], kinds: tuple[str, ...]
) -> pa.RecordBatch:
    """Keep the rows whose columns have these values and whose kind is one of `kinds`, if any."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.output.arrow_batches import make_array, make_scalar

    mask = None
    for name, value in values.items():
        column = batch.column(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        equal = pc.equal(column, make_scalar(value, kind))
        mask = equal if mask is None else pc.and_(mask, equal)
    if kinds:
        listed = pc.is_in(batch.column("kind").cast(pa.string()), make_array(kinds, pa.string()))
        mask = listed if mask is None else pc.and_(mask, listed)
    return batch if mask is None else batch.filter(mask)


def print_frame(row: dict[str, object]) -> None:
    arrow = ">" if row["sender"] == "dialer" else "<"
    amount = f" amount {row['amount']}" if row["amount"] is not None else ""
    mark = "" if row["verdict"] == "clean" else f"  {row['verdict']}"
    time = row["time"]
    moment = f"{time:%H:%M:%S.%f}" if time is not None else ""
    print_line(
        format_value(
            f"{row['session_id']} {moment} {arrow} {row['frame_index']:>6} "
            f"{row['stream'] or '-':<6} "
            f"{row['kind']:<28} {row['payload_bytes']:>8} bytes{amount}{mark}"
        )
    )
