"""Commands with `--processes`: as one process to their peers, to their user, and when they die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
from tests.cli.conftest import Ran
from tests.cli.threaded_server import COMMAND
from tests.running_command import PATIENCE, Running, is_running, until

import polymux
from polymux.cli.commands import collect
from polymux.cli.processes.option import divided_limits
from polymux.cli.processes.report import Report, joined_report
from polymux.cli.processes.shared_address import bind_shared
from polymux.cli.processes.supervisor import Work
from polymux.cli.processes.worker_process import BOOT
from polymux.cli.support.queued_output import MAX_QUEUED_BYTES
from polymux.core.limits import Limits, Timeouts
from polymux.live.one_of import OneOf
from polymux.metrics import Family
from polymux.metrics.families import COUNTER, GAUGE, JoinedFamilies

Run = Callable[..., Ran]
HERE = "tcp://127.0.0.1:0"
TWO = ("--processes", "2")
ECHO = ("--protocol", "mplex", "--action", "echo")
PIPE_BYTES = 65536
MIB = 1024 * 1024
ATTEMPTS = 64  # of connecting, until each of two processes has got a connection


async def ask(session: Any, data: bytes = b"hello") -> bytes:
    stream = await session.open("a stream")
    await stream.send(data)
    await stream.end()
    answer: bytes = await stream.receive_all()
    return answer


def ask_once(url: str, data: bytes = b"hello", **options: Any) -> bytes:
    """What a server answers, in a session of its own."""

    async def go() -> bytes:
        async with polymux.connect(url, protocol="mplex", **options) as session:
            return await ask(session, data)

    return asyncio.run(go())


@contextlib.asynccontextmanager
async def served_sessions(url: str, attempts: int) -> AsyncIterator[list[polymux.Session]]:
    """Open sessions; those that were answered stay open within the block."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for _ in range(attempts):
            session = await polymux.connect(url, protocol="mplex")
            try:
                assert await ask(session) == b"hello"
            except polymux.PolymuxError:
                continue
            found.append(await stack.enter_async_context(session))
        yield found


def audited(path: Path, event: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["event"] == event]


