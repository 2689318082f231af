"""Sessions over the standard streams of a child (`exec:`) and of this process (`stdio:`)."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
from tests.aio.cancellation_points import everywhere
from tests.aio.session_helpers import PROTOCOLS, exchange

import polymux
from polymux import Session
from polymux.aio.transports import process as process_transport

ROOT = Path(__file__).parents[3]

ECHO = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
import polymux
from tests.aio.session_helpers import echo
async def main():
    server = await polymux.serve(echo, "stdio:", protocol=sys.argv[1])
    await server.wait_closed()
asyncio.run(main())
"""


def child(script: str, *arguments: str) -> str:
    """The URL of a Python child."""
    return "exec:" + shlex.join([sys.executable, "-W", "error", "-c", script, *arguments])


@pytest.fixture(autouse=True)
def strangers() -> list[psutil.Process]:
    """Processes that other tests have started are none of ours."""
    STRANGERS[:] = psutil.Process().children(recursive=True)
    return STRANGERS


STRANGERS: list[psutil.Process] = []


def children() -> list[psutil.Process]:
    """Processes that the test has started and that still run."""
    now = psutil.Process().children(recursive=True)
    return [process for process in now if process not in STRANGERS]


LONG_WAIT = 30.0


def wait_long_for_exit(patch: pytest.MonkeyPatch) -> None:
    """A child that is about to exit may take long for it on a busy machine."""
    patch.setattr(process_transport, "EXIT_STATUS_WAIT_SECONDS", LONG_WAIT)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_child_echoes_over_pipes_and_is_gone_afterwards(protocol: str) -> None:
    data = b"over pipes " * 40_000
    async with polymux.connect(child(ECHO, protocol), protocol=protocol) as session:
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(exchange(session, str(i), data)) for i in range(3)]
        assert [job.result() for job in jobs] == [data] * 3
    assert children() == []


SINK = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
import polymux
async def sink(session):
    size = 0
    stream = await session.accept()
    await asyncio.sleep(0.2)
    async for chunk in stream:
        size += len(chunk)
    open(sys.argv[1], "w").write(str(size))
async def main():
    server = await polymux.serve(sink, "stdio:", protocol="mplex")
    await server.wait_closed()
asyncio.run(main())
"""


async def test_what_was_queued_before_close_reaches_the_child(tmp_path: Path) -> None:
    note = tmp_path / "size"
    session = await polymux.connect(child(SINK, str(note)), protocol="mplex")
    stream = await session.open("x")
    stream.send_nowait(bytes(2_000_000))
    await stream.end()
    await session.close()
    assert note.read_text() == "2000000"
    assert children() == []


async def test_the_error_names_the_exit_status_of_a_child_that_ends_by_itself() -> None:
    session = await polymux.connect(child("import sys; sys.exit(3)"), protocol="mplex")
    await session.wait_closed()
    assert str(session.failure) == "the connection was lost: the child ended with exit status 3"
    with pytest.raises(polymux.SessionClosed, match="exit status 3"):
        await session.open("x")


async def test_the_error_names_the_signal_that_killed_a_child() -> None:
    session = await polymux.connect("exec:cat", protocol="nerdbank")
    for process in children():
        process.kill()
    await session.wait_closed()
    assert "ended by signal 9" in str(session.failure)


async def test_a_child_that_talks_nonsense_ends_with_one_clear_line() -> None:
    session = await polymux.connect("exec:yes", protocol="nerdbank:version=3")
    await session.wait_closed()
    assert isinstance(session.failure, polymux.PeerViolation)
    assert "\n" not in str(session.failure)
    assert children() == []


USAGE = "usage: foo [-v] [-o FILE] and a good deal more that is no frame of any protocol"
NO_FRAME = [
    "nerdbank:version=1", "nerdbank", "streamux", "omnistreams", "minmux", "mplex:preamble=0102",
]  # fmt: skip


async def hear_out(url: str, protocol: str, timeout: float) -> None:
    """Wait for the session's end, and raise what ended it."""
    async with polymux.connect(url, protocol=protocol, timeout=timeout) as session:
        await session.wait_closed()
        assert session.failure is not None
        raise session.failure


