"""`polymux ls`: one sentence a stream, counts that agree, and lines that fit the terminal."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CLEAN, Ran

from polymux.analysis.session.analyzer import SessionSummary
from polymux.cli.commands.ls import short_id_length
from polymux.cli.support.output import TableColumn, fitting_columns
from polymux.cli.support.stream_ranking import StreamRanking
from polymux.core.endpoint import Endpoint
from polymux.core.events import Accepted, Credit
from polymux.protocols.registry import create

Run = Callable[..., Ran]
Lines = list[tuple[int, bytes, int]]


class Talk:
    """Two endpoints and the conversation they have; `now` is milliseconds."""

    def __init__(self, protocol: str) -> None:
        self.ends = [Endpoint(create(protocol, vantage=side), side) for side in (0, 1)]
        self.lines: Lines = []
        self.now = 1
        for side, end in enumerate(self.ends):
            end.start(bytes([0x90 >> side]) * 16)
        self.pass_on()

    def pass_on(self) -> None:
        """What both sides have to send passes."""
        moved = True
        while moved:
            moved = False
            for side in (0, 1):
                data = self.ends[side].data_to_send(1 << 20)
                if data:
                    moved = True
                    self.lines.append((side, data, self.now))
                    for event in self.ends[1 - side].receive(data, self.now / 1e3):
                        if isinstance(event, Accepted | Credit) and event.stream is not None:
                            self.ends[1 - side].resume(event.stream)


def unread(pauses: int = 2) -> Lines:
    """A dialer that fills its window; an acceptor that reads only after each pause of 300 ms."""
    talk = Talk("nerdbank:version=3")
    dialer, acceptor = talk.ends
    stream = dialer.open(b"bulk", 1000)
    talk.pass_on()
    theirs = acceptor.protocol.streams.find(stream.key)
    assert theirs is not None
    acceptor.accept(theirs, 1000)
    talk.pass_on()
    dialer.send(stream, b"x" * 1000 * (pauses + 1))
    talk.pass_on()
    for _ in range(pauses):
        talk.now += 300
        acceptor.read(theirs, 1000)
        talk.pass_on()
    return talk.lines


def unanswered(protocol: str) -> Lines:
    """A dialer that asks (or offers a channel) and hears nothing for 12 s."""
    talk = Talk(protocol)
    dialer = talk.ends[0]
    stream = dialer.open(b"" if protocol == "streamux" else b"asked")
    if not protocol.startswith("nerdbank"):
        dialer.send(stream, b"a question")
        dialer.end(stream)
    talk.pass_on()
    return [*talk.lines, (0, b"", talk.now + 12_000)]


def rows(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.out.splitlines()]


# --- what is said


def test_a_stall_names_the_side_that_did_not_and_the_side_that_waited(
    run: Run, capture: Callable[..., str]
) -> None:
    session, stream = rows(run("ls", capture(unread())))
    assert stream["why"] == (
        "acceptor granted no credit on d1: dialer was blocked for 300 ms (no-credit) (and 1 more)"
    )
    assert (session["violations"], session["stalls"], session["findings"]) == (0, 2, 2)


def test_a_violation_names_the_side_that_broke_the_rule(
    run: Run, capture: Callable[..., str]
) -> None:
    _, stream, _ = rows(run("ls", capture()))
    assert stream["why"].startswith("dialer broke mplex.write-after-close on d3: ")


def test_a_violation_outside_any_stream_names_the_side_too(
    run: Run, capture: Callable[..., str]
) -> None:
    path = capture([(0, b"\x08\x01a", 1), (1, b"\x0f\x00", 2)])
    ran = run("ls", path, "--protocol", "mplex", "--format", "table")
    assert "acceptor broke mplex.bad-flag" in ran.out


def test_check_says_the_same_sentence(run: Run, capture: Callable[..., str]) -> None:
    path = capture()
    _, stream, _ = rows(run("ls", path))
    assert stream["why"] in run("check", path, "--format", "table").out


def test_a_peer_that_did_not_answer_is_a_finding_of_its_own() -> None:
    worst = StreamRanking(10)
    asked = {"session_id": "s", "stream": "d1"}
    stall = {
        "sender": "acceptor",
        "cause": "no-reply",
        "duration_us": 12_000_000,
        "blocking_stream": None,
    }
    worst.add_stall({**asked, **stall, "detail": "the dialer had ended its half"})
    worst.add_stream({**asked, "bytes_dialer": 9, "bytes_acceptor": 0, "ending": "half-closed"})
    (listed,) = worst.worst_streams()
    assert listed.reason == "acceptor did not answer dialer on d1 for 12 s (no-reply)"
    assert listed.rank == 1


@pytest.mark.parametrize("protocol", ["mplex", "streamux", "nerdbank:version=3"])
def test_a_request_an_offer_and_an_ended_half_without_an_answer_are_findings(
    protocol: str, run: Run, capture: Callable[..., str]
) -> None:
    path = capture(unanswered(protocol))
    session, stream = rows(run("ls", path, "--protocol", protocol))
    assert stream["why"].startswith("acceptor did not answer dialer on d")
    assert stream["why"].endswith(" for 12 s (no-reply)")
    assert (session["stalls"], session["findings"], session["unfinished"]) == (1, 1, 1)
    text = run("ls", path, "--protocol", protocol, "--format", "table").out
    assert "0 violations, 1 stall, 1 stream not seen to end" in text


def test_an_idle_sender_is_no_finding(run: Run, capture: Callable[..., str]) -> None:
    quiet = [*CLEAN[:1], (1, b"\x09\x02ok", 900), (1, b"\x09\x02ok\x0b\x00", 1900)]
    session, stream = rows(run("ls", capture(quiet)))
    assert (session["stalls"], session["findings"]) == (0, 0)
    assert stream["why"] == "carried 9 bytes"


@pytest.mark.parametrize(
    ("conversation", "said"),
    [
        ([(0, b"\x08\x01a\x0a\x02hi", 1)], "d1 was not seen to end"),
        ([(0, b"\x08\x01a\x0a\x02hi\x0c\x00", 1)], "acceptor was not seen to end its half of d1"),
    ],
    ids=["open", "half-closed"],
)
def test_a_stream_that_is_not_over_is_counted_and_told(
    conversation: Lines, said: str, run: Run, capture: Callable[..., str]
) -> None:
    path = capture(conversation)
    text = run("ls", path, "--protocol", "mplex", "--format", "table").out
    assert "1 stream not seen to end" in text
    assert "nothing" not in text
    session, stream = rows(run("ls", path, "--protocol", "mplex"))
    assert session["unfinished"] == 1
    # What the other side owes may be a finding besides; without one the ending is the reason.
    assert said in stream["why"] or "did not answer dialer on d1" in stream["why"]


def test_counts_are_of_findings_with_proper_plurals(run: Run, capture: Callable[..., str]) -> None:
    text = run("ls", capture(unread()), "--format", "table").out
    assert "\n1 session, 1 stream, " in text
    assert "\n0 violations, 2 stalls, 1 stream not seen to end\n" in text


# --- how it is shown


def test_a_pipe_gets_a_table_on_request_with_every_column(
    run: Run, capture: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ran = run("ls", capture(), "--format", "table")
    assert ran.code == 0
    heads = [line.split() for line in ran.out.splitlines() if line.startswith("session")]
    assert heads[0][:8] == [
        "session", "protocol", "dialer", ">", "acceptor", "lasted", "streams", "findings",
    ]  # fmt: skip
    assert heads[0][8:] == ["ending", "frames", "bytes", ">", "bytes", "<"]
    assert "stream" in heads[1]
    assert "\x1b" not in ran.out


def test_csv_has_a_row_a_stream_with_its_session(run: Run, capture: Callable[..., str]) -> None:
    ran = run("ls", capture(), "--format", "csv")
    found = list(csv.DictReader(io.StringIO(ran.out)))
    assert [row["stream"] for row in found] == ["d3", "d1"]
    assert {row["protocol"] for row in found} == {"mplex"}
    assert found[0]["why"].startswith("dialer broke mplex.write-after-close")
    assert found[1]["bytes_acceptor"] == "6"
    assert "\x1b" not in ran.out
    assert "\\u001b[31mred" in found[0]["name"]


def test_csv_lists_a_session_without_streams_too(run: Run, capture: Callable[..., str]) -> None:
    ran = run("ls", capture([(0, b"\x00\x01", 1)]), "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(ran.out))
    assert (row["dialer"], row["stream"]) == ("192.0.2.1:40000", "")


def test_a_cell_that_a_spreadsheet_would_run_is_text(run: Run, capture: Callable[..., str]) -> None:
    ran = run("ls", capture([(0, b"\x08\x06=1+1()\x0a\x01x\x0c\x00", 1)]), "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(ran.out))
    assert row["name"] == "'=1+1()"


@pytest.mark.parametrize(("command", "count"), [("check", 1), ("frames", 6)])
def test_check_and_frames_have_the_same_formats(
    command: str, count: int, run: Run, capture: Callable[..., str]
) -> None:
    path = capture()
    as_json = rows(run(command, path, "--format", "json"))
    assert as_json == rows(run(command, path, "--json")) == rows(run(command, path))
    as_csv = list(csv.DictReader(io.StringIO(run(command, path, "--format", "csv").out)))
    assert len(as_csv) == len(as_json) == count
    for one, other in zip(as_csv, as_json, strict=True):
        assert one == {name: "" if value is None else str(value) for name, value in other.items()}
    text = run(command, path, "--format", "table").out
    assert "{" not in text
    assert len(text.splitlines()) in (count, count + 1)


def test_contrary_formats_are_a_usage_error(run: Run, capture: Callable[..., str]) -> None:
    ran = run("ls", capture(), "--json", "--format", "csv")
    assert ran.code == 2
    assert "contradict" in ran.err


@pytest.mark.parametrize("width", [80, 100, 130])
def test_a_session_is_one_line_that_fits_the_terminal(
    width: int, terminal: Run, capture: Callable[..., str]
) -> None:
    folder = str(Path(capture()).parent)
    capture(CLEAN, "other.pcapng", port=9001)
    capture(unread(), "third.pcapng", port=9002)
    ran = terminal("ls", folder, columns=width)
    lines = re.sub(r"\x1b\[\d*m", "", ran.out).splitlines()
    *lines, last = lines
    assert last.startswith("next: ")  # a command is not broken
    assert max(map(len, lines)) <= width
    text = "\n".join(line.rstrip() for line in lines)
    sessions = text[text.index("Sessions") : text.index("Streams, worst first")].splitlines()
    ends = [line for line in sessions if "192.0.2.1:40000 > 198.51.100.2:900" in line]
    assert len(ends) == 3
    assert len(sessions) <= 2 + 3 + 1  # title, heading, one a session, an empty line
    assert all(len(line.split()[0]) == 4 for line in ends)
    assert "findings" in sessions[1]
    assert "acceptor granted no credit on d1: dialer" in text
    for column, least in (("ending", 100), ("bytes >", 130)):
        assert (column in sessions[1]) == (width >= least)


def test_a_short_id_is_unique_and_opens_its_session(run: Run, capture: Callable[..., str]) -> None:
    folder = str(Path(capture()).parent)
    capture(CLEAN, "other.pcapng", port=9001)
    text = run("ls", folder, "--format", "table").out
    short = next(line.split()[0] for line in text.splitlines() if ":9001" in line)
    (session, _) = rows(run("ls", folder, "--session", short))
    assert session["acceptor"].endswith(":9001")
    ids = array("Q", [0x0123456789ABCDEF, 0xFFFF000000000000, 0x0123459999999999])
    assert short_id_length(ids[:0]) == short_id_length(ids[:1]) == 4
    assert short_id_length(ids) == 7
    assert short_id_length(ids + ids) == 16


def test_columns_of_the_highest_rank_go_first_and_rank_0_never() -> None:
    columns = [
        TableColumn("a"),
        TableColumn("b", 3),
        TableColumn("c", 1),
        TableColumn("d", min_width=4, preferred_width=10),
    ]
    cells = [["x" * 6, "x" * 6, "x" * 6, "x" * 40]]
    assert fitting_columns(columns, cells, 80) == [0, 1, 2, 3]
    assert fitting_columns(columns, cells, 33) == [0, 2, 3]  # d would have less than its best
    assert fitting_columns(columns, cells, 20) == [0, 2, 3]
    assert fitting_columns(columns, cells, 19) == [0, 3]
    assert fitting_columns(columns, cells, 1) == [0, 3]


def test_a_summary_counts_what_its_row_does_not_have() -> None:
    assert {"findings", "stalls", "unfinished"}.isdisjoint(
        SessionSummary("s", [], None, None, None, None, "middle", "d", "a", 0, 0).row()
    )


# --- what to do next


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (None, ["check", "--session"]),
        (unread(), ["report"]),
        (CLEAN, ["follow", "--session", "--stream", "d1"]),
        ([(0, b"\xff" * 40, 1), (1, b"\xfe" * 40, 2)], ["ls", "--port", "9000=PROTOCOL"]),
    ],
)
def test_the_last_line_is_the_command_that_fits_what_was_found(
    lines: Lines | None,
    words: list[str],
    run: Run,
    capture: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = capture(lines, name="my talk.pcapng") if lines else capture(name="my talk.pcapng")
    last = run("ls", path, "--format", "table").out.splitlines()[-1]
    found = shlex.split(last.removeprefix("next: "))
    assert found[:3] == ["polymux", words[0], path]
    assert [word for word in found if word in words] == words
    if "PROTOCOL" not in last:
        assert run(*found[1:]).code in (0, 1)
