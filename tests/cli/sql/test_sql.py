"""`polymux sql`: the same answers from captures as from their tables, and nothing but answers."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import BROKEN, HOSTILE, MS, START, Ran
from tests.cli.test_ls import unread
from tests.spark.random_captures import conversations, record

from polymux.analysis.schema.tables import TABLES
from polymux.capture import PcapngWriter, TcpConnectionWriter
from polymux.cli.sql import capture_source
from polymux.cli.sql.capture_source import CaptureSource
from polymux.cli.sql.database import Database, QueryFailed
from polymux.cli.sql.questions import QUESTIONS
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_tables import write_tables
from polymux.report.load.tables import Tables

Run = Callable[..., Ran]
Capture = Callable[..., str]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with honest sessions, one that breaks a rule and one that stalls."""
    folder = tmp_path_factory.mktemp("sql") / "captures"
    folder.mkdir()
    record([folder / "honest.pcapng"], conversations(61, 6))
    with PcapngWriter(folder / "other.pcapng", sync="none") as writer:
        for port, lines in ((9000, BROKEN), (9001, unread())):
            scribe = TcpConnectionWriter(writer, ("192.0.2.1", 40), ("192.0.2.2", port), START)
            for side, data, at in lines:
                scribe.data(side, data, START + at * MS)
            scribe.close(START + 5000 * MS)
    return folder


@pytest.fixture(scope="module")
def tables(captured: Path) -> Path:
    folder = captured.parent / "tables"
    write_tables(CaptureRequest((str(captured),)), folder, *TABLES)
    return folder


@pytest.fixture(scope="module")
def on_tables(tables: Path) -> Iterator[Database]:
    with Database(Tables(tables).datasets()) as database:
        yield database


@pytest.fixture
def source(captured: Path) -> CaptureSource:
    return CaptureSource(CaptureRequest((str(captured),)))


@pytest.fixture
def on_captures(source: CaptureSource) -> Iterator[Database]:
    with Database(source.tables) as database:
        yield database


