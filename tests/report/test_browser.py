"""The report in a real browser: self-contained, drawn, and usable by mouse and keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.browser import Page
from tests.report.conftest import Opener
from tests.report.table_builder import Play, Stage

from polymux.report import write_report

COLOURS = """(() => {
  const canvas = document.getElementById("lanes");
  const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < dots.length; i += 4) seen.add(dots[i] << 16 | dots[i + 1] << 8 | dots[i + 2]);
  return seen.size;
})()"""

# First and last position of the dialer's colour halfway up the curve, as parts of the width.
CURVE = """(() => {
  const canvas = document.querySelector("#throughput canvas");
  const whole = canvas.getBoundingClientRect();
  const plot = document.querySelector("#throughput .u-over").getBoundingClientRect();
  const row = Math.round((plot.top + plot.height / 2 - whole.top) * canvas.height / whole.height);
  const dots = canvas.getContext("2d").getImageData(0, row, canvas.width, 1).data;
  const blue = [];
  for (let x = 0; x < canvas.width; x++) {
    const part = (whole.left + x * whole.width / canvas.width - plot.left) / plot.width;
    const [red, , own, seen] = dots.slice(4 * x, 4 * x + 4);
    if (part >= 0 && part <= 1 && seen && own - red > 60) blue.push(part);
  }
  return [blue[0] ?? 1, blue[blue.length - 1] ?? 0];
})()"""


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)}).textContent"))


def rows(page: Page, grid: str) -> list[str]:
    script = f"[...document.querySelectorAll('#{grid} tbody tr[tabindex]')].map(r => r.textContent)"
    return [str(row) for row in page.run(script)]


def shown_frames(page: Page) -> int:
    return int(text(page, "#frame-count").split()[0].replace(",", ""))


def test_alone_in_a_folder_it_opens_without_error_or_request(
    told: Path, open_alone: Opener
) -> None:
    page = open_alone(told)
    assert page.troubles() == []
    assert page.heard() == []
    outside = [url for url in page.requests() if not url.startswith("data:,")]
    assert len(outside) == 1
    assert outside[0].startswith("file:")
    assert outside[0].endswith("moved.html")
    assert page.run("document.title") == "The story"


def test_it_is_ready_within_two_seconds(told: Path, open_alone: Opener) -> None:
    times = [int(open_alone(told).run("document.documentElement.dataset.ready")) for _ in range(3)]
    assert min(times) <= 2000, times


def test_what_is_wrong_comes_first_with_its_causes(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    wrong = text(page, "#wrong")
    for sentence in (
        "window-limited: 100 KiB window, 80 ms round trip, so at most 10 Mbit/s",
        "acceptor did not read d3: dialer waited 5 s (slow-reader)",
        "dialer's d5 was head-of-line blocked by d1 (upload/video) for 312 ms (head-of-line)",
        "acceptor granted no credit on d5: dialer was blocked for 800 ms (no-credit)",
        "acceptor did not answer dialer on d9 for 4 s (no-reply)",
        "dialer broke nerdbank.window-exceeded on d5: 20 bytes past a window",
        "acceptor reset d5: disk quota exceeded",
        "a2 was not seen to end",
        "60 ms after it had read the termination",
        "night.pcapng ends inside a block at byte 88,120",
    ):
        assert sentence in wrong
    parts = page.run("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert parts == ["wrong", "sessions", "session", "sequence", "streams", "frames"]


def test_lanes_and_throughput_are_drawn(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    assert page.run(COLOURS) > 20
    assert page.run("document.querySelectorAll('#throughput canvas').length") == 1
    before = page.run("document.getElementById('lanes').toDataURL()")
    page.click("#session-grid tbody tr:nth-child(3)")
    assert "mplex" in text(page, "#session-title")
    assert page.run("document.getElementById('lanes').toDataURL()") != before
    assert page.run(COLOURS) > 20


@pytest.mark.parametrize(
    ("lasted", "sent_at"), [(600, 100), (1_000, 999), (10_000, 9_500), (10_000, 100)]
)
def test_a_bucket_is_drawn_though_it_is_the_only_one_or_the_last(
    lasted: int, sent_at: int, tmp_path: Path, open_alone: Opener
) -> None:
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef")
    play.stream("d1", "short")
    play.frame(0, "dialer", "NewStream", "d1")
    play.frame(sent_at, "dialer", "MessageInitiator", "d1", 5_000)
    play.end(lasted)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    assert page.troubles() == []
    left, right = page.run(CURVE)
    width = min(1_000, lasted) / lasted  # of a bucket, as a share of the session
    assert right - left > 0.9 * width
    assert left - 0.02 <= sent_at / lasted <= right + 0.02


def test_a_session_of_one_instant_can_be_looked_at(tmp_path: Path, open_alone: Opener) -> None:
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef")
    play.stream("d1", "short")
    play.frame(0, "dialer", "MessageInitiator", "d1", 5_000)
    play.end(0)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    assert page.troubles() == []
    assert page.run("document.querySelectorAll('#throughput canvas').length") == 1


def test_the_filter_leaves_only_matching_streams(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    assert len(rows(page, "stream-grid")) == 8
    page.press("/")
    assert page.run("document.activeElement.id") == "stream-filter"
    page.type("reset quota")
    assert [row[:2] for row in rows(page, "stream-grid")] == ["d5"]
    assert text(page, "#stream-count") == "1 of 8"
    page.press("Escape")
    assert len(rows(page, "stream-grid")) == 8
    page.click("#stream-found")
    assert [row[:2] for row in rows(page, "stream-grid")] == ["d3", "d5", "a4", "d9"]


def test_columns_sort_both_ways(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    head = "#stream-grid th:nth-child(6)"
    page.click(f"{head} button")
    assert page.run(f"document.querySelector('{head}').getAttribute('aria-sort')") == "descending"
    assert rows(page, "stream-grid")[0].startswith("d1")
    page.click(f"{head} button")
    assert page.run(f"document.querySelector('{head}').getAttribute('aria-sort')") == "ascending"
    assert rows(page, "stream-grid")[-1].startswith("d1")


def test_a_chosen_stream_shows_its_frames_and_no_others(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    assert shown_frames(page) == 1383
    page.click("#stream-grid tbody tr:nth-child(5)")
    assert shown_frames(page) == 385
    streams = page.run(
        "[...new Set([...document.querySelectorAll('#frame-grid td:nth-child(5)')]"
        ".map(cell => cell.textContent))]"
    )
    assert streams == ["d5"]
    assert "thumbnails" in text(page, "#scope")
    page.click("#scope button")
    assert shown_frames(page) == 1383


def test_a_window_drawn_with_the_mouse_shows_its_frames(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    page.run("document.getElementById('lanes').scrollIntoView({block: 'center'})")
    left, top = page.run(
        "(() => { const b = document.getElementById('lanes').getBoundingClientRect();"
        " return [b.x, b.y]; })()"
    )
    page.drag(left + 400, top + 120, left + 500, top + 120)
    assert 20 < shown_frames(page) < 400
    assert " s to " in text(page, "#window")
    page.click("#zoom-all")
    assert shown_frames(page) == 1383


def test_a_finding_leads_to_its_place(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    script = (
        "[...document.querySelectorAll('#findings .item')]"
        ".find(i => i.textContent.includes('head-of-line')).click()"
    )
    page.run(script)
    page.settle()
    assert "d5 thumbnails" in text(page, "#scope")
    assert 0 < shown_frames(page) < 385
    assert page.run("document.activeElement.id") == "lanes"


def test_a_session_shows_how_long_its_requests_took(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    found = "[...document.querySelectorAll('#session-grid tbody tr[tabindex]')]"
    page.run(f"{found}.find((row) => row.textContent.includes('streamux')).click()")
    facts = text(page, "#session-facts")
    assert "requests of the dialer 31, 30 answered" in facts
    assert "half within 1.2 ms, 90 % within 4 ms, 99 % within 9.1 ms, longest 12 ms" in facts


def test_a_victim_shows_what_waiting_behind_others_cost(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    (row,) = [row for row in rows(page, "stream-grid") if "thumbnails" in row]
    assert "312 ms" in row


def test_a_rule_has_a_page_behind_its_violations(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    page.click("#findings .rule")
    shown = text(page, "#rule")
    assert page.run("document.getElementById('rule').open") is True
    assert "nerdbank.frame-after-termination" in shown
    for word in ("section", "severity", "error", "2 times", "a live session", "An example"):
        assert word in shown
    example = text(page, "#rule .example")
    assert "ChannelTerminated" in example
    assert "<-- breaks the rule" in example
    page.press("Escape")
    assert page.run("document.getElementById('rule').open") is False


def test_it_can_be_used_by_keyboard_alone(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    page.press("2")
    assert page.run("document.activeElement.id") == "sessions-title"
    for _ in range(14):
        page.press("Tab")
        if page.run("document.activeElement.closest('#session-grid tbody') !== null"):
            break
    page.press("ArrowDown")
    page.press("Enter")
    assert "streamux" in text(page, "#session-title")
    page.press("ArrowDown")
    page.run("document.querySelector('#session-grid tbody tr').focus()")
    page.press("Enter")
    assert "nerdbank" in text(page, "#session-title")
    page.run("document.getElementById('lanes').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.press(key)
    assert text(page, "#readout").startswith("d3 logs")
    assert "acceptor did not read d3" in text(page, "#readout")
    page.press("Enter")
    assert "d3 logs" in text(page, "#scope")
    whole = shown_frames(page)
    page.press("+")
    page.press("+")
    assert shown_frames(page) < whole
    page.press("Escape")
    page.press("Escape")
    assert text(page, "#scope") == "all streams, whole session"
    page.press("?")
    assert page.run("document.getElementById('help').open") is True
    assert page.troubles() == []


def test_the_help_lists_every_key_in_words(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    page.press("?")
    shown = text(page, "#help")
    assert "[object" not in shown
    listed = page.run("document.querySelectorAll('#help dt kbd').length")
    assert listed == page.run("document.querySelectorAll('#help dd').length") == 11
    for words in ("filter the streams", "zoom in, out, whole session", "this list"):
        assert words in shown


def test_what_is_chosen_is_in_the_address_and_comes_back_with_it(
    told: Path, open_alone: Opener
) -> None:
    page = open_alone(told)
    assert page.run("location.hash") == ""
    page.click("#session-grid tbody tr:nth-child(3)")
    assert page.run("location.hash") == "#session=77aa01c2deadbeef"
    page.click("#session-grid tbody tr:nth-child(1)")
    page.click("#stream-grid tbody tr:nth-child(5)")
    assert page.run("location.hash") == "#session=5f0c3a7be1d24c88&stream=d5"
    page.reload()
    assert "nerdbank" in text(page, "#session-title")
    assert "d5 thumbnails" in text(page, "#scope")
    page.run("history.back()")
    page.wait("location.hash === '#session=5f0c3a7be1d24c88'")
    page.wait("document.getElementById('scope').textContent.includes('all streams')")
    page.run("history.back()")
    page.wait("document.getElementById('session-title').textContent.includes('mplex')")
    page.run("history.forward()")
    page.wait("document.getElementById('session-title').textContent.includes('nerdbank')")
    assert page.troubles() == []


def test_one_action_is_one_step_back(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    before = page.run("history.length")
    page.run(
        "[...document.querySelectorAll('#findings .item')]"
        ".find(i => i.textContent.includes('head-of-line')).click()"
    )
    page.settle()
    assert page.run("location.hash") == "#session=5f0c3a7be1d24c88&stream=d5"
    assert page.run("history.length") == before + 1


@pytest.mark.parametrize("said", ["#session=gone", "#stream=d5", "#%%%", "#session=&stream="])
def test_an_address_that_names_nothing_here_shows_the_first_session(
    said: str, told: Path, open_alone: Opener
) -> None:
    page = open_alone(told)
    page.run(f"location.hash = {json.dumps(said)}")
    page.settle()
    assert "nerdbank" in text(page, "#session-title")
    assert text(page, "#scope") == "all streams, whole session"
    assert page.troubles() == []


def test_an_open_stream_never_stands_under_nothing_is_wrong(
    tmp_path: Path, open_alone: Opener
) -> None:
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef")
    play.stream("d1", "waits", ending="half-closed", ended_dialer="ended")
    play.frame(0, "dialer", "MessageInitiator", "d1", 100)
    play.end(1000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    assert text(page, "#wrong-title") == "1 stream not seen to end"
    wrong = text(page, "#wrong")
    assert "no rule was broken and no stream stalled" in wrong
    assert "acceptor was not seen to end its half of d1" in wrong
    assert "othing is wrong" not in wrong


def test_without_a_finding_and_without_an_open_stream_nothing_is_wrong(
    tmp_path: Path, open_alone: Opener
) -> None:
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef")
    play.stream("d1", "over", ending="clean")
    play.frame(0, "dialer", "MessageInitiator", "d1", 100)
    play.end(1000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    assert text(page, "#wrong-title") == "Nothing is wrong"
    assert "In 1 session: nothing wrong was found." in text(page, "#wrong")


def test_a_protocol_that_does_not_fit_its_bytes_is_the_first_finding(
    tmp_path: Path, open_alone: Opener
) -> None:
    note = "the bytes look like nerdbank:version=3 (46 of 46 fit), but the option says mplex"
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef", note=note)
    play.violation(10, "dialer", "mplex.bad-flag", None, certainty="possible")
    play.end(1000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    first, second = page.run(
        "[...document.querySelectorAll('#findings > li')].map(li => li.textContent)"
    )
    assert note in first
    assert "dialer may have broken mplex.bad-flag" in second


def test_dark_and_light_follow_the_system_and_the_reader(told: Path, open_alone: Opener) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = open_alone(told, dark=True)
    assert dark.run("document.documentElement.dataset.theme") == "dark"
    light = open_alone(told)
    assert light.run(ground) != dark.run(ground)
    pictures = "document.getElementById('lanes').toDataURL()"
    before = light.run(pictures)
    light.press("t")
    assert light.run("document.documentElement.dataset.theme") == "light"
    light.press("t")
    assert light.run("document.documentElement.dataset.theme") == "dark"
    assert light.run(ground) == dark.run(ground)
    assert light.run(pictures) != before
    assert "dark" in text(light, "#theme")


def test_a_narrow_window_does_not_scroll_sideways(told: Path, open_alone: Opener) -> None:
    page = open_alone(told, width=640)
    assert page.run("document.documentElement.scrollWidth <= innerWidth") is True
    assert page.run(COLOURS) > 20
