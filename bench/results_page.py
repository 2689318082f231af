"""`python -m bench.results_page RUN.json...`: write the docs page of measured runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.results import figure_text, ratio_text

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Every figure stands beside its floor and its peers, measured in the same run and in turns; the
ratio is what counts, since machines differ and this one is shared. `make bench` repeats all of
it, `make bench ONLY=kernels` one part, and writes every single time taken to `bench/out/`.

A ratio is speed against the floor: 50 % is half as fast, 2x twice as fast. Best of seven rounds or
more, in the pipeline of two to six; kernels are judged by CPU time, all else by the clock on the
wall.
"""


def page(runs: list[dict[str, Any]]) -> str:
    """One section per part; of a part measured twice, the last run."""
    parts: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for run in runs:
        for name in dict.fromkeys(line["part"] for line in run["lines"]):
            parts[name] = (run, [line for line in run["lines"] if line["part"] == name])
    out = [INTRODUCTION, machine_text(runs[-1]), *behind_text(parts)]
    for name, (_, lines) in parts.items():
        out += [f"## {name}\n", *table(lines), ""]
    return "\n".join(out).rstrip() + "\n"


def machine_text(run: dict[str, Any]) -> str:
    machine, versions = run["machine"], run["versions"]
    said = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "core")
    return (
        f"Measured {run['at'][:10]} at commit {run['commit']}, core {versions['core']}, on "
        f"{machine['cores']} cores ({machine['processor']}), load {machine['load'][0]:.1f}: "
        f"{said}.\n"
    )


def behind_text(parts: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]) -> list[str]:
    held = [
        (name, line, floor)
        for name, (_, lines) in parts.items()
        for line in lines
        for floor in line["floors"]
        if floor["target"] is not None
    ]
    late = [entry for entry in held if not entry[2]["met"]]
    if not late:
        return [f"All {len(held)} targets are met.\n"]
    out = [f"{len(late)} of {len(held)} targets are not met:\n"]
    for name, line, floor in late:
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
