"""The page of the benchmark: sentences first, then what is behind, then a table for each part."""

import json
from pathlib import Path

import pytest
from bench import go_peers, harness, nghttp2, results, results_page
from bench.__main__ import PARTS, main
from bench.harness import Bound, Figure, Floor, Line, NotMeasured, Result, Times
from bench.reasons import reason_for
from bench.results import Began, write
from bench.results_page import of_last_commit, page, runs_of

WHY = "It does less."


def seconds(value: float) -> Times:
    made = Times()
    made.add(value, value)
    return made


def line_against(part: str, name: str, floors: list[Floor]) -> Line:
    """A line that takes one second for a million units."""
    return Line(name, seconds(1.0), 1e6, "MB/s", floors, "wall", 1e6, part=part)


def measured(folder: Path, *lines: Result, about: str = "What it measures.") -> Path:
    return write(list(lines), folder, Began(load=0.25), about)


@pytest.fixture
def bulk() -> Line:
    floors = [
        Floor("raw TCP", seconds(0.5)),
        Floor("npm multiplex", seconds(1.4), 1.0),
        Floor("h2 (HTTP/2)", seconds(20.0)),
    ]
    return line_against("pairs", "mplex, bulk, 1 stream", floors)


def test_the_page_begins_with_sentences_of_what_was_measured(tmp_path: Path, bulk: Line) -> None:
    text = page(runs_of([measured(tmp_path, bulk)]))
    begin = text.split("\n")
    assert begin[0] == "# Benchmarks"
    assert begin[2] == (
        "- A live session carries 1.00 MB/s on one stream: 50 % of raw TCP, 1.4 times the npm "
        "package `multiplex` and 20 times the PyPI package `h2`."
    )
    assert begin[4] == "All 1 targets are met."


def test_there_are_five_headlines_and_each_is_of_a_part() -> None:
    headlines = results_page.HEADLINES
    assert len(headlines) == 5
    assert {headline.part for headline in headlines} <= set(PARTS)


def test_missed_targets_follow_with_one_reason_for_all_that_share_it(tmp_path: Path) -> None:
    lines = [
        line_against("requests", name, [Floor("C", seconds(value), 1.0, why=WHY)])
        for name, value in (("one", 0.25), ("two", 0.5), ("three", 2.0))
    ]
    slow = Figure("growth", [1.5], "", [Bound("slope", 1.2)], part="growth")
    gone = NotMeasured("Go", "Go is not installed", part="requests")
    text = page(runs_of([measured(tmp_path, *lines, gone), measured(tmp_path, slow)]))
    behind = text[text.index("3 of 4 targets") : text.index("## How it is measured")]
    assert behind.split("\n")[2:4] == [
        "- requests, against C, target 100 %: one is at 25 %; two is at 50 %. It does less.",
        "- growth, against slope, target 100 %: growth is at 80 %.",
    ]
    assert "Not measured: requests: Go, Go is not installed." in behind


def test_parts_of_several_runs_are_joined_each_with_its_time_and_load(
    tmp_path: Path, bulk: Line
) -> None:
    older = measured(tmp_path, line_against("kernels", "scan", []), bulk)
    record = json.loads(older.read_text())
    record["at"], record["seconds"] = "2026-01-02T03:04:05+00:00", 120
    record["lines"][1]["note"] = "older"
    older.write_text(json.dumps(record))
    newer = measured(tmp_path, bulk, about="Pairs.")
    text = page(runs_of([newer, older]))
    sections = {section.partition("\n")[0]: section for section in text.split("\n## ")[1:]}
    assert list(sections)[1:] == ["kernels", "pairs"]  # in the order of the parts
    assert "Measured 2026-01-02 03:04 UTC in 2 minutes; load 0.2 before" in sections["kernels"]
    assert sections["pairs"].startswith("pairs\n\nPairs. Measured ")
    assert "older" not in text


