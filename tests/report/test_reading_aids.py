"""What helps a reader of the page: sequence, commands, causes, legend, print, accessibility."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.interop import node_peer
from tests.report.browser import Page
from tests.report.conftest import Opener
from tests.report.table_builder import Play, Stage

from polymux.report import write_report

AXE = node_peer.PEERS / "node_modules" / "axe-core" / "axe.min.js"
FAULTS = """axe.run(document, {resultTypes: ["violations"]}).then((result) => result.violations
  .filter((v) => v.impact === "serious" || v.impact === "critical")
  .map((v) => v.id + ": " + v.nodes[0].html))"""


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)}).textContent"))


def texts(page: Page, selector: str) -> list[str]:
    found = json.dumps(selector)
    return list(page.run(f"[...document.querySelectorAll({found})].map((n) => n.textContent)"))


def choose(page: Page, session: str, stream: str) -> None:
    page.run(f"location.hash = '#session={session}&stream={stream}'")
    page.wait(f"document.getElementById('sequence-title').textContent.includes('{stream}')")


@pytest.fixture
def credited(tmp_path: Path) -> Path:
    """A stream with two grants, all of its credit spent twice, and a stall between."""
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef", protocol="nerdbank")
    play.stream("d1", "upload", credit_granted_dialer=8192, credit_granted_acceptor=None,
                bytes_dialer=8192, units_dialer=8192)  # fmt: skip
    play.frame(0, "dialer", "Offer", "d1", 0)
    play.frame(1_000, "acceptor", "OfferAccepted", "d1", 0, amount=4096)
    for n in range(4):
        play.frame(2_000 + n, "dialer", "Content", "d1", 1024)
    play.stall(2_003, 400_000, "d1", "dialer", "no-credit")
    play.frame(402_000, "acceptor", "ContentProcessed", "d1", 0, amount=4096)
    play.frame(402_500, "dialer", "Content", "d1", 4096)
    play.end(500_000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    return tmp_path / "report.html"


def test_a_chosen_stream_is_drawn_as_a_sequence_with_its_credit(
    credited: Path, open_alone: Opener
) -> None:
    page = open_alone(credited)
    assert "Choose a stream" in text(page, "#sequence")
    choose(page, "77aa01c2deadbeef", "d1")
    assert texts(page, ".sequence .what") == [
        "Offer",
        "OfferAccepted · +4,096 · credit of the dialer now 4 KiB",
        "4 × Content · 4 KiB · in 3 us · credit left 0 bytes",
        "ContentProcessed · +4,096 · credit of the dialer now 4 KiB",
        "Content · 4 KiB · credit left 0 bytes",
    ]
    assert texts(page, ".sequence .stall-text") == ["dialer stalled 400 ms: no send credit"]
    assert page.run("document.querySelectorAll('.sequence .credit-box.none').length") == 2
    assert page.troubles() == []


def test_a_sequence_follows_the_window_and_shows_violations(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    choose(page, "5f0c3a7be1d24c88", "d5")
    whole = len(texts(page, ".sequence .what"))
    assert sum("violation" in words for words in texts(page, ".sequence .what")) == 3
    page.run("document.getElementById('lanes').focus()")
    for _ in range(4):
        page.press("+")
    assert len(texts(page, ".sequence .what")) < whole
    assert "in this window" in text(page, "#sequence-count")


def test_a_long_sequence_is_unfolded_on_request(tmp_path: Path, open_alone: Opener) -> None:
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef")
    play.stream("d1", "chat")
    for n in range(100):
        play.frame(n * 100, "dialer" if n % 2 else "acceptor", "Message", "d1", 10)
    play.end(20_000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    choose(page, "77aa01c2deadbeef", "d1")
    assert len(texts(page, ".sequence .what")) == 40
    page.click("#sequence-box button")
    assert len(texts(page, ".sequence .what")) == 100


def test_commands_name_what_is_shown_and_can_be_copied(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    page.press("c")
    assert page.run("document.activeElement.className") == "copy"
    assert "polymux ls demo.pcapng --session 5f0c3a7be1d24c88" in texts(page, "#commands-list code")
    choose(page, "5f0c3a7be1d24c88", "d5")
    commands = [shlex.split(command) for command in texts(page, "#commands-list code")]
    assert commands[0] == [
        "polymux", "frames", "demo.pcapng", "--session", "5f0c3a7be1d24c88", "--stream", "d5",
    ]  # fmt: skip
    sql = commands[2][-1]
    assert sql == ("select * from stalls where session_id = '5f0c3a7be1d24c88' and stream = 'd5'")
    page.run("navigator.clipboard.writeText = (copied) => { window.__copied = copied; }")
    page.click("#commands-list li:first-child button")
    page.wait("window.__copied !== undefined")
    assert page.run("window.__copied").startswith("polymux frames demo.pcapng")
    page.wait("document.getElementById('said').textContent.includes('copied')")


@pytest.mark.parametrize(
    "file", ["a b.pcapng", "it's.pcapng", "-rf.pcapng", "$(touch x).pcapng", "a;rm -rf ~.pcapng"]
)
def test_a_capture_with_any_name_is_one_word_of_a_command(
    file: str, tmp_path: Path, open_alone: Opener
) -> None:
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef", capture=[file])
    play.stream("d1", "short")
    play.frame(0, "dialer", "MessageInitiator", "d1", 100)
    play.end(1000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    words = shlex.split(texts(page, "#commands-list code")[0])
    name = f"./{file}" if file.startswith("-") else file
    assert words == ["polymux", "ls", name, "--session", "77aa01c2deadbeef"]


@pytest.mark.parametrize(("files", "can_annotate"), [(["a.pcapng"], 1), (["a.pcap", "b.pcap"], 0)])
def test_only_one_capture_can_be_annotated(
    files: list[str], can_annotate: int, tmp_path: Path, open_alone: Opener
) -> None:
    stage = Stage()
    play = Play(stage, "77aa01c2deadbeef", capture=files)
    play.stream("d1", "short")
    play.frame(0, "dialer", "MessageInitiator", "d1", 100)
    play.end(1000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "report.html")
    page = open_alone(tmp_path / "report.html")
    commands = [shlex.split(command) for command in texts(page, "#commands-list code")]
    assert ["polymux", "ls", *files, "--session", "77aa01c2deadbeef"] in commands
    assert sum(words[1] == "annotate" for words in commands) == can_annotate


def test_a_cause_of_stalls_has_a_page_with_what_to_do(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    page.run(
        "[...document.querySelectorAll('#findings .rule')]"
        ".find((b) => b.textContent === 'head-of-line').click()"
    )
    shown = text(page, "#rule")
    assert page.run("document.getElementById('rule').open") is True
    assert "waited behind it" in shown
    assert "what to do" in shown
    page.press("Escape")


def test_the_legend_explains_every_sign_in_words(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    assert page.run("document.getElementById('meaning').open") is False
    page.click("#meaning summary")
    signs = texts(page, "#meaning-list dt")
    assert signs == [
        "dialer", "acceptor", "no reply", "no send credit", "slow reader", "head-of-line blocked",
        "network", "blocked", "error", "warning", "reset or cancelled", "open",
    ]  # fmt: skip
    assert all(len(words) > 20 for words in texts(page, "#meaning-list dd"))


def test_on_paper_there_are_no_controls_and_the_colours_are_light(
    told: Path, open_alone: Opener
) -> None:
    page = open_alone(told, dark=True)
    page.call("Emulation.setEmulatedMedia", media="print")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.documentElement.dataset.theme") == "light"
    assert page.run("document.getElementById('commands').open") is True
    hidden = page.run(
        "['.top nav', '#theme', '#stream-filter', '.copy'].map((s) =>"
        " getComputedStyle(document.querySelector(s)).display)"
    )
    assert hidden == ["none"] * 4
    page.run("dispatchEvent(new Event('afterprint'))")
    page.call("Page.printToPDF", printBackground=True)
    assert page.troubles() == []


# Colour vision by Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISIONS = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as seen with this colour vision."""
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    seen = [
        min(1.0, max(0.0, sum(w * c for w, c in zip(row, linear, strict=True))))
        for row in VISIONS[vision]
    ]
    r, g, b = seen
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
def test_the_two_sides_differ_for_readers_with_any_colour_vision(
    vision: str, dark: bool, told: Path, open_alone: Opener
) -> None:
    page = open_alone(told, dark=dark)
    values = page.run(
        "['--dialer', '--acceptor'].map((name) =>"
        " getComputedStyle(document.documentElement).getPropertyValue(name).trim())"
    )
    dialer, acceptor = (lab(value, vision) for value in values)
    distance = sum((a - b) ** 2 for a, b in zip(dialer, acceptor, strict=True)) ** 0.5
    assert distance > 25, values


def test_stalls_differ_by_their_pattern_not_only_by_colour(told: Path, open_alone: Opener) -> None:
    page = open_alone(told)
    patterns = page.run(
        "[...document.querySelectorAll('#legend .hatched')].map((node) =>"
        " getComputedStyle(node).backgroundImage.replaceAll(/rgb[^)]*\\)/g, 'ink'))"
    )
    assert len(patterns) == len(set(patterns)) == 5


@pytest.mark.parametrize("width", [500, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_has_no_serious_accessibility_fault(
    dark: bool, width: int, told: Path, open_alone: Opener
) -> None:
    node_peer.require()
    page = open_alone(told, dark=dark, width=width)
    page.run("for (const d of document.querySelectorAll('details')) d.open = true")
    choose(page, "5f0c3a7be1d24c88", "d5")
    page.settle()
    assert page.run("document.documentElement.scrollWidth <= innerWidth") is True
    page.run(AXE.read_text() + "; 0")
    assert page.run(FAULTS) == []
    page.click("#findings .rule")
    assert page.run(FAULTS) == []
    assert page.troubles() == []