def answer(database: Database, query: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = database.query(query).read_all().to_pylist()
    return rows


# --- answers


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_captures_has_the_rows_and_types_of_the_table(
    table: str, on_captures: Database, on_tables: Database
) -> None:
    query = f"select * from {table} order by all"
    made, stored = on_captures.query(query).read_all(), on_tables.query(query).read_all()
    assert made.equals(stored)
    assert made.num_rows or table == "requests"


def test_every_ready_question_has_the_same_answer_on_captures_as_on_tables(
    on_captures: Database, on_tables: Database
) -> None:
    answered = 0
    for question in QUESTIONS:
        found = answer(on_captures, question.query)
        assert sorted(map(str, found)) == sorted(map(str, answer(on_tables, question.query)))
        answered += bool(found)
    assert answered >= 12
    assert len(QUESTIONS) == 15


def test_macros_tell_a_stream_and_draw_a_session(run: Run, capture: Capture) -> None:
    path = capture(BROKEN)
    told = [json.loads(line) for line in run("sql", path, "from why('d3')").out.splitlines()]
    assert told[0]["what"] == "opened"
    assert "error: mplex.write-after-close" in [row["what"] for row in told]
    session = str(told[0]["session_id"])
    assert run("sql", path, f"from why('{session[:6]}/d3')").out.count("\n") == len(told)
    assert run("sql", path, "from why('ffffffff/d3')").out == ""
    drawn = run("sql", path, f"from waterfall('{session[:6]}')").out.splitlines()
    assert [json.loads(line)["stream"] for line in drawn] == ["d1", "d3"]
    assert all("#" in json.loads(line)["bar"] for line in drawn)


def test_only_the_tables_that_a_query_names_are_made_small_ones_once(
    source: CaptureSource, on_captures: Database
) -> None:
    def passes(query: str) -> int:
        before = source.passes
        source.begin_query()
        answer(on_captures, query)
        return source.passes - before

    assert passes("select 42") == 0
    assert passes("select count(*) from sessions join streams using (session_id)") == 1
    assert passes("select count(*) from streams a join streams b using (session_id)") == 0
    assert passes("select count(*) from frames") == 1
    assert passes("select count(*) from frames where session_id in (from frames select 'x')") == 2


def test_tables_that_are_too_large_to_keep_are_made_for_each_scan(
    source: CaptureSource,
    on_captures: Database,
    on_tables: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_source, "MAX_KEPT_BYTES", 1000)
    query = "select * from streams join sessions using (session_id) order by all"
    assert answer(on_captures, query) == answer(on_tables, query)
    assert source.passes == 3


# --- names from the wire


def test_hostile_names_are_data_and_escaped_on_a_terminal(
    run: Run, terminal: Run, capture: Capture
) -> None:
    name = b"x'; drop view streams; --"
    path = capture([(0, bytes([8, len(name)]) + name, 1), (0, b"\x18\x10" + HOSTILE, 2)])
    ran = run("sql", path, "select name from streams order by name desc", "--protocol", "mplex")
    assert json.loads(ran.out.splitlines()[0]) == {"name": name.decode()}
    query = "select name from streams order by stream"
    shown = terminal("sql", path, query, "--protocol", "mplex").out
    assert "drop view" in shown
    assert "\\u001b[31mred" in shown
    assert "\x1b[31mred" not in shown


# --- what is refused


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("copy sessions to 'stolen.csv'", "COPY: only queries"),
        ("create table mine as from sessions", "CREATE: only queries"),
        ("drop view sessions", "DROP: only queries"),
        ("insert into sessions values (1)", "INSERT: only queries"),
        ("attach 'other.db'", "ATTACH: only queries"),
        ("install httpfs", "LOAD: only queries"),
        ("set enable_external_access = true", "SET: only queries"),
        ("select 1; copy sessions to 'stolen.csv'", "one query at a time"),
        ("explain analyze copy sessions to 'stolen.csv'", "nothing else is read"),
        ("from read_text('/etc/passwd')", "nothing else is read"),
        ("from glob('/etc/*')", "nothing else is read"),
        ("from 'other.csv'", "nothing else is read"),
        ("from read_parquet('TABLES/sessions/*.parquet')", "nothing else is read"),
        ("from 'https://example.com/other.parquet'", "nothing else is read"),
        ("from read_csv('http://127.0.0.1:1/other.csv')", "nothing else is read"),
        ("from source", "does not exist"),
        ("selec 1", "syntax error"),
    ],
)
def test_writing_other_files_and_the_network_are_refused(
    query: str, said: str, on_tables: Database, tables: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("a\n1\n")
    before = sorted(tables.rglob("*"))
    with pytest.raises(QueryFailed, match=said), on_tables.explained():
        on_tables.query(query.replace("TABLES", str(tables))).read_all()
    assert sorted(tables.rglob("*")) == before
    assert os.listdir(tmp_path) == ["other.csv"]


def test_a_query_that_needs_too_much_memory_fails_and_writes_nothing(
    run: Run, capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    query = "select list(i::text || repeat('x', 100)) from range(10000000) t(i)"
    ran = run("sql", path, query, "--memory", "50MB")
    assert (ran.code, ran.out) == (5, "")
    assert "--memory" in ran.err
    assert sorted(tmp_path.iterdir()) == before
    assert run("sql", path, "select 1", "--memory", "lots").code == 2


# --- output


def test_rows_are_printed_as_json_or_csv_or_written_as_parquet(
    run: Run, terminal: Run, capture: Capture, tmp_path: Path
) -> None:
    path = capture()
    query = "select stream, opened_at, 1.5::decimal(4, 2) half, sum(frames_dialer) n, 1 n from "
    query += "streams group by all order by stream"
    first = json.loads(run("sql", path, query).out.splitlines()[0])
    assert first == {
        "stream": "d1", "opened_at": "2023-11-14T22:13:20.001000Z", "half": 1.5, "n": 2, "n_2": 1,
    }  # fmt: skip
    lines = run("sql", path, query, "--csv").out.splitlines()
    assert lines[:2] == ["stream,opened_at,half,n,n_2", "d1,2023-11-14T22:13:20.001000Z,1.5,2,1"]
    assert "2 rows" in terminal("sql", path, query).out
    out = str(tmp_path / "rows.parquet")
    assert run("sql", path, "from streams", "-o", out).code == 0
    assert pq.read_table(out)["stream"].to_pylist() == ["d1", "d3"]
    assert os.stat(out).st_mode & 0o777 == 0o600
    assert run("sql", path, "select nope from streams", "-o", out).code == 2
    assert pq.read_table(out).num_rows == 2
    assert not list(tmp_path.glob("*.part"))


def test_a_damaged_capture_is_warned_about_once_however_often_it_is_read(
    run: Run, capture: Capture
) -> None:
    path = Path(capture())
    path.write_bytes(path.read_bytes()[:-40])
    ran = run("sql", str(path), "select count(*) n from frames, timeline, streams")
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert json.loads(ran.out)["n"] > 0
    assert run("sql", str(path), "select kind from frames limit 1").code == 3


def test_a_damaged_table_is_named_and_the_others_can_be_asked(
    run: Run, capture: Capture, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    write_tables(CaptureRequest((capture(),)), tables)
    for file in (tables / "frames").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:50])
    ran = run("sql", str(tables), "from frames")
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "part-00000.parquet: not a readable table file" in ran.err
    assert run("sql", str(tables), "from streams").code == 0


def test_what_cannot_be_meant_is_a_usage_error(run: Run, capture: Capture) -> None:
    path = capture()
    for arguments, said in (
        (["select 1"], "before the query"),
        ([path, "from streams", "--json", "--csv"], "contradict"),
        ([path, "from streams", "-o", "rows.txt"], "FILE.parquet"),
        (["-", "from streams"], "save it to a file"),
        ([path, "from streams", "--session", "zzz"], "no session id"),
    ):
        ran = run("sql", *arguments)
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert said in ran.err


def test_the_examples_are_printed_without_captures(run: Run) -> None:
    ran = run("sql", "--examples")
    assert ran.code == 0
    assert all(question.query + ";" in ran.out for question in QUESTIONS)


# --- the prompt


def test_the_prompt_completes_answers_survives_errors_and_keeps_its_history(
    capture: Capture, tmp_path: Path
) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from polymux.cli import main; main()", "sql", capture(), "--json"],
        stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path / "state")},
    )  # fmt: skip
    os.close(follower)
    said = b""

    def expect(words: bytes) -> None:
        nonlocal said
        while words not in said:
            said += os.read(leader, 65536)
        said = said.partition(words)[2]

    expect(b"polymux> ")
    for typed, wanted in (
        (b"select rule\nfrom viol\t;\n", b'{"rule": "mplex.write-after-close"}'),
        (b"select nope from streams;\n", b"Error: Binder Error"),
        (b"drop view streams;\n", b"only queries are run"),
        (b".tables\n", b"violations: session_id"),
        (b".run 12\n", b'"name": "good"'),
    ):
        os.write(leader, typed)
        expect(wanted)
        expect(b"polymux> ")
    os.write(leader, b".quit\n")
    assert process.wait(100) == 0
    os.close(leader)
    history = tmp_path / "state" / "polymux" / "sql_history"
    assert "from violations" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_query_is_read_from_a_pipe(capture: Capture) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from polymux.cli import main; main()", "sql", capture()],
        input="select count(*) n from streams", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"n": 2}\n', "")
