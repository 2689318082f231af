"""`polymux decode`: bytes in hex, as frames."""

from __future__ import annotations

import sys

import click

from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import (
    TableColumn,
    console,
    format_value,
    is_interactive,
    json_line,
    print_table,
)
from polymux.core.observer import Observer
from polymux.core.rules import Severity, Violation

EXIT_FINDINGS = 1
SIDES = ("dialer", "acceptor")
MAX_INPUT_BYTES = 1 << 20  # bytes taken from standard input


@click.command(
    epilog="Example: polymux decode --protocol mplex '000161 0205 68656c6c6f' 'a: 0102 6869'",
    no_args_is_help=True,
)
@click.argument("chunks", nargs=-1, required=True)
@click.option(
    "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
    help="NAME[:key=value,...] or auto.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON lines; without it when piped, too.")
@click.pass_context
def decode(context: click.Context, chunks: tuple[str, ...], protocol: str, as_json: bool) -> None:
    """Decode BYTES, in hex: what the dialer sent, or with `a:` before it the acceptor.

    `-` reads them from standard input, a piece a line.
    """
    from polymux.analysis.detection.detector import detect, select_variant
    from polymux.analysis.detection.sample import SessionSample
    from polymux.protocols.registry import create, parse_protocol

    pieces = [piece for text in chunks for piece in parse_pieces(text)]
    sample = SessionSample(
        tuple((side, data, number) for number, (side, data) in enumerate(pieces))
    )
    if protocol == "auto":
        verdict = detect(sample)
        if verdict.protocol is None:
            raise click.UsageError(f"{verdict.evidence}; name the protocol with --protocol")
        text = verdict.protocol
    else:
        choice = parse_protocol(protocol)
        text, _ = select_variant(choice.name, choice.options, sample)
    observer = Observer(create(text))
    for side, data, at in sample.pieces:
        observer.feed(side, data, at)
    rows, found = frame_rows(observer), observer.take_violations()
    if is_interactive(as_json):
        print_frames(text, rows, found, undecoded_remarks(observer))
    else:
        for row in rows:
            json_line({"protocol": text, **row})
        for violation in found:
            json_line(violation_row(violation))
        for remark in undecoded_remarks(observer):
            json_line({"remark": remark})
    bad = any(violation.rule.severity is not Severity.NOTE for violation in found)
    context.exit(EXIT_FINDINGS if bad else 0)


def parse_pieces(text: str) -> list[tuple[int, bytes]]:
    """A piece in hex, with the letter of its sender; several from standard input."""
    if text == "-":
        # Whatever comes there: what is no text is no hex, and that is said below.
        lines = sys.stdin.buffer.read(MAX_INPUT_BYTES * 3).decode("utf-8", "replace").splitlines()
        return [piece for line in lines if line.strip() for piece in parse_pieces(line.strip())]
    letter, colon, rest = text.partition(":")
    side = {"d": 0, "a": 1}.get(letter.strip()) if colon else 0
    try:
        if side is None:
            raise ValueError
        return [(side, bytes.fromhex(rest if colon else text))]
    except ValueError:
        raise click.UsageError(
            f"{format_value(text, 40)!r} is not hex; write '0001 61', or 'a: 0102 6869' for the acceptor"
        ) from None


def frame_rows(observer: Observer) -> list[dict[str, object]]:
    """The rows of the frames table that need no capture."""
    from polymux.analysis.output.frame_dicts import take_frame_rows

    rows = take_frame_rows(observer)
    for row in rows:
        del row["time"]
    return rows


def undecoded_remarks(observer: Observer) -> list[str]:
    """What was not decoded, a sentence for each side."""
    said = []
    for side, word in enumerate(SIDES):
        direction = observer.connection.direction(side)
        if direction.decoding_stopped:
            said.append(f"the {word} could not be decoded on: {direction.stop_reason}")
        elif direction.in_payload or direction.buffered_bytes():
            left = (
                direction.frame_bytes_seen if direction.in_payload else direction.buffered_bytes()
            )
            said.append(f"{left} bytes of the {word} are an unfinished frame")
    return said


def violation_row(violation: Violation) -> dict[str, object]:
    return {
        "rule": violation.rule.name,
        "severity": violation.rule.severity.value,
        "sender": SIDES[violation.sender],
        "frame_index": violation.frame_index,
        "byte_offset": violation.byte_offset,
        "stream": violation.stream or None,
        "detail": violation.detail,
        "sentence": violation.rule.sentence,
        "section": violation.rule.section,
    }


def print_frames(
    protocol: str, rows: list[dict[str, object]], violations: list[Violation], remarks: list[str]
) -> None:
    columns = (
        "sender",
        TableColumn("byte", right_aligned=True),
        TableColumn("size", right_aligned=True),
        "kind",
        "stream",
        "amount",
        "verdict",
    )
    names = ("sender", "byte_offset", "size", "kind", "stream", "amount", "verdict")
    print_table(protocol, columns, [[row[name] for name in names] for row in rows])
    for violation in violations:
        line = f"{violation.rule.severity.value}: {violation}. {violation.rule.sentence}"
        console().print(format_value(line), markup=False, soft_wrap=True)
    for remark in remarks:
        console().print(format_value(remark), markup=False, soft_wrap=True)
