"""`python -m bench.results_page RUN.json...` writes docs/benchmarks.md from measured runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.results import figure_text, ratio_text

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Every figure has beside it a floor (the least that the task can cost) or a peer (another
implementation), measured in the same run, alternating. The ratio is what counts, since machines
differ and this one is shared. `make bench` repeats all of it, `make bench ONLY=kernels` one part;
every single measurement is written to `bench/out/`.

A ratio is speed against the floor or peer: 50 % is half as fast, 2x twice as fast. Best of seven
rounds or more, in the pipeline of two to six. Kernels are measured in CPU time, everything else in
wall-clock time.
"""

# The lines that the summary on top shows: part, line, and what it measures.
HEADLINES = (
    ("kernels", "whole loop, mplex, 64 B, 1,000 streams", "decode and validate a small frame"),
    ("pairs", "mplex, bulk, 1 stream", "live session, bulk data on one stream"),
    ("pairs", "mplex, open and close, 1 in flight", "live session, one small stream after another"),
    ("pipeline", "pcap to all tables", "captures to all tables on Spark"),
    ("pipeline", "whole command, from cold", "`polymux analyze` with the start of Spark"),
)

Parts = dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]


def page(runs: list[dict[str, Any]]) -> str:
    """The page: headline figures, then one section per part, from the last run that measured it."""
    parts: Parts = {}
    for run in runs:
        for name in dict.fromkeys(line["part"] for line in run["lines"]):
            parts[name] = (run, [line for line in run["lines"] if line["part"] == name])
    out = [INTRODUCTION, *headline_table(parts), machine_text(runs[-1]), *missed_targets(parts)]
    for name, (_, lines) in parts.items():
        out += [f"## {name}\n", *table(lines), ""]
    return "\n".join(out).rstrip() + "\n"


def headline_table(parts: Parts) -> list[str]:
    """The figures of `HEADLINES` that were measured, each against its floors and peers."""
    out = ["| in short | figure | speed compared with |", "|---|---:|---|"]
    for part, title, meaning in HEADLINES:
        for line in parts[part][1] if part in parts else []:
            if line["line"] == title and "absent" not in line:
                compared = (
                    f"{floor['floor']}: {ratio_text(floor['ratio'])}" for floor in line["floors"]
                )
                figure = f"{figure_text(line['value'])} {line['unit']}"
                out.append(f"| {meaning} | {figure} | {'; '.join(compared)} |")
    return [*out, ""] if len(out) > 2 else []


def machine_text(run: dict[str, Any]) -> str:
    machine, versions = run["machine"], run["versions"]
    packages = ", ".join(
        f"{name} {version}" for name, version in versions.items() if name != "core"
    )
    return (
        f"Measured {run['at'][:10]} at commit {run['commit']}, core {versions['core']}, on "
        f"{machine['cores']} cores ({machine['processor']}), load {machine['load'][0]:.1f}: "
        f"{packages}.\n"
    )


def missed_targets(parts: Parts) -> list[str]:
    """Which targets are not met, and by how much."""
    targets = [
        (name, line, floor)
        for name, (_, lines) in parts.items()
        for line in lines
        for floor in line["floors"]
        if floor["target"] is not None
    ]
    missed = [entry for entry in targets if not entry[2]["met"]]
    if not missed:
        return [f"All {len(targets)} targets are met.\n"]
    out = [f"{len(missed)} of {len(targets)} targets are not met:\n"]
    for name, line, floor in missed:
        out.append(
            f"- {name}: {line['line']} is at {ratio_text(floor['ratio'])} of {floor['floor']}; "
            f"the target is {ratio_text(floor['target'])}."
        )
    return [*out, ""]


def table(lines: list[dict[str, Any]]) -> list[str]:
    out = [
        "| line | figure | against | its figure | ratio | target |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for line in lines:
        if "absent" in line:
            out.append(f"| {line['line']} | not measured: {line['absent']} | | | | |")
            continue
        name = line["line"] + (f" ({line['note']})" if line.get("note") else "")
        own = f"| {name} | {figure_text(line['value'])} {line['unit']} "
        for floor in line["floors"] or [None]:
            if floor is None:
                out.append(own + "| | | | |")
                continue
            target = "" if floor["target"] is None else ratio_text(floor["target"])
            out.append(
                own + f"| {floor['floor']} | {figure_text(floor['value'])} "
                f"| {ratio_text(floor['ratio'])} | {target} |"
            )
            own = "| | "
    return out


def main(paths: list[str]) -> None:
    PAGE.write_text(page([json.loads(Path(path).read_text()) for path in paths]))
    print(f"written to {PAGE.relative_to(PAGE.parent.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