@pytest.mark.parametrize("url", [HERE, "unix://{folder}/socket"])
def test_all_processes_serve_at_one_address(url: str, tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    url = url.format(folder=tmp_path)
    with Running("serve", url, *ECHO, *TWO, "--audit", str(audit)) as serving:
        for _ in range(ATTEMPTS):
            assert ask_once(serving.url) == b"hello"
            if len({row["process"] for row in audited(audit, "connected")}) == 2:
                break
        assert serving.stop() == 0
    connected = audited(audit, "connected")
    assert {row["process"] for row in connected} == set(serving.workers_at_start)
    assert len({(row["process"], row["connection"]) for row in connected}) == len(connected)
    assert serving.err.count("1 stream, 5 bytes") == len(connected)
    assert serving.err.count("listening at") == 1
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize("url", [HERE, "unix://{folder}/socket"])
def test_the_processes_together_have_as_many_sessions_as_asked_for(
    url: str, tmp_path: Path
) -> None:
    async def count(url: str) -> int:
        async with served_sessions(url, ATTEMPTS) as sessions:
            return len(sessions)

    url = url.format(folder=tmp_path)
    with Running("serve", url, *ECHO, "--processes", "2", "--clients", "3") as serving:
        assert asyncio.run(count(serving.url)) == 3
        assert serving.stop() == 0


def test_a_process_without_a_place_leaves_unix_connections_to_the_others(tmp_path: Path) -> None:
    async def count(url: str) -> int:
        async with served_sessions(url, 4) as sessions:
            return len(sessions)

    url = f"unix://{tmp_path}/socket"
    with Running("serve", url, *ECHO, "--processes", "4", "--clients", "4") as serving:
        assert asyncio.run(count(url)) == 4
        assert serving.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_metrics_are_sums_and_do_not_decrease_when_a_process_is_replaced(
    number: signal.Signals,
) -> None:
    with Running("serve", HERE, *ECHO, *TWO, "--metrics", "127.0.0.1:0") as serving:
        for _ in range(4):
            ask_once(serving.url)
        before = serving.metrics()
        assert before["polymux_sessions_begun"] == 4
        serving.kill_worker(number)
        after = serving.metrics()
        assert {name for name, value in after.items() if value < before[name]} == set()
        assert after["polymux_sessions_begun"] == 4
        for _ in range(4):
            assert ask_once(serving.url) == b"hello"
        assert serving.metrics()["polymux_sessions_begun"] == 8
        assert serving.err.count("is started again") == 1
        assert serving.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_processes_and_their_sessions_in_good_order(
    number: signal.Signals, tmp_path: Path
) -> None:
    async def stopped_while_open(serving: Running) -> int:
        async with served_sessions(serving.url, 8) as sessions:
            code = await asyncio.to_thread(serving.stop, number)
            for session in sessions:
                await session.wait_closed()
                assert not isinstance(session.failure, polymux.PeerViolation)
            return code

    audit = tmp_path / "audit"
    with Running("serve", HERE, *ECHO, *TWO, "--audit", str(audit)) as serving:
        assert asyncio.run(stopped_while_open(serving)) == 0
    assert len(audited(audit, "disconnected")) == 8
    assert serving.err.count("1 stream, 5 bytes") == 8


@contextlib.contextmanager
def unread_output(folder: Path) -> Iterator[tuple[psutil.Process, Path, int]]:
    """A server of two processes that prints what it gets to a pipe that is full: yield its parent,
    where it listens, and the pipe."""
    path = folder / "socket"
    arguments = ("serve", f"unix://{path}", "--protocol", "streamux", *TWO)
    reader, writer = os.pipe()
    with subprocess.Popen([*COMMAND, *arguments], stdout=writer, stderr=subprocess.DEVNULL) as made:
        parent = psutil.Process(made.pid)
        os.close(writer)
        try:
            until(path.exists, "it does not listen")
            asyncio.run(fill_output(f"unix://{path}"))
            yield parent, path, reader
        finally:
            for process in (made, *parent.children()) if parent.is_running() else ():
                process.kill()
            os.close(reader)


def read_some(reader: int) -> bytes:
    return os.read(reader, 4096)


async def fill_output(url: str) -> None:
    """Send more than a pipe and a queue take."""
    async with polymux.connect(url, protocol="streamux", wait=PATIENCE) as session:
        for _ in range(4):
            await session.request(bytes(MAX_QUEUED_BYTES // 2), timeout=60)


def test_a_second_signal_ends_no_process_before_it_has_told_what_is_missing(
    tmp_path: Path,
) -> None:
    with unread_output(tmp_path) as (parent, path, reader):
        workers = parent.children()
        for _ in range(2 * PIPE_BYTES // 4096):  # it is read again, slowly
            read_some(reader)
        parent.terminate()
        until(lambda: read_some(reader) and not path.exists(), "it has not begun to end")
        until(lambda: read_some(reader) and len(parent.children()) < 2, "neither has ended")
        for worker in workers:  # the other one waits until its output is read
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.terminate()
        while read_some(reader):
            pass
        assert parent.wait(PATIENCE) == 5


def test_what_is_missing_from_a_process_that_was_stopped_is_in_the_exit_code(
    tmp_path: Path,
) -> None:
    with unread_output(tmp_path) as (parent, *_):
        before = parent.children()
        for worker in before:
            worker.terminate()
        until(lambda: len(set(parent.children()) - set(before)) == 2, "they are not replaced")
        parent.terminate()
        assert parent.wait(PATIENCE) == 5


def test_a_process_that_is_stopped_while_it_starts_is_replaced_at_once() -> None:
    with Running("serve", HERE, *ECHO, *TWO) as serving:
        for number in (signal.SIGKILL, signal.SIGTERM):
            known = set(serving.workers())
            serving.kill_worker(number, max(known))  # the youngest
        assert ask_once(serving.url) == b"hello"
        assert serving.stop() == 0
    assert "tried again" not in serving.err


def test_a_process_whose_parent_is_gone_before_it_has_told_what_to_do_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        ran = subprocess.run(
            [sys.executable, "-c", BOOT, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            capture_output=True, timeout=PATIENCE,
        )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_a_process_gets_no_connections_before_it_has_started_again() -> None:
    async def served_by_the_other() -> int:
        shared = await bind_shared(HERE, 2, 10 * ATTEMPTS)
        shared.release(0)
        await shared.bind_again(0)
        [descriptor] = shared.descriptors(1)
        with contextlib.ExitStack() as stack, socket.socket(fileno=os.dup(descriptor)) as other:
            other.settimeout(0)
            for _ in range(ATTEMPTS):
                address = shared.address.host, shared.address.port
                stack.enter_context(socket.create_connection(address))
            for _ in range(ATTEMPTS):
                stack.enter_context(other.accept()[0])
            shared.close()
        return ATTEMPTS

    assert asyncio.run(served_by_the_other()) == ATTEMPTS


def test_what_connects_while_a_process_is_stopping_is_served_by_the_others(tmp_path: Path) -> None:
    async def confirmed(url: str) -> bool:
        async with polymux.connect(url, protocol="mplex", timeout=3) as session:
            return await ask(session) == b""

    async def serve_while_stopping(running: Running) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(16):  # each process has some
                session = await polymux.connect(running.url, protocol="mplex")
                stream = await (await stack.enter_async_context(session)).open("open")
                await stream.send(b"x")
            os.kill(running.workers_at_start[0], signal.SIGTERM)
            await asyncio.sleep(0.3)
            async with asyncio.timeout(3):
                assert all(await asyncio.gather(*(confirmed(running.url) for _ in range(16))))
            assert running.workers() == running.workers_at_start, "it has ended by then"

    command = ("collect", "--listen", HERE, "--protocol", "mplex", "--out", str(tmp_path / "out"))
    with Running(*command, *TWO, "--grace", "20") as running:
        asyncio.run(serve_while_stopping(running))


def test_every_limit_of_a_server_is_divided() -> None:
    limits = Limits(max_sessions=10, max_half_open=7, server_buffer_bytes=100 * MIB)
    parts = [divided_limits(limits, OneOf(index, 3), 5) for index in range(3)]
    assert sum(part.max_sessions for part in parts) == 10
    assert sum(part.max_half_open for part in parts) == 7
    assert sum(part.server_buffer_bytes for part in parts) == 100 * MIB
    assert sum(part.max_sessions_per_address for part in parts) == 5
    usual = [divided_limits(limits, OneOf(index, 3), None) for index in range(3)]
    assert [part.max_sessions_per_address for part in usual] == [3, 3, 3]  # of 4, 3 and 3
    assert divided_limits(limits, OneOf(0, 3), 0).max_sessions_per_address == 0  # no limit


def test_what_an_ended_process_has_counted_is_kept_and_what_it_had_open_is_not() -> None:
    former = Report({"sessions": 3}, {"open": 2}, {"lag": 0.5}).at_end()
    running = Report({"sessions": 1}, {"open": 1}, {"lag": 0.1})
    assert joined_report([former, running]) == Report({"sessions": 4}, {"open": 1}, {"lag": 0.1})
    families = JoinedFamilies()
    families.keep([family("begun", COUNTER, 3), family("open", GAUGE, 2)])
    total = families.total([[family("begun", COUNTER, 1), family("open", GAUGE, 1)]])
    assert {each.name: each.values for each in total} == {"begun": {(): 4}, "open": {(): 1}}


def family(name: str, kind: str, value: int) -> Family:
    return Family(name, kind, "", (), {(): value})


def test_an_address_that_is_closed_while_it_is_bound_again_stays_closed() -> None:
    async def close_meanwhile() -> list[int]:
        shared = await bind_shared(HERE, 2, 10)
        shared.release(0)
        binding = asyncio.create_task(shared.bind_again(0))
        await asyncio.sleep(0)  # it looks the host up
        shared.close()
        await binding
        return shared.descriptors(0)

    assert asyncio.run(close_meanwhile()) == []


def test_the_parent_lets_collectors_take_the_time_that_their_sessions_have(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    works: list[Work] = []

    def run_no_workers(work: Work, *_: object) -> int:
        works.append(work)
        return 0

    monkeypatch.setattr(collect, "run_workers", run_no_workers)
    for grace in (0.0, 7.0):
        run("collect", "--listen", HERE, "--protocol", "mplex", "--out", "x",
            "--grace", str(grace), *TWO)  # fmt: skip
        assert works.pop().grace >= grace + max(1.0, grace) + Timeouts().close


def test_no_process_is_left_when_their_parent_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    with Running(
        "collect", "--listen", HERE, "--protocol", "mplex", "--out", str(folder), *TWO
    ) as collecting:
        for _ in range(4):
            ask_once(collecting.url)
        collecting.process.kill()
        workers = collecting.workers_at_start
        until(lambda: not any(map(is_running, workers)), "a worker is left")
    assert list(folder.glob("*.part")) == []  # they have published what they had
    assert "Traceback" not in collecting.err


def test_a_process_that_cannot_be_started_again_leaves_its_connections_to_the_others(
    tmp_path: Path,
) -> None:
    audit = tmp_path / "audit"
    with Running("serve", HERE, *ECHO, *TWO, "--audit", str(audit)) as serving:
        audit.unlink()
        audit.mkdir()  # it cannot be opened
        os.kill(serving.workers_at_start[0], signal.SIGKILL)
        until(lambda: "its start is tried again" in serving.err, serving.err)
        for _ in range(ATTEMPTS):
            assert ask_once(serving.url) == b"hello"
        audit.rmdir()
        until(lambda: audit.exists() and len(serving.workers()) == 2, serving.err)
        for _ in range(8):
            assert ask_once(serving.url) == b"hello"
        assert serving.stop() == 0


def test_when_no_process_can_be_started_any_more_the_command_ends(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    with Running(
        "serve", HERE, *ECHO, *TWO, "--audit", str(audit), patched="RESTART_SECONDS = 0.01"
    ) as serving:
        audit.unlink()
        audit.mkdir()  # it cannot be opened
        for worker in serving.workers_at_start:
            os.kill(worker, signal.SIGKILL)
        assert serving.wait() == 5


def test_a_process_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    out = str(tmp_path / "day.pcapng")
    with Running("record", HERE, HERE, "-o", out, *TWO, patched="END_SECONDS = 0.1") as recording:
        os.kill(recording.workers_at_start[0], signal.SIGSTOP)
        assert recording.stop() == 5
    assert recording.err.count("has not ended in 2.1 s: killed") == 1


def test_metrics_do_not_wait_for_a_process_that_does_not_answer() -> None:
    with Running("serve", HERE, *ECHO, *TWO, "--metrics", "127.0.0.1:0") as serving:
        for _ in range(4):
            ask_once(serving.url)
        assert serving.metrics()["polymux_sessions_begun"] == 4
        os.kill(serving.workers_at_start[0], signal.SIGSTOP)
        assert serving.metrics()["polymux_sessions_begun"] == 4  # its last figures count
        os.kill(serving.workers_at_start[0], signal.SIGCONT)
        assert serving.stop() == 0


def test_a_process_that_ends_the_command_ends_all_of_them() -> None:
    with Running("serve", HERE, *ECHO, "--processes", "3", "--once") as serving:
        assert ask_once(serving.url) == b"hello"
        assert serving.wait() == 0


def test_streams_saved_by_several_processes_have_different_files(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with Running("serve", HERE, "--protocol", "mplex", "--save", str(folder), *TWO) as serving:
        for number in range(6):
            ask_once(serving.url, b"stream %d" % number)
        serving.kill_worker()
        for number in range(6, 12):
            ask_once(serving.url, b"stream %d" % number)
        assert serving.stop() == 0
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    names = [f"stream-{number:06d}.bin" for number in range(1, 13)]
    assert sorted(row["file"] for row in rows) == names
    assert sorted((folder / name).read_bytes() for name in names) == sorted(
        b"stream %d" % number for number in range(12)
    )


def test_long_lines_of_several_processes_are_not_mixed() -> None:
    async def send(url: str) -> None:
        async with polymux.connect(url, protocol="mplex") as session:
            for _ in range(10):
                await ask(session, b"x" * 20_000)

    async def send_all(url: str) -> None:
        await asyncio.gather(*(send(url) for _ in range(8)))

    with Running("serve", HERE, "--protocol", "mplex", "--json", *TWO) as serving:
        asyncio.run(send_all(serving.url))
        assert serving.stop() == 0
    lines = [json.loads(line) for line in serving.out.splitlines()]
    assert sum(line["bytes"] for line in lines) == 8 * 10 * 20_000


@pytest.mark.parametrize("processes", ["1", "2"])
def test_closed_standard_streams_are_not_taken_for_anything_else(
    processes: str, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    arguments = ("serve", f"unix://{path}", *ECHO, "-v", "--processes", processes)
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *COMMAND, *arguments]
    ) as process:
        try:
            until(path.exists, "it does not listen")
            for _ in range(4):
                assert ask_once(f"unix://{path}") == b"hello"
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def test_a_token_that_is_read_from_a_pipe_is_known_to_all_processes(tmp_path: Path) -> None:
    token = b"a secret of many characters"
    reader, writer = os.pipe()
    os.write(writer, token)
    os.close(writer)
    with Running(
        "serve", HERE, *ECHO, *TWO, "--token-file", f"/dev/fd/{reader}", pass_fds=[reader]
    ) as serving:
        os.close(reader)
        serving.kill_worker()
        for _ in range(8):
            assert ask_once(serving.url, token=token) == b"hello"
        assert serving.stop() == 0


def test_a_recording_in_a_session_is_written_by_each_process(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "talk.pcapng"
    with Running("serve", HERE, *ECHO, *TWO, "--record", str(base)) as serving:
        for _ in range(8):
            ask_once(serving.url)
        serving.kill_worker()
        for _ in range(8):
            ask_once(serving.url)
        assert serving.stop() == 0
    ran = run("ls", str(tmp_path))
    sessions = [row for row in map(json.loads, ran.out.splitlines()) if row["table"] == "sessions"]
    assert len(sessions) == 16
    assert {Path(name).name.rpartition("-")[0] for row in sessions for name in row["capture"]} == {
        "talk-p1",
        "talk-p2",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", HERE, *ECHO, "--clients", "1"], "--clients 1 cannot be divided"),
        (["serve", HERE, *ECHO, "--per-host", "1"], "--per-host 1 cannot be divided"),
        (["serve", "stdio:", *ECHO], "stdio: is a single connection"),
        (["serve", HERE, "--protocol", "telnet"], "no protocol 'telnet'"),
        (["serve", HERE, *ECHO, "--metrics", "here"], "write HOST:PORT"),
        (["record", HERE, HERE, "-o", "talk.pcapng", "--clients", "1"], "--clients 1 cannot"),
        (["record", HERE, "stdio:", "-o", "talk.pcapng"], "a recording proxy takes"),
        (
            ["collect", "--listen", HERE, "--protocol", "mplex", "--out", "x", "--clients", "1"],
            "--clients 1 cannot be divided",
        ),
    ],
)
def test_what_makes_no_sense_is_said_once(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    running = Running(*arguments, *TWO)
    assert running.wait() == 2
    assert running.err.count(said) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_address_where_another_server_listens_is_refused() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = Running("serve", f"tcp://127.0.0.1:{port}", *ECHO, *TWO)
        assert running.wait() == 2
    assert running.err.count("cannot listen there") == 1