def test_a_page_of_several_commits_says_so_at_each_part(tmp_path: Path, bulk: Line) -> None:
    paths = [measured(tmp_path, line_against("kernels", "scan", [])), measured(tmp_path, bulk)]
    for number, path in enumerate(paths):
        record = json.loads(path.read_text())
        record["commit"], record["at"] = f"c0ffee{number}", f"2026-01-0{number + 1}T00:00:00+00:00"
        path.write_text(json.dumps(record))
    runs = runs_of(paths)
    text = page(runs)
    assert "at the commits named below" in text
    assert "UTC at commit c0ffee0 in" in text
    assert "UTC at commit c0ffee1 in" in text
    assert [run["commit"] for run in of_last_commit(runs)] == ["c0ffee1"]
    assert "at commit c0ffee1, core" in page(of_last_commit(runs))


def test_a_part_that_fails_leaves_the_others_and_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> list[Result]:
        raise RuntimeError("no such peer")

    monkeypatch.setattr("bench.kernels.measure", fails)
    monkeypatch.setattr(
        "bench.streamux.measure", lambda: [Figure("figure", [1.0], "B", [Bound("demand", 2.0)])]
    )
    monkeypatch.setattr("bench.__main__.OUT", tmp_path)
    assert main(["kernels", "streamux"]) == 1
    said = capsys.readouterr()
    assert "no such peer" in said.err
    assert "not measured, see above: kernels" in said.err
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert [line["part"] for line in record["lines"]] == ["streamux"]
    assert record["about"].startswith("Streamux: ")


def test_the_reason_of_a_missed_target_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    results.show([line_against("requests", "one", [Floor("C", seconds(0.25), 1.0, why=WHY)])])
    assert "one is at 25 % of C; the target is 100 %. It does less." in capsys.readouterr().out


def test_growth_is_the_exponent_of_time() -> None:
    square, step = harness.growth("time", "files", (1, 10, 100), [2.0, 200.0, 20_000.0])
    assert square.name == "growth of time, 1, 10, 100 files"
    assert step.value == pytest.approx(2.0)
    assert square.value == pytest.approx(2.0)
    assert [verdict.met for verdict in square.comparisons()] == [False]
    (line,) = harness.growth("time", "files", (1, 10), [3.0, 30.0])
    assert line.value == pytest.approx(1.0)


@pytest.mark.parametrize("steps", [(0.9, 0.95, 1.3), (0.9, 1.3, 0.9)])
def test_growth_that_begins_at_some_size_is_not_lost_in_the_whole(
    steps: tuple[float, ...],
) -> None:
    times = [10.0 ** sum(steps[:n]) for n in range(4)]
    lines = harness.growth("time", "files", (1, 10, 100, 1000), times)
    assert [[each.met for each in line.comparisons()] for line in lines] == [[True], [False]]
    assert lines[1].value == pytest.approx(1.3)


def test_a_short_step_is_not_judged() -> None:
    _, step = harness.growth("time", "files", (2, 4, 8), [1.0, 2.0, 5.0])
    assert [verdict.met for verdict in step.comparisons()] == [None]


def test_a_figure_is_shown_as_it_is_judged(tmp_path: Path) -> None:
    """The middle one of its samples, although the best would meet the bound."""
    slow = Figure("session", [70.0, 90.0, 95.0], "µs CPU", [Bound("required", 80)], part="captures")
    assert [verdict.met for verdict in slow.comparisons()] == [False]
    assert "| session | 90.0 µs CPU | required | 80.0 | 89 % | 100 % |" in page(
        runs_of([measured(tmp_path, slow)])
    )


@pytest.mark.parametrize(
    "peer", [*(title for title, _, _ in go_peers.LIBRARIES.values()), nghttp2.NAME, "ssh -L"]
)
def test_a_peer_in_another_language_that_is_ahead_has_its_reason(
    peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ahead = line_against("pairs", "one", [Floor(peer, seconds(0.5), 1.0)])
    behind = line_against("pairs", "two", [Floor(peer, seconds(2.0), 1.0)])
    results.show([ahead, behind])
    said = capsys.readouterr().out
    assert said.count(reason_for(peer)) == 1
    assert reason_for(peer)
