"""`docs/json.md` lists exactly the keys that the commands print."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import BROKEN, Ran
from tests.cli.threaded_server import COMMAND, Serving, echo, served
from tools.json_page import lines

Run = Callable[..., Ran]
PAGE = Path(__file__).parent.parent.parent / "docs" / "json.md"

DECODED = "0804676f6f640c00 0a0568656c6c6f 0a05"  # a frame after the close, and half of one
HOW: dict[str, Callable[[str], list[str]]] = {
    "ls": lambda capture: [capture],
    "check": lambda capture: [capture],
    "frames": lambda capture: [capture],
    "follow": lambda capture: [capture, "--stream", "d1"],
    "index": lambda capture: [capture],
    "diff": lambda capture: [capture, capture, "--all"],
    "decode": lambda capture: ["--protocol", "mplex", DECODED],
    "rules": lambda capture: ["mplex"],
}


def printed(text: str) -> set[frozenset[str]]:
    """The different sets of keys of these lines."""
    return {frozenset(json.loads(line)) for line in text.splitlines()}


def listed(command: str) -> set[frozenset[str]]:
    return {frozenset(name for name, _, _ in keys) for _, keys in lines()[command]}


@pytest.mark.parametrize("command", HOW)
def test_the_page_has_the_keys_of_every_line(
    command: str, run: Run, lossy: Callable[..., str]
) -> None:
    ran = run(command, "--json", *HOW[command](lossy(BROKEN, [2])))
    assert printed(ran.out) == listed(command)


def test_the_page_has_the_keys_of_what_is_received(run: Run) -> None:
    with served(echo, "mplex") as url:
        text = run("connect", url, "--protocol", "mplex", "--send", "x", "--json").out
    with Serving("tcp://127.0.0.1:0", "--protocol", "mplex", "--json", "--once") as serving:
        subprocess.run(
            [*COMMAND, "connect", serving.url, "--protocol", "mplex", "--json"],
            input=b"\xff\xfe", capture_output=True, timeout=100, check=True,
        )  # fmt: skip
        _, data, _ = serving.wait()
    keys = next(iter(listed("connect")))
    assert printed(text) == {keys - {"hex"}}
    assert printed(data) == {keys - {"text"}}
    assert listed("serve") == {keys}


def test_the_page_has_the_keys_of_a_conformance_run(run: Run) -> None:
    with served(echo, "mplex") as url:
        arguments = ("--protocol", "mplex", "--json", "MPLEX-HDR-2")
        text = run("conform", url, *arguments, "--level", "1", "--timeout", "20").out
    text += run("conform", "--list", *arguments).out
    assert printed(text) == listed("conform")


def test_the_page_has_the_keys_of_a_replay(run: Run, lossy: Callable[..., str]) -> None:
    with served(echo, "mplex") as url:
        capture = lossy([(0, b"\x08\x04good\x0a\x05hello\x0c\x00", 1)], [])
        text = run("replay", capture, url, "--timeout", "1", "--protocol", "mplex").out
    assert printed(text) == listed("replay")


def test_the_page_has_a_section_for_every_command_that_prints_json(run: Run) -> None:
    sections = {line[11:] for line in PAGE.read_text().splitlines() if line[:11] == "## polymux "}
    lake = {f"lake {name}" for name in ("compact", "expire", "history", "vacuum")}
    assert sections == {*HOW, *lake, "conform", "connect", "replay", "serve"}
    for command in sections:
        assert "--json" in run(*command.split(), "--help").out
