"""`polymux conform` and `polymux testee`, as a user runs them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.conftest import Ran
from tests.conform.peers import wait_until_gone

from polymux.conform.catalogue import requirements_of
from polymux.conform.report.html import check_html, write_html
from polymux.conform.report.junit import junit_xml
from polymux.conform.results import CaseResult, RequirementResult, Results
from polymux.core.conformance import Case, Outcome, Requirement, Verdict
from polymux.core.errors import UnwritableOutput

PROGRAM = [sys.executable, "-c", "from polymux.cli import main; main()"]
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\x00"
Run = Callable[..., Ran]


@pytest.fixture
def testee_url() -> Iterator[str]:
    """The URL of `polymux testee` for mplex, in a process of its own."""
    process = subprocess.Popen(
        [*PROGRAM, "testee", "tcp://127.0.0.1:0", "--protocol", "mplex"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None  # it is a pipe
    try:
        yield process.stderr.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


def test_a_run_writes_json_junit_pages_and_captures(
    run: Run, testee_url: str, tmp_path: Path
) -> None:
    junit, pages, captures = tmp_path / "conform.xml", tmp_path / "pages", tmp_path / "captures"
    ran = run(
        "conform", testee_url, "MPLEX-HDR-2", "MPLEX-CLOSE", "--protocol", "mplex",
        "--level", "2", "--timeout", "20", "--junit", str(junit), "--html", str(pages),
        "--captures", str(captures), "--name", "ours",
    )  # fmt: skip
    assert ran.code == 0
    *cases, last = [json.loads(line) for line in ran.out.splitlines()]
    assert last["summary"]["verdicts"] == {"OK": len(cases)}
    assert {case["verdict"] for case in cases} == {"OK"}
    suite = ElementTree.fromstring(junit.read_bytes())[0]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(cases)), "0")
    assert (captures / "MPLEX-HDR-2-flag-7.pcapng").exists()
    index = (pages / "index.html").read_text()
    assert "MPLEX-HDR-2" in index
    assert "ours" in index
    [page] = pages.glob("*/MPLEX-HDR-2-flag-7.html")
    assert "Undefined" in page.read_text()


def test_a_second_run_adds_a_column_to_the_matrix(tmp_path: Path) -> None:
    for peer in ("one", "two"):
        write_html(tmp_path, results_of(peer, Verdict.OK))
    index = (tmp_path / "index.html").read_text()
    assert "one" in index
    assert "two" in index
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2


def test_hostile_text_is_escaped_in_pages_and_junit(tmp_path: Path) -> None:
    results = results_of(HOSTILE, Verdict.FAILED, HOSTILE)
    write_html(tmp_path, results)
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        assert "<script" not in text
        assert not {"\x1b", "\u202e", "\x00"} & set(text)
        assert "default-src 'none'" in unescape(text)
    failure = ElementTree.fromstring(junit_xml(results)).find(".//failure")
    assert failure is not None
    assert "<script>" in (failure.get("message") or "")
    assert "\x1b" not in (failure.get("message") or "")


def results_of(peer: str, verdict: Verdict, detail: str = "seen") -> Results:
    requirement: Requirement = requirements_of("mplex")[1]
    case = Case(requirement.id, "flag-7", 0, "react")
    result = CaseResult(case, verdict, Outcome.IGNORED, detail)
    return Results(peer, "mplex", "dialer", 0, 0, [RequirementResult(requirement, (result,))])


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "other.json").write_text("[]")
    with pytest.raises(UnwritableOutput, match=r"other\.json: is not a run"):
        write_html(tmp_path, results_of("peer", Verdict.OK))


@pytest.mark.parametrize(
    "change",
    [
        {"verdicts": {"GREAT": 1}},
        {"verdicts": []},
        {"note": 5},
        {"level": None},
        {"peer": ["x"]},
        {"results": "x"},
        {"results": [{"case": "x"}]},
    ],
)
def test_a_run_that_is_not_as_it_is_written_is_refused_before_anything_is_run(
    tmp_path: Path, change: dict[str, object]
) -> None:
    write_html(tmp_path, results_of("peer", Verdict.OK))
    [path] = (tmp_path / "runs").glob("*.json")
    check_html(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UnwritableOutput, match=r"\.json: is not a run"):
        check_html(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "\x00"])
def test_a_strange_file_among_the_runs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "other.json").write_text(text)
    (tmp_path / "runs" / "folder.json").mkdir()
    with pytest.raises(UnwritableOutput, match=r"folder\.json: is not a run"):
        check_html(tmp_path)
    (tmp_path / "runs" / "folder.json").rmdir()
    with pytest.raises(UnwritableOutput, match=r"other\.json: is not a run"):
        check_html(tmp_path)


@pytest.mark.parametrize(
    "peer", ["server\u200b1", "back\\slash", "x\x1b[31m<b>", "\udcff", "plain"]
)
def test_the_matrix_links_to_the_pages_whatever_the_peer_is_called(
    tmp_path: Path, peer: str
) -> None:
    write_html(tmp_path, results_of(peer, Verdict.OK))
    links = re.findall(r'href="([^"]+/[^"]+)"', (tmp_path / "index.html").read_text())
    assert len(links) == 1
    assert (tmp_path / links[0]).exists()


def test_non_strict_fails_only_if_asked_for() -> None:
    results = results_of("peer", Verdict.NON_STRICT)
    assert results.failures() == []
    assert len(results.failures(strict=True)) == 1


def test_the_list_says_what_there_is_and_why_something_is_not(run: Run) -> None:
    ran = run("conform", "--list")
    records = [json.loads(line) for line in ran.out.splitlines()]
    ids = {record["requirement"] for record in records}
    covered = {record["requirement"] for record in records if record["cases"]}
    assert (ran.code, len(ids)) == (0, 167)
    assert len(covered) >= 130
    assert all(record["without_case"] for record in records if not record["cases"])
    one = json.loads(run("conform", "--list", "MPLEX-RESET-5", "--protocol", "mplex").out)
    assert "buffers" in one["without_case"]


def test_the_list_finds_a_name_without_its_protocol(run: Run) -> None:
    ran = run("conform", "--list", "MPLEX-RESET-5", "yamux.goaway-code")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == 0, ran.err
    assert [(record["protocol"], record["requirement"]) for record in found] == [
        ("mplex", "MPLEX-RESET-5"), ("yamux", "YAMUX-AWAY-1")
    ]  # fmt: skip


@pytest.mark.parametrize("jobs", ["1", "4"])
def test_captures_that_cannot_be_written_are_an_error(
    run: Run, testee_url: str, tmp_path: Path, jobs: str
) -> None:
    (tmp_path / "file").touch()
    ran = run(
        "conform", testee_url, "MPLEX-HDR", "--protocol", "mplex", "--level", "1", "--timeout",
        "20", "--captures", str(tmp_path / "file"), "--jobs", jobs,
    )  # fmt: skip
    assert ran.code == 5
    assert "cannot be written" in ran.err
    assert "Traceback" not in ran.err


def test_a_signal_ends_the_run_and_the_client(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    client = f"sh -c 'echo $$ > {noted}.new; mv {noted}.new {noted}; exec sleep 600'"
    process = subprocess.Popen(
        [*PROGRAM, "conform", "tcp://127.0.0.1:0", "--protocol", "mplex", "--role", "acceptor",
         "--exec", client],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        while not noted.exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None  # it is a pipe
        assert process.stderr.read().splitlines()[-1] == "polymux: interrupted"
    assert process.returncode == 130
    wait_until_gone(int(noted.read_text()))


def test_a_client_is_started_for_each_case(run: Run) -> None:
    program = " ".join([sys.executable, "-c", "'from polymux.cli import main; main()'"])
    client = f"{program} testee {{url}} --protocol mplex --role dialer --once"
    ran = run(
        "conform", "tcp://127.0.0.1:0", "MPLEX-HDR-2", "--role", "acceptor", "--protocol", "mplex",
        "--level", "1", "--timeout", "30", "--exec", client,
    )  # fmt: skip
    *cases, last = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == 0, ran.err
    assert [case["verdict"] for case in cases] == ["OK"]
    assert last["summary"]["role"] == "acceptor"


def test_a_child_process_can_be_the_peer(run: Run) -> None:
    program = " ".join([sys.executable, "-c", "'from polymux.cli import main; main()'"])
    ran = run(
        "conform", f"exec:{program} testee stdio: --protocol mplex", "MPLEX-HDR-2",
        "--protocol", "mplex", "--level", "1", "--timeout", "30",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.splitlines()[0])["verdict"] == "OK"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("tcp://127.0.0.1:1", "--protocol", "mplex", "--timeout", "0.1"), 4, "127.0.0.1:1"),
        (("tcp://127.0.0.1:1",), 2, "--protocol are needed"),
        (("tcp://127.0.0.1:1", "NB-1", "--protocol", "mplex"), 2, "no requirement, case or rule"),
        (("tcp://127.0.0.1:1", "--protocol", "xyz"), 2, "no protocol 'xyz'"),
        (("stdio:", "--protocol", "mplex"), 2, "each case needs its own"),
        (("tcp://127.0.0.1:1", "--protocol", "mplex", "--exec", "x"), 2, "--role acceptor"),
        (("exec:true", "--protocol", "mplex", "--role", "acceptor"), 2, "the tester listens at"),
        (("tcp://127.0.0.1:1", "--protocol", "mplex", "--ca", "x.pem"), 2, "no effect"),
        (("tcp://127.0.0.1:1", "--protocol", "mplex", "--timeout", "0.1", "--jobs", "4"), 4,
         "127.0.0.1:1"),
        (("tcp://127.0.0.1:1", "MPLEX-CLOSE-3", "MPLEX-HDR-2", "--protocol", "mplex"), 2,
         "these need --level 1: MPLEX-CLOSE-3"),
        (("tcp://127.0.0.1:1", "MPLEX-RESET-5", "--protocol", "mplex"), 2, "there is no case: "),
        (("tcp://127.0.0.1:0", "--protocol", "mplex", "--role", "acceptor", "--exec", "a 'b"), 2,
         "no closing quotation"),
        (("tcp://127.0.0.1:0", "--protocol", "mplex", "--role", "acceptor", "--exec", " "), 2,
         "names no program"),
        (("tcp://127.0.0.1:1", "--protocol", "mplex", "--junit", "/dev/null/x.xml"), 5,
         "/dev/null/x.xml: cannot be written"),
        (("tcp://127.0.0.1:1", "--protocol", "mplex", "--junit", "/"), 5, "cannot be written"),
        (("tcp://127.0.0.1:1", "--protocol", "mplex", "--html", "/dev/null/x"), 5,
         "/dev/null/x: cannot be written"),
        (("--list", "NB-NOTHING"), 2, "no protocol has a requirement, case or rule 'NB-NOTHING'"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_with_one_line(
    run: Run, arguments: tuple[str, ...], code: int, text: str
) -> None:
    ran = run("conform", *arguments)
    assert ran.code == code
    assert text in ran.err
    assert "Traceback" not in ran.err


def test_the_fixture_fails_a_test_with_the_cases_that_failed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["polymux.testing.conform"]\n')
    (tmp_path / "test_peer.py").write_text(
        "import asyncio, threading\n"
        "from polymux.testing import conform\n"
        "def serve(ready):\n"
        "    async def main():\n"
        "        async with await conform.serve_testee('tcp://127.0.0.1:0', 'mplex') as server:\n"
        "            ready.append(server.url)\n"
        "            await asyncio.sleep(60)\n"
        "    asyncio.run(main())\n"
        "def test_ours(polymux_conform):\n"
        "    ready = []\n"
        "    threading.Thread(target=serve, args=(ready,), daemon=True).start()\n"
        "    while not ready: pass\n"
        "    results = polymux_conform(ready[0], 'mplex', ['MPLEX-HDR-2'], level=1, timeout=20)\n"
        "    assert results.verdict('MPLEX-HDR-2') is conform.Verdict.OK\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout
