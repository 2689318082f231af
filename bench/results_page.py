"""`python -m bench.results_page [RUN.json...]` writes docs/benchmarks.md from measured parts.

Without arguments it takes, of the commit that was measured last, the last run of each part in
`bench/out`. Parts that are given may be of several commits; the page then says so at each.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.__main__ import PARTS
from bench.results import OUT, figure_text, ratio_text

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks
"""
METHOD = """## How it is measured

Every figure has beside it a floor (the least that the task can cost) or a peer (another
implementation), measured in the same run, alternating. The ratio is what counts, since machines
differ and this one is shared. `make bench` repeats all of it, `make bench ONLY=kernels` one part;
every single measurement is written to `bench/out/`.

A ratio is speed against the floor or peer: 50 % is half as fast, 2x twice as fast. Both are the
best of seven rounds or more, in the pipeline of two to six. A figure that is compared with a fixed
bound is the median of its rounds. Kernels are measured in CPU time, everything else in wall-clock
time. Peers are the versions that npm, PyPI and Debian have; each of their ends is a
process of its own, as are those of polymux.
"""

Run = dict[str, Any]  # what `bench.results.write` has written
LineRecord = dict[str, Any]


@dataclass(frozen=True)
class Headline:
    """A line that the page begins with, as a sentence.

    `text` has the figure as `{value}`. `compared` has, for each floor to name, what the sentence
    calls it; one that was not measured is left out.
    """

    part: str
    line: str
    text: str
    compared: tuple[tuple[str, str], ...] = ()


HEADLINES = (
    Headline(
        "kernels", "whole loop, mplex, 64 B, 1,000 streams",
        "A frame of 64 bytes is decoded and checked against every rule in {value} ns",
        (("C, same rules", "the speed of C with the same rules"),
         ("same source interpreted", "that of the same source interpreted")),
    ),
    Headline(
        "pairs", "mplex, bulk, 1 stream",
        "A live session carries {value} MB/s on one stream",
        (("raw TCP", "raw TCP"), ("npm multiplex", "the npm package `multiplex`"),
         ("h2 (HTTP/2)", "the PyPI package `h2`")),
    ),
    Headline(
        "requests", "Streamux, 64 B requests, 64 in flight",
        "A session answers {value} requests a second, 64 in flight",
        (("Go HTTP/2", "Go's HTTP/2"), ("nghttp2 (h2load, nghttpd)", "nghttp2 (HTTP/2, in C)"),
         ("h2 (HTTP/2)", "the PyPI package `h2`")),
    ),
    Headline(
        "pipeline", "pcap to all tables",
        "Captures become tables on Spark at {value} MB/s",
        (("without Spark", "the same work without Spark"),),
    ),
    Headline(
        "captures", "session of 7 packets, all tables",
        "A connection of seven packets costs {value} µs of CPU time from capture to all tables",
    ),
)  # fmt: skip


def page(runs: list[Run]) -> str:
    """Headlines and missed targets, then a section for each part, from the last run that has it."""
    found: dict[str, tuple[Run, list[LineRecord]]] = {}
    for run in runs:
        for name in dict.fromkeys(line["part"] for line in run["lines"]):
            found[name] = (run, [line for line in run["lines"] if line["part"] == name])
    parts = {name: found[name] for name in (*PARTS, *found) if name in found}
    lines = {(name, line["line"]): line for name, (_, some) in parts.items() for line in some}
    commits = list(dict.fromkeys(run["commit"] for run, _ in parts.values()))
    out = [
        INTRODUCTION, *headline_list(lines), *missed_targets(lines), METHOD,
        machine_text(max(runs, key=lambda run: str(run["at"])), commits),
    ]  # fmt: skip
    for name, (run, some) in parts.items():
        out += [f"## {name}\n", note(run, name_commit=len(commits) > 1), *table(some), ""]
    return "\n".join(out).rstrip() + "\n"


