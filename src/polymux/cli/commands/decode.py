"""`polymux decode`: octets in hex, as frames."""

from __future__ import annotations

import sys

import click

from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import Column, console, for_people, json_line, print_table, shown
from polymux.core.observer import Observer
from polymux.core.rules import Severity, Violation

FINDINGS = 1
SIDES = ("dialer", "acceptor")
MOST = 1 << 20  # octets taken from standard input


@click.command(
    epilog="Example: polymux decode --protocol mplex '000161 0205 68656c6c6f' 'a: 0102 6869'",
    no_args_is_help=True,
)
@click.argument("octets", nargs=-1, required=True)
@click.option(
    "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
    help="NAME[:key=value,...] or auto.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON lines; without it when piped, too.")
@click.pass_context
def decode(context: click.Context, octets: tuple[str, ...], protocol: str, as_json: bool) -> None:
    """Decode OCTETS, in hex: what the dialer sent, or with `a:` before it the acceptor.

    `-` reads them from standard input, a piece a line.
    """
    from polymux.analysis.detection.detector import guess, settle
    from polymux.analysis.detection.sample import Sample
    from polymux.protocols.registry import create, parse

    pieces = [piece for text in octets for piece in read(text)]
    sample = Sample(tuple((side, data, number) for number, (side, data) in enumerate(pieces)))
    if protocol == "auto":
        verdict = guess(sample)
        if verdict.protocol is None:
            raise click.UsageError(f"{verdict.evidence}; name the protocol with --protocol")
        text = verdict.protocol
    else:
        choice = parse(protocol)
        text, _ = settle(choice.name, choice.options, sample)
    observer = Observer(create(text))
    for side, data, at in sample.pieces:
        observer.feed(side, data, at)
    rows, found = frames(observer), observer.take_violations()
    if for_people(as_json):
        print_frames(text, rows, found, remains(observer))
    else:
        for row in rows:
            json_line({"protocol": text, **row})
        for violation in found:
            json_line(violation_row(violation))
        for remark in remains(observer):
            json_line({"remark": remark})
    bad = any(violation.rule.severity is not Severity.NOTE for violation in found)
    context.exit(FINDINGS if bad else 0)


def read(text: str) -> list[tuple[int, bytes]]:
    """A piece in hex, with the letter of its sender; several from standard input."""
    if text == "-":
        # Whatever comes there: what is no text is no hex, and that is said below.
        lines = sys.stdin.buffer.read(MOST * 3).decode("utf-8", "replace").splitlines()
        return [piece for line in lines if line.strip() for piece in read(line.strip())]
    letter, colon, rest = text.partition(":")
    side = {"d": 0, "a": 1}.get(letter.strip()) if colon else 0
    try:
        if side is None:
            raise ValueError
        return [(side, bytes.fromhex(rest if colon else text))]
    except ValueError:
        raise click.UsageError(
            f"{shown(text, 40)!r} is not hex; write '0001 61', or 'a: 0102 6869' for the acceptor"
        ) from None


def frames(observer: Observer) -> list[dict[str, object]]:
    """The rows of the frames table that need no capture."""
    from polymux.analysis.output.frame_dicts import take_frame_rows

    rows = take_frame_rows(observer)
    for row in rows:
        del row["time"]
    return rows


def remains(observer: Observer) -> list[str]:
    """What was not decoded, a sentence for each side."""
    said = []
    for side, word in enumerate(SIDES):
        direction = observer.conversation.direction(side)
        if direction.lost:
            said.append(f"the {word} could not be decoded on: {direction.reason}")
        elif direction.open or direction.waiting():
            left = direction.done if direction.open else direction.waiting()
            said.append(f"{left} octets of the {word} are an unfinished frame")
    return said


def violation_row(violation: Violation) -> dict[str, object]:
    return {
        "rule": violation.rule.name,
        "severity": violation.rule.severity.value,
        "sender": SIDES[violation.sender],
        "frame_index": violation.ordinal,
        "byte_offset": violation.offset,
        "stream": violation.stream or None,
        "detail": violation.detail,
        "sentence": violation.rule.sentence,
        "section": violation.rule.section,
    }


def print_frames(
    text: str, rows: list[dict[str, object]], found: list[Violation], said: list[str]
) -> None:
    columns = (
        "sender", Column("octet", right=True), Column("size", right=True), "kind", "stream",
        "amount", "verdict",
    )  # fmt: skip
    names = ("sender", "byte_offset", "size", "kind", "stream", "amount", "verdict")
    print_table(text, columns, [[row[name] for name in names] for row in rows])
    for violation in found:
        line = f"{violation.rule.severity.value}: {violation}. {violation.rule.sentence}"
        console().print(shown(line), markup=False, soft_wrap=True)
    for remark in said:
        console().print(shown(remark), markup=False, soft_wrap=True)
