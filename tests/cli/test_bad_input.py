"""Whatever is wrong with the input: one clear line, the documented exit code, no traceback."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import CLEAN, Ran, give_first_bytes

from polymux.analysis.output.parquet import write_empty_tables
from polymux.cli.support.peer_io import publish_partial_captures

Run = Callable[..., Ran]
READERS = ("ls", "check", "frames", "index")


@pytest.mark.parametrize("command", READERS)
def test_a_file_that_is_not_there(command: str, run: Run, tmp_path: Path) -> None:
    ran = run(command, str(tmp_path / "no.pcapng"))
    assert ran.code == 3
    assert ran.err.splitlines() == [
        f"{tmp_path / 'no.pcapng'}: cannot be opened: No such file or directory"
    ]


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("data", "said"),
    [(b"hello, I am a letter", "not a capture"), (b"", "the file is empty")],
    ids=["letter", "empty"],
)
def test_a_file_that_is_no_capture(
    command: str, data: bytes, said: str, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "letter.pcapng"
    path.write_bytes(data)
    ran = run(command, str(path))
    assert ran.code == 3
    assert len(ran.err.splitlines()) == 1
    assert said in ran.err or "not a capture" in ran.err
    assert ran.out == ""


def test_a_torn_tail_prints_what_it_has(run: Run, capture: Callable[..., str]) -> None:
    path = Path(capture(CLEAN))
    path.write_bytes(path.read_bytes()[:-5])
    ran = run("ls", str(path))
    assert ran.code == 3
    assert "truncated at byte" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert '"stream": "d1"' in ran.out


def test_findings_in_a_torn_capture_are_findings(run: Run, capture: Callable[..., str]) -> None:
    path = Path(capture())
    path.write_bytes(path.read_bytes()[:-5])
    assert run("check", str(path)).code == 1


def test_a_capture_without_packets(run: Run, capture: Callable[..., str]) -> None:
    path = Path(capture(CLEAN))
    data = path.read_bytes()
    first = int.from_bytes(data[4:8], "little")
    second = int.from_bytes(data[first + 4 : first + 8], "little")
    path.write_bytes(data[: first + second])
    ran = run("ls", str(path))
    assert (ran.code, len(ran.err.splitlines())) == (3, 1)
    assert "no packets" in ran.err


def test_a_capture_without_tcp(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "udp.pcap"
    frame = bytes(12) + b"\x08\x00" + b"\x45\0\0\x1c\0\0\0\0\x40\x11\0\0" + bytes(16)
    head = b"\xd4\xc3\xb2\xa1\2\0\4\0" + bytes(8) + b"\xff\xff\0\0\1\0\0\0"
    size = len(frame).to_bytes(4, "little")
    path.write_bytes(head + bytes(8) + size + size + frame)
    ran = run("check", str(path))
    assert ran.code == 3
    assert "no TCP in it (1 packet of other kinds)" in ran.err


def test_a_filter_that_matches_nothing_is_said(run: Run, capture: Callable[..., str]) -> None:
    ran = run("ls", capture(), "--port", "1234=mplex")
    assert ran.code == 3
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--protocol", "telnet"], "no protocol 'telnet'"),
        (["--port", "x=mplex"], "write 9000=mplex"),
        (["--filter", "nonsense"], "is not an IP address"),
        (["--session", "zzz"], "no session id starts with that"),
    ],
)
def test_wrong_options_are_usage_errors(
    run: Run, capture: Callable[..., str], arguments: list[str], said: str
) -> None:
    ran = run("ls", capture(), *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_stream_that_cannot_be_named_is_a_usage_error(
    run: Run, capture: Callable[..., str]
) -> None:
    for wrong in ("x9", "d", "d1.x", "d99999999999999999999"):
        ran = run("follow", capture(name=f"{wrong}.pcapng"), "--stream", wrong)
        assert ran.code == 2
        assert "is not a stream key" in ran.err


def test_a_stream_that_is_not_there_is_said(run: Run, capture: Callable[..., str]) -> None:
    ran = run("follow", capture(), "--stream", "d9")
    assert ran.code == 2
    assert "no session has it" in ran.err
    assert run("follow", capture(name="b.pcapng")).code == 2


def test_a_directory_with_something_in_it_is_not_written_to(
    run: Run, capture: Callable[..., str], tmp_path: Path
) -> None:
    ran = run("follow", capture(), "-o", str(tmp_path))
    assert ran.code == 2
    assert "is not empty" in ran.err


def test_without_pyarrow_the_missing_extra_is_named(
    run: Run, capture: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture()
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    ran = run("ls", path)
    assert ran.code == 2
    assert ran.err.strip() == (
        "polymux: analysing captures needs an optional part: pip install 'polymux[captures]'"
    )


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("pyarrow", "frames", "captures"),
        ("pyarrow", "check", "captures"),
        ("pyspark", "analyze", "spark"),
        ("zstandard", "ls", "captures"),
        ("jinja2", "report", "report"),
        ("duckdb", "sql", "sql"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    module: str, command: str, extra: str, capture: Callable[..., str], tmp_path: Path
) -> None:
    path = capture(CLEAN)
    if module == "zstandard":
        import zstandard

        packed = zstandard.compress(Path(path).read_bytes())
        path = str(tmp_path / "talk.pcapng.zst")
        Path(path).write_bytes(packed)
    arguments = [command, path]
    if command == "report":
        write_empty_tables(tmp_path / "tables")
        arguments = [command, str(tmp_path / "tables"), "-o", str(tmp_path / "r.html")]
    elif command == "sql":
        arguments += ["from streams"]
    elif command == "analyze":
        arguments += ["--out", str(tmp_path / "tables")]
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['polymux', *{arguments!r}]\n"
        "from polymux.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 3), done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f"pip install 'polymux[{extra}]'" in line


def test_a_report_on_a_directory_without_captures_or_tables_is_one_line(
    run: Run, tmp_path: Path
) -> None:
    ran = run("report", str(tmp_path), "-o", str(tmp_path / "r.html"))
    assert ran.code == 3
    (line,) = ran.err.splitlines()
    assert "give the directory that 'polymux analyze --out' wrote" in line


def test_a_word_that_is_no_command_and_an_option_that_is_none(run: Run) -> None:
    for arguments, said in (
        (["lss"], "No such command 'lss'"),
        (["ls", "--colour"], "--colour"),
        (["decode", "zz"], "is not hex"),
        (["connect", "tcp://127.0.0.1:1"], "Missing option '--protocol'"),
    ):
        ran = run(*arguments)
        assert (ran.code, ran.out) == (2, "")
        (line,) = [line for line in ran.err.splitlines() if line.startswith("Error: ")]
        assert said in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["index", "{capture}"],
        ["index", "{folder}/\x1b]0;x\x07no.pcapng"],
        ["follow", "{capture}", "-o", "{folder}/\x1b]0;x\x07out"],
        ["ls", "{capture}", "--session", "\x1b]0;x\x07"],
        ["follow", "{capture}", "--stream", "\x1b]0;x\x07"],
        ["analyze", "{capture}", "--out", "{folder}", "--conf", "\x1b]0;x\x07"],
        ["\x1b]0;x\x07"],
    ],
    ids=["index", "missing", "folder", "session", "stream", "setting", "command"],
)
def test_no_name_of_a_file_or_argument_is_obeyed_by_the_terminal(
    terminal: Run, capture: Callable[..., str], tmp_path: Path, arguments: list[str]
) -> None:
    path = capture(CLEAN, name="\x1b]0;x\x07talk.pcapng")
    ran = terminal(*(word.format(capture=path, folder=tmp_path) for word in arguments))
    assert b"\x1b]0;x\x07" not in ran.raw_bytes
    assert re.search(rb"\\(u00|x)1b\]0;x\\(u00|x)07", ran.raw_bytes)


def test_no_name_of_a_recording_left_behind_is_obeyed_by_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "\x1b[2Jtalk-00001.pcapng.part").write_bytes(b"no capture" * 20)
    publish_partial_captures(str(tmp_path / "\x1b[2Jtalk.pcapng"))
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\\u001b[2Jtalk-00001.pcapng" in said


@pytest.mark.parametrize("coding", ["utf-8:strict", "utf-8:surrogateescape", "ascii:strict"])
def test_decode_says_what_is_not_hex_on_standard_input(coding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from polymux.cli import main; main()", "decode", "-",
         "--protocol", "mplex"],
        input=b"080161\n\xff\xfe\x00\n", capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": coding},
    )  # fmt: skip
    assert done.returncode == 2
    assert b"is not hex" in done.stderr
    assert b"Traceback" not in done.stderr


def test_commands_without_captures_need_no_extra() -> None:
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'zstandard', 'jinja2'): sys.modules[name] = None\n"
        "sys.argv = ['polymux', 'decode', '--protocol', 'mplex', '080161']\n"
        "from polymux.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"kind": "NewStream"' in done.stdout


def test_compressed_captures_and_standard_input_are_read(
    run: Run, capture: Callable[..., str], tmp_path: Path
) -> None:
    data = Path(capture(CLEAN)).read_bytes()
    packed = tmp_path / "talk.pcapng.gz"
    packed.write_bytes(gzip.compress(data))
    assert run("check", str(packed)).code == 0
    code = "from polymux.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "check", "-"], input=data, timeout=60)
    assert done.returncode == 0


def test_a_reader_that_goes_away_is_no_error(capture: Callable[..., str]) -> None:
    code = "from polymux.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "frames", capture()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


def test_an_interrupt_is_no_traceback() -> None:
    code = "import sys; from polymux.cli import main; print('ready', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "ls", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    give_first_bytes(process, b"\x0a\x0d\x0d\x0a")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
