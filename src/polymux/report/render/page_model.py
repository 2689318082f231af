"""Everything the page shows, as one JSON value.

Texts that came from files or the wire are made visible on the way in, once; the page only places
them.
"""

from __future__ import annotations

from polymux.report.load.aborted_streams import unfinished
from polymux.report.load.findings import VIOLATION_COLUMNS
from polymux.report.load.overview import SessionRow
from polymux.report.render.finding_items import findings_json
from polymux.report.render.report_data import SIDES, Json, Material
from polymux.report.render.session_details import detail_json
from polymux.report.render.wording import nothing_sentence, unfinished_sentence

_FILES = 3  # capture files named with each session; more are counted
_BOTH_SIDES = {  # key on the page -> stem of the column that exists once for each side
    "bytes": "bytes", "payload": "payload_bytes", "missing": "missing_bytes",
    "undecoded": "undecoded_bytes",
}  # fmt: skip


def build(material: Material) -> Json:
    """The page's data."""
    rule = VIOLATION_COLUMNS.index("rule")
    names = {finding.rule for finding in material.found.groups if finding.rule}
    names |= {str(row[rule]) for marks in material.found.marks for row in marks}
    rules = {name: place for place, name in enumerate(sorted(names))}
    kinds: dict[str, int] = {}
    details = [
        detail_json(material, group, rules, kinds) for group in range(len(material.detailed))
    ]
    return {
        "totals": _totals(material),
        "notes": material.notes,
        "rules": [_rule(material, name) for name in rules],
        "kinds": [material.clean(kind, 40) for kind in kinds],
        "findings": findings_json(material, rules),
        "findingsLeftOut": material.found.left_out,
        "sessions": [_session(material, session) for session in material.seen.sessions],
        "details": details,
        "payload": bool(material.payload),
    }


def _totals(material: Material) -> Json:
    seen = material.seen
    left = unfinished(material.found.groups)
    return {
        **seen.sums,
        "sessions": seen.session_count,
        "captures": seen.capture_count,
        "started": seen.started,
        "ended": seen.ended,
        "protocols": sorted(seen.protocols.items(), key=lambda pair: (-pair[1], pair[0]))[:12],
        "levels": material.found.counts,
        "nothing": nothing_sentence(left),
        "unfinished": unfinished_sentence(left) if left else None,
    }


def _rule(material: Material, name: str) -> Json:
    page = material.found.pages.get(name)
    group = next((f for f in material.found.groups if f.rule == name), None)
    return {
        "name": material.clean(name),
        "sentence": page.sentence if page else None,
        "section": page.section if page else None,
        "origin": page.origin if page else None,
        "severity": page.severity if page else (group.level if group else None),
        "count": group.count if group else 0,
        "possible": group.possible if group else 0,
        "reaction": page.reaction if page else None,
        "story": page.story if page else None,
        "example": page.example() if page else [],
    }


def _session(material: Material, session: SessionRow) -> Json:
    row = session.row
    files = row["capture"] if isinstance(row["capture"], list) else []
    both = {
        key: [session.number(f"{stem}_{side}") for side in SIDES]
        for key, stem in _BOTH_SIDES.items()
    }
    return {
        "id": material.clean(session.id, 40),
        "protocol": material.clean(row["protocol"], 40),
        "version": material.clean(row["version"], 40),
        "dialect": material.clean(row["dialect"], 40),
        "evidence": material.clean(row["evidence"]),
        "vantage": material.clean(row["vantage"], 40),
        "dialer": material.clean(row["dialer"], 60),
        "acceptor": material.clean(row["acceptor"], 60),
        "started": session.started,
        "lasted": session.lasted,
        "frames": session.number("frames"),
        "streams": session.number("streams"),
        **both,
        "found": [session.errors, session.warnings, session.stalls],
        "ending": material.clean(row["ending"], 40),
        "note": material.clean(row["note"]),
        "rtt": session.rtt_us,
        "requests": [list(row[1:]) for row in session.requests],
        "captures": [material.clean(file) for file in files[:_FILES]],
        "moreCaptures": max(0, len(files) - _FILES),
    }