async def what_went_wrong(script: str, protocol: str, timeout: float = 50) -> str:
    """The error that a child of the shell causes, which is one line; nothing is left of it."""
    with pytest.raises(polymux.SessionClosed) as told:
        await hear_out("exec:" + shlex.join(["sh", "-c", script]), protocol, timeout)
    while children():
        await asyncio.sleep(0.02)
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize(
    ("then", "ended"),
    [
        ("exit 3", "the child ended with exit status 3"),
        ("exit 0", "the child ended with exit status 0"),
        ("sleep 0.1; exit 4", "the child ended with exit status 4"),
        ("exec >&-; sleep 0.1; exit 5", "the child ended with exit status 5"),
        ("exec <&-; sleep 0.1; exit 6", "the child ended with exit status 6"),
        ("head -c 1000000 /dev/zero; exit 7", "the child ended with exit status 7"),
        ("kill -9 $$", "the child was ended by signal 9 (SIGKILL)"),
        ("exec sleep 1000", "the child was still running and was ended"),
    ],
)
@pytest.mark.parametrize("protocol", NO_FRAME)
async def test_an_error_about_what_a_child_printed_says_how_the_child_ended(
    protocol: str,
    then: str,
    ended: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "still running" not in ended:
        wait_long_for_exit(monkeypatch)
    begun = asyncio.get_running_loop().time()
    said = await what_went_wrong(f"echo {shlex.quote(USAGE)}; {then}", protocol)
    assert asyncio.get_running_loop().time() - begun < 15  # not until its handshake's time is over
    assert said.endswith(f"; {ended}")
    assert said.count("the child") == 1
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == []


async def test_the_exit_status_of_a_child_that_prints_after_valid_frames_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_long_for_exit(monkeypatch)
    said = await what_went_wrong("printf '\\0\\1a'; sleep 0.1; printf '\\17\\0'; exit 3", "mplex")
    assert "mplex.bad-flag" in said
    assert said.endswith("; the child ended with exit status 3")


async def test_printed_text_is_reported_when_the_handshake_times_out_meanwhile() -> None:
    said = await what_went_wrong(f"echo {USAGE[:10]}; exec sleep 1000", "nerdbank:version=2", 2)
    assert 'the peer began with text: "usage: foo' in said
    assert said.endswith("; the child was still running and was ended")


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_session_can_be_ended_while_its_child_is_awaited(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_long_for_exit(monkeypatch)
    url = "exec:" + shlex.join(["sh", "-c", f"echo {shlex.quote(USAGE)}; exec sleep 1000"])
    session = await polymux.connect(url, protocol="nerdbank:version=3")
    while not session.endpoint.counters.hits:
        await asyncio.sleep(0.01)
    begun = session.loop.time()
    if end == "close":
        await session.close()
    else:
        session.abort()
        await session.wait_closed()
    assert session.loop.time() - begun < LONG_WAIT / 2
    assert str(session.failure).endswith("; the child was still running and was ended")
    assert children() == []


async def test_a_stream_opened_while_a_child_is_awaited_ends_with_the_same_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_long_for_exit(monkeypatch)
    url = "exec:" + shlex.join(["sh", "-c", f"echo {shlex.quote(USAGE)}; sleep 0.3; exit 3"])
    session = await polymux.connect(url, protocol="nerdbank:version=3")
    while not session.endpoint.counters.hits:
        await asyncio.sleep(0.01)
    with pytest.raises(polymux.PeerViolation, match="the child ended with exit status 3"):
        await (await session.open("x")).receive()
    await session.wait_closed()


async def test_a_child_that_does_not_listen_is_ended_with_its_session() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    session = await polymux.connect(child(deaf), protocol="mplex")
    await asyncio.sleep(0.3)
    begun = session.loop.time()
    await session.close()
    assert session.loop.time() - begun < 20
    assert children() == []


async def test_starting_a_child_can_be_cancelled_anywhere() -> None:
    async for cut in everywhere(steps=False):

        async def dial() -> Session:
            return await polymux.connect("exec:cat", protocol="mplex")

        finished, session = await cut(dial())
        if finished:
            session.abort()
            await session.wait_closed()
        while children():
            await asyncio.sleep(0.02)


DIALER = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
import polymux
from tests.aio.session_helpers import exchange
async def main():
    async with polymux.connect("stdio:", protocol="mplex") as session:
        data = await exchange(session, "x", b"asked over stdio")
        sys.stderr.write(data.decode())
asyncio.run(main())
"""


def test_two_processes_talk_over_each_others_standard_streams() -> None:
    command = [sys.executable, "-W", "error", "-c"]
    with subprocess.Popen(
        [*command, ECHO, "mplex"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        done = subprocess.run(
            [*command, DIALER], stdin=server.stdout, stdout=server.stdin,
            stderr=subprocess.PIPE, timeout=100,
        )  # fmt: skip
        assert server.stdin is not None
        server.stdin.close()
        assert (done.stderr, done.returncode) == (b"asked over stdio", 0)
        assert server.wait(60) == 0


def test_a_file_as_standard_input_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"")
    with file.open("rb") as source:
        done = subprocess.run(
            [sys.executable, "-c", ECHO, "mplex"], stdin=source, capture_output=True, timeout=100
        )
    last = done.stderr.decode().strip().splitlines()[-1]
    assert "stdio: needs pipes, sockets or a terminal" in last


async def say_something(url: str, protocol: str) -> None:
    async with polymux.connect(url, protocol=protocol, timeout=50) as session:
        if isinstance(session, polymux.StreamuxSession):
            await session.request(b"x")
        elif isinstance(session, polymux.MinmuxSession):
            await session.sender(1).send(b"x")
        elif isinstance(session, polymux.OmnistreamsSession):
            await (await session.open("x")).send(b"x")
        else:
            await (await session.open("x")).receive()


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("exit 3", "the child ended with exit status 3"),
        ("exit 0", "the child ended with exit status 0"),
        ("kill -9 $$", r"the child was ended by signal 9 \(SIGKILL\)"),
        ("printf '\\1'; exit 2", "the child ended with exit status 2"),
        ("exec 0<&-; sleep 0.1; exit 4", "the child ended with exit status 4"),
        ("sleep 0.1; exit 5", "the child ended with exit status 5"),
    ],
)
@pytest.mark.parametrize("protocol", ["mplex", "nerdbank", "streamux", "omnistreams", "minmux"])
async def test_the_exit_status_of_a_child_that_ends_early_is_reported(
    protocol: str,
    command: str,
    ended: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_long_for_exit(monkeypatch)
    with pytest.raises(polymux.SessionClosed, match=ended):
        await say_something("exec:" + shlex.join(["sh", "-c", command]), protocol)
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == []
    assert children() == []
