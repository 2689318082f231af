"""Names and texts from hostile peers, are shown as text wherever a report shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.conftest import Opener
from tests.report.hostile_texts import HOSTILE
from tests.report.table_builder import Play, Stage

from polymux.report import write_report
from polymux.text.sanitize import escape_hidden

LIMIT = 160


def hostile_stage() -> Stage:
    """Every hostile text as a stream's name, an error, a detail, a note and a file name."""
    stage = Stage()
    for place, bad in enumerate(HOSTILE):
        stage.capture(f"{bad}-{place}", "damaged", error=bad, offset=1)
    play = Play(stage, "one", "nerdbank")
    for place, bad in enumerate(HOSTILE):
        key = f"d{2 * place + 1}"
        play.stream(key, bad, at=place, ending="reset", reset_by="dialer", error=bad)
        play.frame(place * 10, "dialer", "Content", key, 50 + place)
        play.violation(place * 10 + 5, "dialer", f"nerdbank.bad-frame-{place % 5}", key, detail=bad)
        play.stall(place, 60_000 + place, key, "dialer", "head-of-line", "d1", detail=bad)
    play.end(60_000)
    for place, bad in enumerate(HOSTILE):
        play = Play(stage, f"{place:02}{bad[:200]}", bad, version=bad, dialect=bad, evidence=bad,
                    note=bad, dialer=bad, acceptor=bad, capture=[bad])  # fmt: skip
        play.stream("d1", bad, ending="reset", error=bad)
        play.frame(1, "dialer", bad or "x", "d1", 10)
        play.violation(2, "dialer", f"x.{bad}", "d1", detail=bad)
        play.end(1000)
    return stage


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    tables = hostile_stage().write(folder / "tables")
    write_report(tables, folder / "report.html", title=" ".join(HOSTILE)[:3000])
    return folder / "report.html"


def test_there_are_at_least_sixty_hostile_texts() -> None:
    assert len(set(HOSTILE)) >= 60


def test_hostile_texts_run_nothing_wherever_they_are_shown(
    hostile: Path, open_alone: Opener
) -> None:
    page = open_alone(hostile)
    # But for the one drawing of the page itself: the sequence of the chosen stream.
    active = "script, style, img, iframe, svg:not(#sequence-box > svg.sequence), base, object"
    elements = page.run(f"document.querySelectorAll({active!r}).length")
    for button in ("#findings .rule", "#findings .item", "#findings .quiet"):
        page.click(button)
        page.press("Escape")
    page.run("for (const more of document.querySelectorAll('#findings .quiet')) more.click()")
    for row in range(1, 40, 6):
        page.run(f"document.querySelectorAll('#session-grid tbody tr')[{row}].click()")
        page.run("document.querySelectorAll('#stream-grid tbody tr')[0].click()")
        page.run("document.querySelectorAll('#frame-grid tbody tr button')[0]?.click()")
        page.settle()
    page.run("document.querySelectorAll('#findings .rule').forEach(b => b.dispatchEvent("
             "new MouseEvent('mouseover', {bubbles: true})))")  # fmt: skip
    assert page.heard() == []
    assert page.troubles() == []
    assert [url for url in page.requests() if not url.startswith(("file:", "data:,"))] == []
    after = page.run(f"document.querySelectorAll({active!r}).length")
    assert elements == after == 3
    drawn = page.run("[...new Set([...document.querySelectorAll('svg *')].map(n => n.localName))]")
    assert set(drawn) <= {"line", "path", "rect", "text"}
    assert (
        page.run("document.querySelectorAll('[onclick],[onerror],[onload],[style*=url]').length")
        == 0
    )


def test_hostile_names_and_errors_are_shown_literally(hostile: Path, open_alone: Opener) -> None:
    page = open_alone(hostile)
    names = page.run(
        "[...document.querySelectorAll('#stream-grid td:nth-child(2)')].map(c => c.textContent)"
    )
    endings = page.run(
        "[...document.querySelectorAll('#stream-grid td:nth-child(5)')].map(c => c.textContent)"
    )
    assert names == [escape_hidden(bad, LIMIT) for bad in HOSTILE]
    assert endings == [f"reset by dialer: {escape_hidden(bad, LIMIT)}" for bad in HOSTILE]


def test_hostile_details_addresses_and_files_are_shown_literally(
    hostile: Path, open_alone: Opener
) -> None:
    page = open_alone(hostile)
    page.run("for (const more of document.querySelectorAll('#findings .quiet')) more.click()")
    everything = str(page.run("document.body.textContent"))
    for bad in HOSTILE:
        assert escape_hidden(bad, 60) + " → " + escape_hidden(bad, 60) in everything
        assert escape_hidden(f"x.{bad}", LIMIT) in everything
    for bad in HOSTILE[:12]:
        assert escape_hidden(bad, LIMIT)[:100] in str(
            page.run("document.querySelector('#wrong').textContent")
        )
    assert page.run("document.title").startswith("<script>pwned(1)</script>")


@pytest.mark.parametrize("bad", ["<img src=x onerror=pwned(1)>", "<svg onload=pwned(1)>"])
def test_the_traps_hear_what_a_careless_page_would_run(
    hostile: Path, open_alone: Opener, tmp_path: Path, bad: str
) -> None:
    """A check of these tests: markup in the page is refused, and executed without the policy."""
    careless = tmp_path / "careless.html"
    careless.write_text(hostile.read_text().replace("<main>", f"<main>{bad}", 1))
    refused = open_alone(careless)
    refused.wait("window.__heard.length > 0")
    assert all(heard.startswith("policy: ") for heard in refused.heard())
    text = careless.read_text()
    start = text.index("<meta http-equiv")
    careless.write_text(text[:start] + text[text.index(">", start) + 1 :])
    lost = open_alone(careless)
    lost.wait("window.__heard.length > 0")
    assert "pwned: 1" in lost.heard()


def test_the_policy_refuses_markup_made_from_text(hostile: Path, open_alone: Opener) -> None:
    page = open_alone(hostile)
    made = page.run(
        "(() => { try { document.getElementById('readout').innerHTML = '<b>x</b>'; return 'made'; }"
        " catch (refusal) { return refusal.name; } })()"
    )
    assert made == "TypeError"


def test_no_hidden_character_reaches_the_file(hostile: Path) -> None:
    text = hostile.read_text()
    body = text[text.index('id="data">') : text.index("</script>", text.index('id="data">'))]
    assert body.isascii()
    values = json.loads(body.removeprefix('id="data">'))
    assert "\u202e" not in json.dumps(values, ensure_ascii=False)
