"""Results as a table on the terminal and as JSON files, one for each part."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Line, NotMeasured, Result, missed_targets
from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parent / "out"
VERSIONS = ("librt", "mypy", "numpy", "pyarrow", "dpkt", "pyspark", "websockets", "uvloop")


def ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio * 100:.0f} %"


def figure_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show(lines: Sequence[Result]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 150
    for part in dict.fromkeys(line.part for line in lines):
        console.print(table_of(part, [line for line in lines if line.part == part]))
    late = missed_targets(lines)
    absent = [f"{line.part}: {line.name}" for line in lines if isinstance(line, NotMeasured)]
    if absent:
        console.print(f"Not measured: {', '.join(absent)}.", markup=False, soft_wrap=True)
    wanted = sum(
        1 for line in lines for verdict in line.comparisons() if verdict.target is not None
    )
    if not late:
        console.print(f"All {wanted} targets are met.")
        return
    console.print(f"{len(late)} of {wanted} targets are not met:")
    for line, verdict in late:
        assert verdict.target is not None
        text = (
            f"{line.part}: {line.name} is at {ratio_text(verdict.ratio)} of {verdict.floor}; "
            f"the target is {ratio_text(verdict.target)}. {verdict.why}"
        )
        console.print(f"  {text.rstrip()}", markup=False, highlight=False, soft_wrap=True)


def table_of(part: str, lines: Sequence[Result]) -> Table:
    table = Table(title=part, title_justify="left", header_style="bold")
    table.add_column("line", min_width=28)
    for name in ("best", "median", "other clock"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("against", no_wrap=True)
    for name in ("its value", "other clock", "ratio", "target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for line in lines:
        if isinstance(line, NotMeasured):
            table.add_row(f"{line.name}: not measured, {line.reason}", *[""] * 10)
            continue
        other = ""
        if isinstance(line, Line):
            clock = "wall" if line.clock == "cpu" else "CPU"
            other = f"{clock} {figure_text(line.other_clock)}"
        own = [
            line.name + (f" ({line.note})" if line.note else ""),
            figure_text(line.best),
            figure_text(line.median),
            other,
            line.unit,
        ]
        verdicts = line.comparisons()
        if not verdicts:
            table.add_row(*own, "", "", "", "", "", "")
        for verdict in verdicts:
            target = "" if verdict.target is None else ratio_text(verdict.target)
            judged = "" if verdict.met is None else "met" if verdict.met else "[bold]behind[/bold]"
            theirs = figure_text(verdict.other_clock) if verdict.other_clock else ""
            table.add_row(
                *own, verdict.floor, figure_text(verdict.value), theirs,
                ratio_text(verdict.ratio), target, judged,
            )  # fmt: skip
            own = [""] * len(own)
    return table


@dataclass
class Began:
    """When a part began, and under what load."""

    at: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    load: float = field(default_factory=lambda: os.getloadavg()[0])


def write(lines: Sequence[Result], folder: Path, began: Began, about: str = "") -> Path:
    """The results of one part with all times, when they were measured, and on what."""
    folder.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    path = folder / f"{now:%Y%m%dT%H%M%SZ}-{'-'.join(dict.fromkeys(li.part for li in lines))}.json"
    record = {
        "at": began.at.isoformat(timespec="seconds"),
        "seconds": (now - began.at).total_seconds(),
        "load": [began.load, os.getloadavg()[0]],
        "about": about,
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "lines": [line.as_json() for line in lines],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def commit() -> str:
    """The measured commit, with `+` appended if files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except OSError:
        return ""


def machine() -> dict[str, object]:
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "system": platform.platform(terse=True),
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
    }


def versions() -> dict[str, str]:
    from polymux.core import connection

    found = {
        "python": platform.python_version(),
        "core": "interpreted" if connection.__file__.endswith(".py") else "compiled",
    }
    for name in ("polymux", *VERSIONS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
