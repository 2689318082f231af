"""`polymux decode`: decode bytes, written in hex, into frames."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from polymux.analysis.schema.tables import SIDES
from polymux.cli.support.capture_options import JSON_HELP, keys_option, read_keys
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_FINDINGS
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

if TYPE_CHECKING:
    from polymux.analysis.detection.sample import SessionSample
    from polymux.analysis.tls.key_log import KeyLog
    from polymux.analysis.tls.layer import TlsLayer

MAX_INPUT_BYTES = 1 << 20  # most bytes read from standard input


@click.command(
    epilog="Example: polymux decode --protocol mplex '000161 0205 68656c6c6f' 'a: 0102 6869'",
    no_args_is_help=True,
)
@click.argument("pieces", nargs=-1, required=True, metavar="BYTES...")
@click.option(
    "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
    help="NAME[:key=value,...], or auto to detect it.",
)  # fmt: skip
@keys_option
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
@click.pass_context
def decode(
    context: click.Context,
    pieces: tuple[str, ...],
    protocol: str,
    key_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Decode BYTES, written in hex, and print the frames and violations.

    Each argument is a piece that the dialer sent, or the acceptor if it begins with `a:`. `-` reads
    pieces from standard input, one per line. Bytes of TLS that begin with its handshake are opened
    with --keys. Exit code 1 if there are violations.
    """
    from polymux.analysis.detection.detector import detect, select_variant
    from polymux.protocols.registry import create, parse_protocol

    parsed = [piece for text in pieces for piece in parse_pieces(text)]
    sample, layer = open_pieces(parsed, read_keys(key_files))
    if protocol == "auto":
        detection = detect(sample)
        if detection.protocol is None:
            raise click.UsageError(f"{detection.evidence}; name the protocol with --protocol")
        variant = detection.protocol
    else:
        choice = parse_protocol(protocol)
        variant, _ = select_variant(choice.name, choice.options, sample)
    observer = Observer(create(variant))
    for side, data, timestamp in sample.pieces:
        observer.feed(side, data, timestamp)
    rows, violations = frame_rows(observer), observer.take_violations()
    if layer is not None:
        use_wire_offsets(layer, rows, violations)
    if is_interactive(as_json):
        print_frames(variant, rows, violations, undecoded_remarks(observer))
    else:
        for row in rows:
            json_line({"protocol": variant, **row})
        for violation in violations:
            json_line(violation_row(violation))
        for remark in undecoded_remarks(observer):
            json_line({"remark": remark})
    failed = any(violation.rule.severity is not Severity.NOTE for violation in violations)
    context.exit(EXIT_FINDINGS if failed else 0)


def parse_pieces(text: str) -> list[tuple[int, bytes]]:
    """Parse one argument into (side, bytes) pairs: one pair, or for `-` one per line of input.

    Raises:
        click.UsageError: The text is not hexadecimal.
    """
    if text == "-":
        # Invalid UTF-8 is replaced here and then rejected as not hexadecimal.
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
            f"{format_value(text, 40)!r} is not hex; write '0001 61', or 'a: 0102 6869' for the "
            "acceptor"
        ) from None


def open_pieces(
    pieces: list[tuple[int, bytes]], keys: KeyLog | None
) -> tuple[SessionSample, TlsLayer | None]:
    """The bytes to decode: the pieces, or what is inside if they are TLS.

    Raises:
        click.UsageError: They are TLS and cannot be opened.
    """
    from polymux.analysis.detection.sample import SessionSample, add_pieces
    from polymux.analysis.tls.key_log import KeyLog
    from polymux.analysis.tls.layer import TlsLayer
    from polymux.analysis.tls.session import read_client_hello
    from polymux.capture import StreamBatch
    from polymux.capture.tcp.reassembly import PAYLOAD, TcpEvents

    sample = SessionSample(
        tuple((side, data, number) for number, (side, data) in enumerate(pieces))
    )
    if read_client_hello(sample.head(0)) is None:
        return sample, None
    layer = TlsLayer(keys or KeyLog())
    events = TcpEvents(max(1, len(pieces)))
    for number, (side, data) in enumerate(pieces):
        events.add(side, PAYLOAD, number, len(data), 0, 0)
    opened = layer.open(StreamBatch(events, b"".join(data for _, data in pieces)))
    if layer.failure:
        raise click.UsageError(f"TLS that was not opened: {layer.failure}")
    inside: list[tuple[int, bytes, int]] = []
    add_pieces(inside, opened, len(opened.data) + 1)
    return SessionSample(tuple(inside)), layer


def use_wire_offsets(
    layer: TlsLayer, rows: list[dict[str, object]], violations: list[Violation]
) -> None:
    """Change the offsets of frames and violations to those of the bytes that were given."""
    for row in rows:
        offset = row["byte_offset"]
        assert isinstance(offset, int)  # the column's type
        offsets = layer.offsets[SIDES.index(str(row["sender"]))]
        row["byte_offset"] = int(offsets.to_wire(offset))
    for violation in violations:
        offsets = layer.offsets[violation.sender]
        violation.byte_offset = int(offsets.to_wire(violation.byte_offset))


def frame_rows(observer: Observer) -> list[dict[str, object]]:
    """Rows of the frames table, without the columns that only a capture can give."""
    from polymux.analysis.output.frame_dicts import take_frame_rows

    rows = take_frame_rows(observer)
    for row in rows:
        del row["time"]
    return rows


def undecoded_remarks(observer: Observer) -> list[str]:
    """Describe the bytes that were not decoded, one sentence per side that has any."""
    remarks = []
    for side, name in enumerate(SIDES):
        direction = observer.connection.direction(side)
        if direction.decoding_stopped:
            remarks.append(f"decoding of the {name} stopped: {direction.stop_reason}")
        elif direction.in_payload or direction.buffered_bytes():
            size = (
                direction.frame_bytes_seen if direction.in_payload else direction.buffered_bytes()
            )
            remarks.append(f"{size} bytes of the {name} are an unfinished frame")
    return remarks


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