def headline_list(lines: dict[tuple[str, str], LineRecord]) -> list[str]:
    """The sentences of `HEADLINES` whose lines were measured."""
    out = []
    for headline in HEADLINES:
        line = lines.get((headline.part, headline.line))
        if line is None or "absent" in line:
            continue
        ratios = {floor["floor"]: floor["ratio"] for floor in line["floors"]}
        compared = [
            f"{ratio_in_words(ratios[floor])} {words}"
            for floor, words in headline.compared
            if floor in ratios
        ]
        text = headline.text.format(value=figure_text(line["value"]))
        out.append(f"- {text}{': ' if compared else ''}{joined(compared)}.")
    return [*out, ""] if out else []


def ratio_in_words(ratio: float) -> str:
    if ratio < 1:
        return f"{ratio * 100:.0f} % of"
    return f"{ratio:.0f} times" if ratio >= 9.95 else f"{ratio:.1f} times"


def joined(phrases: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(phrases[:-1]), *phrases[-1:])))


def machine_text(run: Run, commits: list[str]) -> str:
    machine, versions = run["machine"], run["versions"]
    packages = ", ".join(
        f"{name} {version}" for name, version in versions.items() if name != "core"
    )
    at = f"at commit {commits[0]}" if len(commits) == 1 else "at the commits named below"
    return (
        f"Measured {at}, core {versions['core']}, on {machine['cores']} cores "
        f"({machine['processor']}): {packages}.\n"
    )


def note(run: Run, name_commit: bool) -> str:
    """What a part measures, when that was done, and under what load."""
    at = datetime.datetime.fromisoformat(run["at"])
    before, after = run["load"]
    commit = f" at commit {run['commit']}" if name_commit else ""
    return (
        f"{run['about']} Measured {at:%Y-%m-%d %H:%M} UTC{commit} in {run['seconds'] / 60:.0f} "
        f"minutes; load {before:.1f} before, {after:.1f} after.\n"
    )


def missed_targets(lines: dict[tuple[str, str], LineRecord]) -> list[str]:
    """Which targets are not met, by how much, and why. Those with the same reason are together."""
    count = 0
    missed: dict[tuple[str, str, float, str], list[str]] = {}
    for (part, line), record in lines.items():
        for floor in record["floors"]:
            if floor["target"] is None:
                continue
            count += 1
            if not floor["met"]:
                key = (part, floor["floor"], floor["target"], floor["why"])
                missed.setdefault(key, []).append(f"{line} is at {ratio_text(floor['ratio'])}")
    absent = [
        f"{part}: {line}, {record['absent']}"
        for (part, line), record in lines.items()
        if "absent" in record
    ]
    left_out = [f"Not measured: {'; '.join(absent)}.\n"] if absent else []
    if not missed:
        return [f"All {count} targets are met.\n", *left_out]
    out = [f"{sum(map(len, missed.values()))} of {count} targets are not met:\n"]
    for (part, floor, target, why), behind in missed.items():
        text = f"- {part}, against {floor}, target {ratio_text(target)}: {'; '.join(behind)}. {why}"
        out.append(text.rstrip())
    return [*out, "", *left_out]


def table(lines: list[LineRecord]) -> list[str]:
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


def runs_of(paths: Iterable[Path]) -> list[Run]:
    """Their content, the oldest first."""
    return sorted((json.loads(path.read_text()) for path in paths), key=lambda run: str(run["at"]))


def of_last_commit(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run["commit"] == runs[-1]["commit"]]


def main(paths: list[str]) -> None:
    given = runs_of(map(Path, paths)) if paths else of_last_commit(runs_of(OUT.glob("*.json")))
    if not given:
        raise SystemExit(f"nothing was measured: no results in {OUT}; run python -m bench first")
    PAGE.write_text(page(given))
    print(f"written to {PAGE.relative_to(PAGE.parent.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
