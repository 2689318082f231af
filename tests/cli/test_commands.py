"""Each command does what its help says, for people and for programs."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CLEAN, HOSTILE, Ran

from polymux.analysis.schema.tables import TABLES
from polymux.cli import COMMANDS
from polymux.cli.support.stream_files import MANIFEST_KEYS
from polymux.report.render.rule_pages import all_rules

MINE = ("check", "decode", "follow", "frames", "index", "ls", "rules")
Run = Callable[..., Ran]


def lines(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.mark.parametrize("name", MINE)
def test_every_help_shows_an_example(name: str, run: Run) -> None:
    ran = run(name, "--help")
    assert ran.code == 0
    assert f"Example: polymux {name}" in ran.out
    assert name in COMMANDS


def test_the_commands_are_listed_without_spark(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    for name in MINE:
        assert f"\n  {name} " in ran.out


WITHOUT_PANDAS = """
import sys
from polymux.cli import main
try:
    main()
finally:
    if "pandas" in sys.modules:
        print("and pandas")
"""


@pytest.mark.parametrize(
    "command",
    [
        "ls TALK", "check TALK", "frames TALK", "frames TALK --stream d1 --kind NewStream",
        "follow TALK --stream d1", "follow TALK --out FILES", "decode --protocol mplex 0800",
    ],
)  # fmt: skip
def test_no_command_waits_for_pandas(command: str, capture: Callable[..., str]) -> None:
    talk = capture()
    words = command.replace("TALK", talk).replace("FILES", f"{talk}-files").split()
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, *words], capture_output=True, check=False
    )
    assert ran.stdout or ran.stderr.endswith(b"-files\n")
    assert b"and pandas" not in ran.stdout


# --- ls


def test_ls_gives_sessions_then_streams_worst_first(run: Run, capture: Callable[..., str]) -> None:
    ran = run("ls", capture())
    assert ran.code == 0
    session, *streams = lines(ran)
    assert (session["table"], session["protocol"], session["findings"]) == ("sessions", "mplex", 1)
    assert session["balanced"] is True
    assert session["started_at"] == "2023-11-14T22:13:20.000000Z"
    assert [row["stream"] for row in streams] == ["d3", "d1"]
    assert streams[0]["why"].startswith("dialer broke mplex.write-after-close on d3: ")
    assert streams[1]["bytes_acceptor"] == 6


def test_ls_lists_as_many_as_asked(run: Run, capture: Callable[..., str]) -> None:
    assert [row["stream"] for row in lines(run("ls", capture(), "--top", "1"))[1:]] == ["d3"]


def test_ls_says_why_a_clean_stream_is_there(run: Run, capture: Callable[..., str]) -> None:
    _, stream = lines(run("ls", capture(CLEAN)))
    assert (stream["ending"], stream["why"]) == ("clean", "carried 7 bytes")


def test_ls_reads_directories_ports_and_filters(run: Run, capture: Callable[..., str]) -> None:
    folder = str(Path(capture()).parent)
    capture(CLEAN, "other.pcapng", port=9001)
    assert len([row for row in lines(run("ls", folder)) if row["table"] == "sessions"]) == 2
    (session,) = [
        row
        for row in lines(run("ls", folder, "--port", "9001=mplex"))
        if row["table"] == "sessions"
    ]
    assert session["evidence"] == "given: mplex"
    filtered = lines(run("ls", folder, "--filter", "198.51.100.2:9001"))
    assert [row["stream"] for row in filtered[1:]] == ["d1"]


# --- check


def test_check_fails_if_a_rule_was_broken(run: Run, capture: Callable[..., str]) -> None:
    ran = run("check", capture())
    assert ran.code == 1
    (row,) = lines(ran)
    assert (row["rule"], row["stream"]) == ("mplex.write-after-close", "d3")
    assert set(row) == set(TABLES["violations"].column_names())


def test_check_is_content_with_a_clean_capture(run: Run, capture: Callable[..., str]) -> None:
    ran = run("check", capture(CLEAN))
    assert (ran.code, ran.out) == (0, "")


def test_check_counts_notes_only_if_asked(run: Run, capture: Callable[..., str]) -> None:
    path = capture([(0, b"\x00\x01x\x02\x02hi", 1)])  # an even id of the dialer: a note
    assert run("check", path).code == 0
    ran = run("check", path, "--severity", "note")
    assert ran.code == 1
    assert lines(ran)[0]["rule"] == "mplex.id-parity"


# --- frames


def test_frames_gives_every_frame_in_order(run: Run, capture: Callable[..., str]) -> None:
    rows = lines(run("frames", capture()))
    assert [row["kind"] for row in rows] == [
        "NewStream", "NewStream", "MessageInitiator", "CloseInitiator", "MessageReceiver",
        "MessageInitiator",
    ]  # fmt: skip
    assert set(rows[0]) == set(TABLES["frames"].column_names())


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--stream", "d1"], 3),
        (["--sender", "acceptor"], 1),
        (["--kind", "NewStream", "--kind", "CloseInitiator"], 3),
        (["--verdict", "violation"], 1),
        (["--stream", "d3", "--sender", "dialer", "--kind", "MessageInitiator"], 1),
        (["--limit", "2"], 2),
    ],
)
def test_frames_can_be_chosen(
    run: Run, capture: Callable[..., str], options: list[str], count: int
) -> None:
    ran = run("frames", capture(), *options)
    assert ran.code == 0
    assert len(lines(ran)) == count


# --- follow


def test_follow_gives_the_bytes_of_a_stream(run: Run, capture: Callable[..., str]) -> None:
    path = capture()
    assert run("follow", path, "--stream", "d1").raw_bytes == b"helloanswer"
    assert run("follow", path, "--stream", "d1", "--sender", "acceptor").raw_bytes == b"answer"
    row = lines(run("follow", path, "--stream", "d1", "--sender", "dialer", "--json"))[0]
    assert bytes.fromhex(row["data"]) == b"hello"


def test_follow_to_a_directory_writes_numbered_files_and_a_manifest(
    run: Run, capture: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run("follow", capture(), "-o", str(out)).code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.jsonl", "stream-000001.bin", "stream-000002.bin",
    ]  # fmt: skip
    manifest = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [entry["stream"] for entry in manifest] == ["d1", "d1"]
    for entry in manifest:
        data = (out / entry["file"]).read_bytes()
        assert entry["bytes"] == len(data)
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert tuple(entry) == MANIFEST_KEYS
        assert entry["protocol"] == "mplex"


def test_names_never_become_file_names(
    run: Run, capture: Callable[..., str], tmp_path: Path
) -> None:
    path = capture([(0, b"\x08\x10" + HOSTILE + b"\x0a\x02hi", 1)])
    run("follow", path, "-o", str(tmp_path / "out"), "--protocol", "mplex")
    assert (tmp_path / "out" / "stream-000001.bin").read_bytes() == b"hi"
    entry = json.loads((tmp_path / "out" / "manifest.jsonl").read_text())
    assert bytes.fromhex(entry["name_hex"]) == HOSTILE
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out", tmp_path / "talk.pcapng"]


def test_follow_asks_which_session_is_meant(run: Run, capture: Callable[..., str]) -> None:
    folder = str(Path(capture()).parent)
    capture(CLEAN, "other.pcapng", port=9001)
    ran = run("follow", folder, "--stream", "d1")
    assert ran.code == 2
    assert "2 sessions have it; add --session" in ran.err
    name = ran.err.rpartition("one of ")[2].split(",")[0].strip()
    assert run("follow", folder, "--stream", "d1", "--session", name[:6]).code == 0


# --- decode, rules, index


def test_decode_shows_frames_of_both_sides(run: Run) -> None:
    ran = run("decode", "--protocol", "mplex", "0801 61 0a05 68656c6c6f", "a: 0902 6f6b")
    assert ran.code == 0
    rows = lines(ran)
    assert [(row["sender"], row["kind"], row["stream"]) for row in rows] == [
        ("dialer", "NewStream", "d1"),
        ("dialer", "MessageInitiator", "d1"),
        ("acceptor", "MessageReceiver", "d1"),
    ]


def test_decode_finds_the_protocol_and_what_is_wrong(run: Run) -> None:
    ran = run("decode", "940001 01c4 0b92 a46563686fce00019000", "a: 940101ffc40691ce00019000 92")
    rows = lines(ran)
    assert rows[0]["protocol"] == "nerdbank:version=3"
    assert [row["kind"] for row in rows[:2]] == ["Offer", "OfferAccepted"]
    assert "unfinished frame" in rows[-1]["remark"]
    broken = run("decode", "--protocol", "mplex", "0f00")
    assert broken.code == 1
    assert lines(broken)[1]["rule"] == "mplex.bad-flag"


def test_decode_says_what_is_not_hex(run: Run) -> None:
    ran = run("decode", "--protocol", "mplex", "xyz")
    assert ran.code == 2
    assert "is not hex" in ran.err


def test_rules_lists_all_rules_of_a_protocol_or_one(run: Run) -> None:
    everything = lines(run("rules"))
    assert len(everything) == len(all_rules()) > 60
    mplex = lines(run("rules", "mplex"))
    assert {row["rule"].partition(".")[0] for row in mplex} == {"mplex"}
    (one,) = lines(run("rules", "mplex.bad-flag"))
    assert one == {
        "rule": "mplex.bad-flag", "severity": "error", "origin": "spec", "section": "Flag Values",
        "sentence": "Flag 7 is not defined.", "reaction": "session", "example": one["example"],
    }  # fmt: skip
    assert one["example"]["lines"][0].endswith("Undefined  <-- breaks the rule")
    assert run("rules", "telnet").code == 2


def test_index_writes_marks_beside_the_capture(run: Run, capture: Callable[..., str]) -> None:
    path = capture()
    ran = run("index", path)
    assert ran.code == 0
    assert lines(ran)[0]["index"] == f"{path}.idx"
    assert Path(f"{path}.idx").exists()
    assert run("ls", path).code == 0


# --- for people


def test_people_get_a_table_with_the_worst_stream_first(
    terminal: Run, capture: Callable[..., str]
) -> None:
    ran = terminal("ls", capture())
    assert ran.code == 0
    assert "Streams, worst first" in ran.out
    assert ran.out.index("broke mplex.write-after-close") < ran.out.index(" good ")
    assert "conservation: every byte" in ran.out
    assert "1 session, 2 streams, 6 frames" in ran.out
    assert "1 violation, 0 stalls, 2 streams not seen to end" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [["ls"], ["check"], ["frames"], ["follow", "--stream", "d3"], ["ls", "--json"]],
    ids=lambda arguments: "-".join(arguments),
)
def test_nothing_from_the_wire_reaches_a_terminal_unescaped(
    terminal: Run, capture: Callable[..., str], arguments: list[str]
) -> None:
    hostile = b"\x1b[2J\xe2\x80\xae\x9b31m\x07."
    path = capture([(0, b"\x18\x10" + HOSTILE + b"\x1a\x0d" + hostile + b"\x1a\x02hi\x0f\x00", 1)])
    name, *rest = arguments
    ran = terminal(name, path, "--protocol", "mplex", *rest)
    assert "\u202e" not in ran.out
    assert "\x07" not in ran.out
    assert "\x1b[31m" not in ran.out
    assert "\x1b[2J" not in ran.out


def test_frames_of_standard_input_are_printed_while_it_is_open(capture: Callable[..., str]) -> None:
    data = Path(capture()).read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-c", "from polymux.cli import main; main()", "frames", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(data[:-40])  # the connection has not ended
    process.stdin.flush()
    kinds = [json.loads(process.stdout.readline())["kind"] for _ in range(6)]
    assert kinds[0] == "NewStream"
    process.stdin.write(data[-40:])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_a_limit_ends_frames_of_an_open_pipe_with_its_last_frame(
    capture: Callable[..., str],
) -> None:
    data = Path(capture()).read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-c", "from polymux.cli import main; main()", "frames", "-", "--limit=6"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(data[:-40])  # the connection has not ended, and has six frames so far
    process.stdin.flush()
    assert process.wait(timeout=60) == 0
    out, err = process.communicate()
    assert (len(out.splitlines()), err) == (6, b"")


@pytest.mark.parametrize("command", ["frames", "ls"])
def test_a_socket_file_is_a_capture_that_cannot_be_opened(
    command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("talk.sock")
        ran = run(command, "talk.sock")
    assert (ran.code, ran.out) == (3, "")
    assert "talk.sock: cannot be opened: " in ran.err


@pytest.mark.parametrize("command", ["frames", "ls"])
def test_closed_standard_input_is_a_capture_that_cannot_be_read(
    command: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    ran = run(command, "-")
    assert (ran.code, ran.out) == (3, "")
    assert "-: standard input is closed" in ran.err


def test_one_is_said_in_the_singular(
    run: Run, terminal: Run, capture: Callable[..., str], tmp_path: Path
) -> None:
    path = capture([(0, b"\x08\x01x", 1), (0, b"\x08\x01x", 2)])
    (found,) = lines(run("check", path, "--protocol", "mplex"))
    assert "of 1 byte" in found["detail"]
    assert "of 1 bytes" not in found["detail"]
    assert ": 1 range, " in terminal("index", path).out
    path = capture([(0, b"\x08\x01x", 1)], name="one.pcapng")
    ran = run("frames", path, "--protocol", "mplex", "--sender", "acceptor")
    assert ran.err == "the only frame does not match the options\n"


@pytest.mark.parametrize("command", ["ls", "check"])
def test_ls_and_check_read_standard_input_to_its_end(
    command: str, run: Run, capture: Callable[..., str]
) -> None:
    path = capture()
    process = subprocess.run(
        [sys.executable, "-c", "from polymux.cli import main; main()", command, "-"],
        input=Path(path).read_bytes(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    ran = run(command, path)
    assert process.returncode == ran.code
    assert process.stdout.replace(b'["-"]', b'["%s"]' % path.encode()) == ran.raw_bytes


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--kind", "nosuch"], "no frame has --kind nosuch; there are: CloseInitiator, Message"),
        (["--stream", "d9"], "no frame has --stream d9; there are: d1, d3"),
    ],
)
def test_frames_that_match_nothing_say_what_there_is(
    option: list[str], said: str, run: Run, capture: Callable[..., str]
) -> None:
    ran = run("frames", capture(), *option)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(said)


def test_frames_that_exist_but_not_together_are_said_too(
    run: Run, capture: Callable[..., str]
) -> None:
    ran = run("frames", capture(), "--stream", "d1", "--verdict", "violation")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "none of the 6 frames matches the options\n"


@pytest.mark.parametrize("command", ["ls", "check", "frames", "follow", "index", "recover"])
def test_every_capture_command_takes_wildcards(
    command: str, run: Run, capture: Callable[..., str], tmp_path: Path
) -> None:
    capture(CLEAN, name="one.pcapng")
    capture(CLEAN, name="two.pcapng", port=9001)
    if command == "recover":
        for name in ("one", "two"):
            (tmp_path / f"{name}.pcapng").rename(tmp_path / f"{name}.pcapng.part")
    more = {"follow": ["--out", str(tmp_path / "out")]}.get(command, [])
    ending = ".part" if command == "recover" else ""
    assert run(command, str(tmp_path / f"*.pcapng{ending}"), *more).code == 0
    more = {"follow": ["--stream", "d1"]}.get(command, [])
    ran = run(command, str(tmp_path / f"*.nothing{ending}"), *more)
    assert ran.code == 3
    assert f"*.nothing{ending}: no file matches\n" in ran.err
