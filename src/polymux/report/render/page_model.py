"""Everything the page shows, as one JSON value.

Texts from files or the wire are escaped here, once; the page only inserts them as text nodes.
"""

from __future__ import annotations

from polymux.analysis.schema.tables import SIDES
from polymux.report.load.findings import VIOLATION_COLUMNS
from polymux.report.load.overview import SessionRow
from polymux.report.load.stream_endings import count_unfinished
from polymux.report.render.finding_items import findings_json
from polymux.report.render.report_data import Json, ReportData
from polymux.report.render.session_details import session_details_json
from polymux.report.render.wording import no_findings_sentence, unfinished_sentence

_MAX_FILES_PER_SESSION = 3  # capture files listed with each session; others are counted
_BOTH_SIDES = {  # key on the page -> stem of the column that exists once for each side
    "bytes": "bytes", "payload": "payload_bytes", "missing": "missing_bytes",
    "undecoded": "undecoded_bytes",
}  # fmt: skip


def build_page_model(data: ReportData) -> Json:
    """The page's data, as `data.js` expects it."""
    rule = VIOLATION_COLUMNS.index("rule")
    names = {finding.rule for finding in data.findings.groups if finding.rule}
    names |= {str(row[rule]) for marks in data.findings.session_violations for row in marks}
    rules = {name: index for index, name in enumerate(sorted(names))}
    kinds: dict[str, int] = {}
    details = [
        session_details_json(data, group, rules, kinds) for group in range(len(data.detailed))
    ]
    return {
        "totals": _totals_json(data),
        "notes": data.notes,
        "rules": [_rule_json(data, name) for name in rules],
        "kinds": [data.escaped(kind, 40) for kind in kinds],
        "findings": findings_json(data, rules),
        "findingsLeftOut": data.findings.left_out_count,
        "sessions": [_session_json(data, session) for session in data.overview.sessions],
        "details": details,
        "payload": bool(data.payloads),
    }


def _totals_json(data: ReportData) -> Json:
    overview = data.overview
    unfinished = count_unfinished(data.findings.groups)
    return {
        **overview.totals,
        "sessions": overview.session_count,
        "captures": overview.capture_count,
        "started": overview.started_us,
        "ended": overview.ended_us,
        "protocols": sorted(overview.protocols.items(), key=lambda pair: (-pair[1], pair[0]))[:12],
        "levels": data.findings.counts,
        "nothing": no_findings_sentence(unfinished),
        "unfinished": unfinished_sentence(unfinished) if unfinished else None,
    }


def _rule_json(data: ReportData, name: str) -> Json:
    page = data.findings.rule_pages.get(name)
    group = next((f for f in data.findings.groups if f.rule == name), None)
    return {
        "name": data.escaped(name),
        "sentence": page.sentence if page else None,
        "section": page.section if page else None,
        "origin": page.origin if page else None,
        "severity": page.severity if page else (group.level if group else None),
        "count": group.count if group else 0,
        "possible": group.possible_count if group else 0,
        "reaction": page.reaction if page else None,
        "story": page.story if page else None,
        "example": page.example_lines() if page else [],
    }


def _tls_json(data: ReportData, session: SessionRow) -> Json | None:
    """What is known of the session's TLS; None without TLS."""
    row = session.row
    if row["tls"] is None and row["server_name"] is None:
        return None
    return {
        "suite": data.escaped(row["tls"], 80),
        "serverName": data.escaped(row["server_name"], 120),
        "alpn": data.escaped(row["alpn"], 60),
        "records": row["tls_records"],
        "unopened": row["tls_unopened"],
        "handshake": row["tls_handshake_us"],
    }


def _session_json(data: ReportData, session: SessionRow) -> Json:
    row = session.row
    files = row["capture"] if isinstance(row["capture"], list) else []
    both = {
        key: [session.integer(f"{stem}_{side}") for side in SIDES]
        for key, stem in _BOTH_SIDES.items()
    }
    return {
        "id": data.escaped(session.id, 40),
        "protocol": data.escaped(row["protocol"], 40),
        "version": data.escaped(row["version"], 40),
        "dialect": data.escaped(row["dialect"], 40),
        "evidence": data.escaped(row["evidence"]),
        "vantage": data.escaped(row["vantage"], 40),
        "dialer": data.escaped(row["dialer"], 60),
        "acceptor": data.escaped(row["acceptor"], 60),
        "started": session.started_us,
        "lasted": session.duration_us,
        "frames": session.integer("frames"),
        "streams": session.integer("streams"),
        **both,
        "found": [session.errors, session.warnings, session.stalls],
        "ending": data.escaped(row["ending"], 40),
        "note": data.escaped(row["note"]),
        "rtt": session.rtt_us,
        "tls": _tls_json(data, session),
        "requests": [list(row[1:]) for row in session.requests],
        "captures": [data.escaped(file) for file in files[:_MAX_FILES_PER_SESSION]],
        "moreCaptures": max(0, len(files) - _MAX_FILES_PER_SESSION),
    }
