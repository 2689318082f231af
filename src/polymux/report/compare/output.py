"""A comparison as an HTML page and as a JUnit file."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from html import escape
from typing import Final

from polymux.report.compare.comparison import Change, change_text
from polymux.report.compare.conditions import Condition
from polymux.text.sanitize import escape_hidden
from polymux.text.units import duration_text, rate_text

_MAX_TEXT: Final = 160
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.worse { font-weight: 600; }
"""


def value_text(measure: str, value: float) -> str:
    """A value of a measure with its unit."""
    if measure.startswith("throughput"):
        return rate_text(int(value), 8_000_000_000)  # bits in 8 s are bytes in 1 s
    name = measure.partition(":")[0]
    return duration_text(int(value * 1000)) if name.endswith("_us") else f"{value:g}"


def change_cells(change: Change) -> tuple[str, str, str, str, str, str]:
    """Group, measure, before, after, change and interval, as text."""
    found = change.difference
    interval = f"{change_text(found.low)} to {change_text(found.high)}"
    if math.isinf(found.change):
        interval = ""
    return (
        escape_hidden(change.group, _MAX_TEXT), change.measure,
        value_text(change.measure, found.before), value_text(change.measure, found.after),
        change_text(found.change), interval,
    )  # fmt: skip


def html_page(before: str, after: str, changes: Sequence[Change]) -> str:
    """One page without scripts: the reported changes, then all measures."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width">',
        f"<title>polymux diff</title><style>{_STYLE}</style></head><body><h1>What changed</h1>",
        f"<p>Before: {_text(before)}<br>After: {_text(after)}</p>",
    ]
    reported = [change for change in changes if change.reported]
    parts.append(_table(reported) if reported else "<p>Nothing that chance does not explain.</p>")
    parts += ["<h2>All measures</h2>", _table(changes), "</body></html>\n"]
    return "\n".join(parts)


def junit_xml(conditions: Sequence[Condition], changes: Sequence[Change]) -> bytes:
    """A test case for each condition; without conditions, one that fails on changes for worse."""
    cases = [(condition.text, condition.violating(changes)) for condition in conditions]
    if not cases:
        worse = [change for change in changes if change.reported and change.worse]
        cases = [("nothing is worse", worse)]
    failures = sum(bool(found) for _, found in cases)
    suite = ElementTree.Element(
        "testsuite", name="polymux diff", tests=str(len(cases)), failures=str(failures), errors="0"
    )
    for text, found in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="polymux.diff", name=text)
        if found:
            lines = [" | ".join(change_cells(change)) for change in found]
            failure = ElementTree.SubElement(case, "failure", message=lines[0])
            failure.text = "\n".join(lines)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def _table(changes: Sequence[Change]) -> str:
    heads = ("group", "measure", "before", "after", "change", "interval")
    rows = ["<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for change in changes:
        mark = ' class="worse"' if change.reported and change.worse else ""
        cells = [
            f'<td class="number">{_text(cell)}</td>' if place > 1 else f"<td>{_text(cell)}</td>"
            for place, cell in enumerate(change_cells(change))
        ]
        rows.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return "\n".join([*rows, "</table>"])


def _text(text: str) -> str:
    return escape(escape_hidden(text))
