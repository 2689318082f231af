"""`polymux frames`: every frame, one a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import (
    CaptureRequest,
    capture_options,
    format_option,
    session_option,
)
from polymux.cli.support.capture_walk import analyze_captures
from polymux.cli.support.live_capture import analyze_live, is_live
from polymux.cli.support.output import (
    TABLE,
    chosen_format,
    format_value,
    line_writer,
    rows_of,
    warn,
)
from polymux.cli.support.progress import print_line

if TYPE_CHECKING:
    import pyarrow as pa


EXIT_USAGE = 2
MAX_LISTED_VALUES = 40  # streams or kinds that are listed, where none of them was asked for


class LimitReached(Exception):
    """As many frames as were wanted have been printed."""


@click.command(
    epilog="Example: polymux frames talk.pcapng --stream d1 --limit 100", no_args_is_help=True
)
@capture_options
@format_option
@session_option
@click.option("--stream", default="", help="Only this stream: d1, a2, d0.2, s0.")
@click.option("--sender", type=click.Choice(["dialer", "acceptor"]), help="Only this side.")
@click.option("--kind", "kinds", multiple=True, help="Only frames of this kind.")
@click.option(
    "--verdict",
    type=click.Choice(["clean", "crossed", "violation"]),
    help="Only with this verdict.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after so many.")
@click.pass_context
def frames(
    context: click.Context,
    captures: tuple[str, ...],
    protocol: str,
    ports: tuple[str, ...],
    filters: tuple[str, ...],
    session: str,
    as_json: bool,
    form: str | None,
    stream: str,
    sender: str | None,
    kinds: tuple[str, ...],
    verdict: str | None,
    limit: int | None,
) -> None:
    """Print the frames of CAPTURES in the order in which they passed.

    `-` reads a capture from standard input and prints frames as they become whole:
    `tcpdump -U -w - port 9000 | polymux frames -`.
    """
    if stream:
        from polymux.analysis.schema.stream_keys import parse_stream_key

        parse_stream_key(stream)
    asked = CaptureRequest(captures, protocol, ports, filters, session)
    form = chosen_format(as_json, form)
    put = print_frame if form == TABLE else line_writer(form)
    wanted: dict[str, object] = {"stream": stream or None, "sender": sender, "verdict": verdict}
    there = SeenFrames(stream, kinds)
    printed = 0

    def emit(table: str, batch: pa.RecordBatch) -> None:
        nonlocal printed
        there.add(batch)
        chosen = filter_batch(
            batch, {name: value for name, value in wanted.items() if value}, kinds
        )
        for row in rows_of(table, chosen):
            printed += 1
            put(row)
            if printed == limit:
                raise LimitReached

    try:
        if is_live(captures):
            code = analyze_live(asked, asked.analysis_options("frames"), emit)
        else:
            code = analyze_captures(
                asked, asked.analysis_options("frames"), emit, printing=form == TABLE
            )
    except LimitReached:
        code = 0
    if not printed:
        code = max(code, there.explain_no_match())
    context.exit(code)


class SeenFrames:
    """What frames there are, for the case that none of them is what was asked for."""

    def __init__(self, stream: str, kinds: tuple[str, ...]) -> None:
        self.frames = 0
        self._wanted = {"stream": (stream,) if stream else (), "kind": kinds}
        self._found: dict[str, dict[str, None]] = {"stream": {}, "kind": {}}

    def add(self, batch: pa.RecordBatch) -> None:
        self.frames += batch.num_rows
        for name, found in self._found.items():
            if self._wanted[name] and len(found) <= MAX_LISTED_VALUES:
                for value in batch.column(name).unique().to_pylist():
                    if value is not None:
                        found[value] = None

    def explain_no_match(self) -> int:
        """Say why nothing was printed; exit code 2 if something was named that is not there."""
        if not self.frames:
            return 0  # it was said why, or nothing was sent
        code = 0
        for name, wanted in self._wanted.items():
            found = self._found[name]
            if (
                wanted
                and len(found) <= MAX_LISTED_VALUES
                and not any(value in found for value in wanted)
            ):
                listed = ", ".join(sorted(found)[:MAX_LISTED_VALUES])
                warn(f"no frame has --{name} {', '.join(wanted)}; there are: {listed}")
                code = EXIT_USAGE
        if not code:
            many = (
                f"none of the {self.frames} frames is"
                if self.frames > 1
                else "the only frame is not"
            )
            warn(f"{many} what was asked for")
        return code


def filter_batch(
    batch: pa.RecordBatch, wanted: dict[str, object], kinds: tuple[str, ...]
) -> pa.RecordBatch:
    """The rows that have these values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.arrow.arrays import make_array, make_scalar

    test = None
    for name, value in wanted.items():
        column = batch.column(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        found = pc.equal(column, make_scalar(value, kind))
        test = found if test is None else pc.and_(test, found)
    if kinds:
        found = pc.is_in(batch.column("kind").cast(pa.string()), make_array(kinds, pa.string()))
        test = found if test is None else pc.and_(test, found)
    return batch if test is None else batch.filter(test)


def print_frame(row: dict[str, object]) -> None:
    arrow = ">" if row["sender"] == "dialer" else "<"
    amount = f" amount {row['amount']}" if row["amount"] is not None else ""
    mark = "" if row["verdict"] == "clean" else f"  {row['verdict']}"
    at = row["time"]
    moment = f"{at:%H:%M:%S.%f}" if at is not None else ""
    print_line(
        format_value(
            f"{row['session_id']} {moment} {arrow} {row['frame_index']:>6} "
            f"{row['stream'] or '-':<6} "
            f"{row['kind']:<28} {row['payload_bytes']:>8} bytes{amount}{mark}"
        )
    )
