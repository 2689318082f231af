"""A folder of HTML pages: a matrix of peers and requirements, and a page for each case.

Each run is kept as JSON in `runs/`, so that the next run into the same folder adds a column. The
pages have no script and load nothing; every text is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polymux.capture.io.atomic_write import write_atomically
from polymux.conform.catalogue import requirements_of
from polymux.conform.report.junit import check_folder
from polymux.conform.report.records import run_record
from polymux.conform.results import Results
from polymux.core.conformance import GENERIC_REQUIREMENTS, SEVERITY_ORDER, Verdict
from polymux.core.errors import MissingExtra, UnwritableOutput
from polymux.protocols.registry import PROTOCOLS
from polymux.text.sanitize import escape_hidden

if TYPE_CHECKING:
    from jinja2 import Template

RUNS = "runs"
Run = dict[str, Any]  # as `run_record` makes it; read from JSON


def check_html(folder: Path) -> None:
    """Make the folder and find out whether `write_html` could write there.

    Raises:
        UnwritableOutput: it could not, or the folder holds a run that cannot be read.
        MissingExtra: jinja2 is not installed.
    """
    _templates()
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        check_folder(folder)
        check_folder(folder / RUNS)
        _load_runs(folder)
    except OSError as problem:
        raise UnwritableOutput(f"{folder}: cannot be written: {problem.strerror}") from None


def write_html(folder: Path, results: Results) -> Path:
    """Add a run to the folder and write its pages. Return the path of the matrix.

    Raises:
        UnwritableOutput: the folder cannot be written, or holds a run that cannot be read.
        MissingExtra: jinja2 is not installed.
    """
    index, case_page = _templates()
    run: Run = json.loads(json.dumps(run_record(results)))
    slug = run_slug(run)
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        (folder / slug).mkdir(exist_ok=True)
        _write(folder / RUNS / f"{slug}.json", json.dumps(run, indent=1))
        shown: Run = escaped(run)
        for case in shown["results"]:
            text = case_page.render(run=shown, case=case, sentence=_sentence(case["requirement"]),
                                    **_page())  # fmt: skip
            _write(folder / slug / page_name(case["case"]), text)
        runs = _load_runs(folder)
        _write(folder / "index.html", index.render(**matrix(runs), **_page()))
    except OSError as problem:
        raise UnwritableOutput(f"{folder}: cannot be written: {problem.strerror}") from None
    return folder / "index.html"


def run_slug(run: Run) -> str:
    """The folder of a run's pages: the same for the same peer, protocol, role and level."""
    text = f"{run['peer']} {run['protocol']} {run['role']} {run['level']}"
    name = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60]
    return f"{name}-{hashlib.sha256(as_bytes(text)).hexdigest()[:8]}"


def as_bytes(text: str) -> bytes:
    """UTF-8 of a text; halves of surrogate pairs, which arguments may have, are escaped."""
    return text.encode(errors="backslashreplace")


def page_name(case: str) -> str:
    """The file of a case's page."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", case) + ".html"


def escaped(value: Any) -> Any:
    """Plain data in which every text has its hidden characters escaped; newlines stay."""
    if isinstance(value, str):
        return "\n".join(map(escape_hidden, value.split("\n")))
    if isinstance(value, list):
        return [escaped(entry) for entry in value]
    if isinstance(value, dict):
        return {key: escaped(entry) for key, entry in value.items()}
    return value


def matrix(runs: list[Run]) -> dict[str, object]:
    """What the template of the matrix shows."""
    order = [verdict.value for verdict in SEVERITY_ORDER]
    for run in runs:
        run["verdicts"] = sorted(run["verdicts"].items(), key=lambda entry: order.index(entry[0]))
    groups = []
    for name in PROTOCOLS:
        own = [run for run in runs if run["protocol"].partition(":")[0] == name]
        if own:
            groups.append({"protocol": name, "runs": own, "rows": _rows(name, own)})
    return {"runs": runs, "groups": groups}


def _rows(name: str, runs: list[Run]) -> list[dict[str, object]]:
    return [
        {
            "id": requirement.id,
            "sentence": requirement.sentence,
            "obligation": requirement.obligation.value,
            "reason": requirement.without_case,
            "cells": [_cell(run, requirement.id) for run in runs],
        }
        for requirement in (*GENERIC_REQUIREMENTS, *requirements_of(name))
    ]


def _cell(run: Run, requirement: str) -> list[dict[str, str]]:
    return [
        {
            "verdict": case["verdict"],
            "name": case["case"],
            "detail": case["detail"],
            "page": f"{run['slug']}/{page_name(case['case'])}",
        }
        for case in run["results"]
        if case["requirement"] == requirement
    ]


def _sentence(requirement: str) -> str:
    for name in PROTOCOLS:
        for found in (*GENERIC_REQUIREMENTS, *requirements_of(name)):
            if found.id == requirement:
                return found.sentence
    return ""


def _load_runs(folder: Path) -> list[Run]:
    """The runs in a folder, ready to be shown; each has its folder as `slug`."""
    runs = []
    for path in sorted((folder / RUNS).glob("*.json")):
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
            _check_run(run)
            runs.append({**escaped(run), "slug": run_slug(run)})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
            raise UnwritableOutput(
                f"{path}: is not a run of polymux conform; remove it or choose another folder"
            ) from None
    return runs


def _check_run(run: Run) -> None:
    """Raise one of several errors unless this is what `run_record` makes."""
    for key in ("peer", "protocol", "role"):
        _require(isinstance(run[key], str))
    for key in ("level", "cases"):
        _require(isinstance(run[key], int))
    _require(run["note"] is None or isinstance(run["note"], str))
    for verdict, count in run["verdicts"].items():
        _require(Verdict(verdict) in SEVERITY_ORDER and isinstance(count, int))
    _require(isinstance(run["results"], list))
    for case in run["results"]:
        for key in ("case", "requirement", "verdict", "detail"):
            _require(isinstance(case[key], str))
        Verdict(case["verdict"])


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("not as a run is written")


def _templates() -> tuple[Template, Template]:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise MissingExtra("report", "writing pages") from None
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return (
        environment.from_string(_asset("index.html.j2")),
        environment.from_string(_asset("case.html.j2")),
    )


def _page() -> dict[str, object]:
    """Style and content security policy: nothing but this style, no script, no network."""
    from markupsafe import Markup

    style = _asset("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return {"style": Markup(style), "policy": policy}


def _asset(name: str) -> str:
    return (files("polymux.conform.report") / "assets" / name).read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    write_atomically(str(path), as_bytes(text), sync=False)
