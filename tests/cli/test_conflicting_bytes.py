"""Bytes captured twice with different content: said, and no peer is blamed for what follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ACK, PSH
from tests.capture.tcp.test_reassembly import dialled, timed
from tests.cli.conftest import Ran

# The dialer opens d1, closes it, and writes to it again.
OPEN, CLOSE, LATE = b"\x08\x04good", b"\x0c\x00", b"\x0a\x04late"


@pytest.fixture
def talk(tmp_path: Path) -> Callable[[bytes], str]:
    """A capture in which the first frame is sent again as `copy`."""

    def make(copy: bytes) -> str:
        path = tmp_path / "talk.pcapng"
        parts = [(101, OPEN), (107, CLOSE), (101, copy), (109, LATE)]
        frames = [dialled(seq, flags=ACK | PSH, payload=data) for seq, data in parts]
        path.write_bytes(build.pcapng(timed(*frames)))
        return str(path)

    return make


def test_they_are_said_with_the_place_and_violations_are_only_possible(
    talk: Callable[[bytes], str], run: Callable[..., Ran]
) -> None:
    path = talk(b"\x08\x04evil")
    checked = run("check", path, "--protocol", "mplex", "--json")
    sentence = (
        "1 packet repeats bytes with other content, first at byte 2 of the dialer; "
        "the first copy captured was taken"
    )
    assert sentence in checked.err
    rows = [json.loads(line) for line in checked.out.splitlines()]
    rules = {(row["rule"], row["certainty"]) for row in rows if "rule" in row}
    assert rules == {("mplex.write-after-close", "possible")}
    listed = run("ls", path, "--protocol", "mplex", "--json")
    sessions = [json.loads(line) for line in listed.out.splitlines()]
    (note,) = [row["note"] for row in sessions if row["table"] == "sessions"]
    assert note.endswith(sentence)


def test_an_honest_copy_changes_nothing(
    talk: Callable[[bytes], str], run: Callable[..., Ran]
) -> None:
    checked = run("check", talk(OPEN), "--protocol", "mplex", "--json")
    assert "repeats bytes" not in checked.err
    rows = [json.loads(line) for line in checked.out.splitlines()]
    rules = {(row["rule"], row["certainty"]) for row in rows if "rule" in row}
    assert rules == {("mplex.write-after-close", "certain")}
