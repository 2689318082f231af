"""What `polymux top` watches: rotations, directories, recorders, collectors, programs."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import BROKEN, CLEAN, MS, START, Ran
from tests.cli.top.test_screen import Recording
from tests.cli.top.tmux import POLYMUX

import polymux
from polymux.capture import RotatingWriter, TcpConnectionWriter, hint_comment
from polymux.capture.io.growing import GrowingCapture
from polymux.cli.top.processes import MeterWatch
from polymux.cli.top.state_client import StateClient
from polymux.core.errors import CaptureError
from polymux.metrics import Meter, StateSocket


def once(run: Callable[..., Ran], *arguments: str) -> dict[str, list[dict[str, object]]]:
    """The state that `top --once` prints, by table."""
    ran = run("top", "--once", *arguments)
    assert ran.code == 0, ran.err
    tables: dict[str, list[dict[str, object]]] = {}
    for line in ran.out.splitlines():
        row = json.loads(line)
        tables.setdefault(row.pop("table"), []).append(row)
    return tables


def listed(run: Callable[..., Ran], path: Path) -> dict[str, dict[str, object]]:
    rows = [json.loads(line) for line in run("ls", str(path), "--json").out.splitlines()]
    return {row["session_id"]: row for row in rows if row["table"] == "sessions"}


def test_the_numbers_of_every_protocol_equal_those_of_ls(
    demo_capture: Path, run: Callable[..., Ran]
) -> None:
    tables = once(run, str(demo_capture))
    sessions = listed(run, demo_capture)
    assert len(sessions) == len(tables["sessions"]) > 9
    for shown in tables["sessions"]:
        row = sessions[str(shown["session_id"])]
        assert (
            shown["protocol"], shown["stream_count"], shown["frames"], shown["findings"],
            shown["stalls"], shown["total_bytes"],
        ) == (
            row["protocol"], row["streams"], row["frames"], row["findings"],
            row["stalls"], int(str(row["bytes_dialer"])) + int(str(row["bytes_acceptor"])),
        )  # fmt: skip


def test_a_rotation_is_one_recording_by_its_name_and_by_its_directory(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    with RotatingWriter(tmp_path / "talk.pcapng", max_bytes=400) as writer:
        talk = TcpConnectionWriter(
            writer, ("10.0.0.1", 4000), ("10.0.0.2", 9000), START,
            comment=hint_comment("mplex", "middle"),
        )  # fmt: skip
        for side, data, at in BROKEN:
            talk.data(side, data, START + at * MS)
        assert len(os.listdir(tmp_path)) > 2
        for path in (tmp_path / "talk.pcapng", tmp_path):
            (totals,) = once(run, str(path))["totals"]
            assert (totals["sessions"], totals["streams"], totals["frames"]) == (1, 2, 6)
        talk.end(0, START + 10 * MS)
        talk.end(1, START + 10 * MS)
    (totals,) = once(run, str(tmp_path))["totals"]
    assert (totals["open_sessions"], totals["findings"]) == (0, 1)


def test_the_rotations_of_several_processes_are_read_by_the_name_of_their_recording(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    with (
        RotatingWriter(tmp_path / "talk-p1.pcapng", numbered=True) as one,
        RotatingWriter(tmp_path / "talk-p2.pcapng", numbered=True) as other,
        RotatingWriter(tmp_path / "talking-p1.pcapng", numbered=True) as another,
    ):
        for port, writer in enumerate((one, other, another)):
            talk = TcpConnectionWriter(
                writer, ("10.0.0.1", 4000 + port), ("10.0.0.2", 9000), START,
                comment=hint_comment("mplex", "middle"),
            )  # fmt: skip
            for side, data, at in CLEAN:
                talk.data(side, data, START + at * MS)
        (totals,) = once(run, str(tmp_path / "talk.pcapng"))["totals"]
        assert (totals["sessions"], totals["open_sessions"]) == (2, 2)


def test_two_recordings_in_a_directory_are_both_read(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    for name in ("one", "two"):
        recording = Recording(tmp_path / f"{name}.pcapng")
        for side, data, at in CLEAN:
            recording.send(side, data, at)
        recording.close(5)
    (totals,) = once(run, str(tmp_path))["totals"]
    assert totals["sessions"] == 2


def test_a_directory_with_more_recordings_than_descriptors_is_read(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path / "a.pcapng")
    for side, data, at in CLEAN:
        recording.send(side, data, at)
    recording.close(5)
    content = (tmp_path / "a.pcapng").read_bytes()
    for number in range(200):
        name = chr(97 + number // 20) + chr(97 + number % 20)
        (tmp_path / f"{name}.pcapng").write_bytes(content)
    limited = ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *POLYMUX]
    ran = subprocess.run(
        [*limited, "top", "--once", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[0])["sessions"] == 201


def test_what_is_no_capture_is_an_error_if_there_is_nothing_else(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    (tmp_path / "text.pcapng").write_text("this is some text and no capture\n" * 10)
    for path in (tmp_path / "text.pcapng", tmp_path):
        ran = run("top", "--once", str(path))
        assert (ran.code, ran.out) == (3, "")
        assert ran.err.endswith("text.pcapng: not a capture: neither pcapng nor pcap\n")
    recording = Recording(tmp_path / "one.pcapng")
    for side, data, at in CLEAN:
        recording.send(side, data, at)
    recording.close(5)
    (totals,) = once(run, str(tmp_path))["totals"]
    assert totals["sessions"] == 1
    assert totals["status"] == "stopped: not a capture: neither pcapng nor pcap"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing.pcapng", "no such file, nor files of a rotation by this name"),
        ("tcp://127.0.0.1:9000", "watch a process at the unix:// URL that it was given"),
        ("unix:///nowhere/x.sock", "unix:///nowhere/x.sock: "),
    ],
)
def test_what_cannot_be_watched_is_said_in_one_line(
    name: str, reason: str, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    ran = run("top", "--once", name if "://" in name else str(tmp_path / name))
    assert ran.code in (2, 3, 4)
    assert reason in ran.err
    assert len(ran.err.splitlines()) <= 3


def test_a_capture_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "talk.pcapng"
    path.write_bytes(b"x" * 1000)
    growing = GrowingCapture(str(path), lambda: [str(path)], False)
    assert growing.read() == b"x" * 1000
    assert growing.read() is None
    os.truncate(path, 10)
    with pytest.raises(CaptureError, match="became shorter"):
        growing.read()
    growing.close()


async def echo(session: polymux.Session) -> None:
    async def answer(stream: polymux.Stream) -> None:
        async for chunk in stream:
            await stream.send(chunk)
        await stream.end()

    await session.serve_streams(answer)


def in_loop(test: Callable[[], object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()  # type: ignore[misc]  # a coroutine function

    asyncio.run(bounded())


def test_a_program_shows_its_sessions_over_a_private_socket(tmp_path: Path) -> None:
    path = tmp_path / "app.sock"

    async def check() -> None:
        meter = Meter()
        server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex", meter=meter)
        async with StateSocket(f"unix://{path}", meter.state):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            async with polymux.connect(server.url, protocol="mplex") as session:
                async with await session.open("\x1b[31mlogs") as stream:
                    await stream.send(b"hello")
                    assert await stream.receive() == b"hello"
                    loop = asyncio.get_running_loop()
                    client = await loop.run_in_executor(None, StateClient, f"unix://{path}")
                    watch = MeterWatch(client)
                    state = await loop.run_in_executor(None, watch.state)
                    watch.close()
                    (line,) = state.sessions
                    assert (line.protocol, line.stream_count) == ("mplex", 1)
                    (shown,) = state.streams
                    assert (shown.name, shown.content_bytes) == ("\x1b[31mlogs", 10)
                    await stream.end()
        assert not path.exists()
        await server.close()

    in_loop(check)


def test_a_stream_of_a_program_that_has_no_credit_says_so(tmp_path: Path) -> None:
    path = tmp_path / "app.sock"

    async def check() -> None:
        meter = Meter()

        async def idle(session: polymux.Session) -> None:
            stream = await session.accept()
            await reading.wait()
            async for _ in stream:
                pass

        reading = asyncio.Event()
        server = await polymux.serve(idle, "tcp://127.0.0.1:0", protocol="yamux")
        async with StateSocket(f"unix://{path}", meter.state):
            async with polymux.connect(server.url, protocol="yamux", meter=meter) as session:
                stream = await session.open()
                sending = asyncio.create_task(stream.send(bytes(2 << 20)))
                loop = asyncio.get_running_loop()
                watch = MeterWatch(await loop.run_in_executor(None, StateClient, f"unix://{path}"))
                while True:
                    state = await loop.run_in_executor(None, watch.state)
                    if state.streams and state.streams[0].cause:
                        break
                    await asyncio.sleep(0.01)
                (shown,) = state.streams
                assert (shown.cause, shown.window_use) == ("no-credit", 1.0)
                watch.close()
                reading.set()
                await sending
                await stream.end()
        await server.close()

    in_loop(check)


class AnsweringClient(StateClient):
    """Gives one prepared answer after the other."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self.url = "unix:///app.sock"
        self._answers = list(answers)

    def request(self) -> dict[str, object]:
        return self._answers.pop(0)


def answer_with(
    *names: str, at: float, violations: int = 1, left_out: int = 0
) -> dict[str, object]:
    """The answer of a program with sessions of these names, each with so many violations."""
    session = {
        "protocol": "mplex", "side": "acceptor", "peer": "x", "stream_count": 0, "open_streams": 0,
        "waiting_streams": 0, "frames_sent": 0, "frames_received": 0, "bytes_sent": 9000,
        "bytes_received": 0, "violations": {"mplex.id-reused": violations}, "streams": [],
    }  # fmt: skip
    sums = dict.fromkeys(("streams", "open_streams", "waiting_streams", "frames", "bytes"), 0)
    return {
        "kind": "sessions",
        "made_at": at,
        "ended_sessions": 0,
        "totals": {"sessions": len(names) + left_out, "violations": 0, **sums},
        "left_out": {"sessions": left_out, "streams": 0},
        "sessions": [{"id": name, **session} for name in names],
    }


def test_a_later_session_by_the_same_id_has_findings_of_its_own() -> None:
    watch = MeterWatch(
        AnsweringClient(answer_with("a", at=1.0), answer_with(at=2.0), answer_with("a", at=3.0))
    )
    assert [len(watch.state().findings) for _ in range(3)] == [1, 1, 2]


def test_a_session_that_was_left_out_for_a_while_brings_no_findings_and_no_rate_of_its_past() -> (
    None
):
    watch = MeterWatch(
        AnsweringClient(
            answer_with("a", at=1.0, left_out=1),
            answer_with("b", at=3.0, left_out=1),
            answer_with("a", at=5.0, left_out=1),
            answer_with("a", at=7.0, violations=3),
        )
    )
    states = [watch.state() for _ in range(4)]
    assert [line.rate for state in states for line in state.sessions] == [0.0] * 4
    assert states[0].extra == "2 open sessions of this program; not listed: 1 session, 0 streams"
    assert [finding.text for finding in states[3].findings] == [
        "the peer broke mplex.id-reused",
        "the peer broke mplex.id-reused (2 times)",
    ]


def test_a_program_that_cannot_tell_its_state_is_an_error(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 'app.sock'}"

    def state() -> dict[str, object]:
        raise RuntimeError("no database")

    async def check() -> None:
        async with StateSocket(url, state):
            loop = asyncio.get_running_loop()
            client = await loop.run_in_executor(None, StateClient, url)
            with pytest.raises(polymux.Unreachable, match="cannot tell its state: RuntimeError"):
                await loop.run_in_executor(None, client.request)
            client.close()

    in_loop(check)


@pytest.mark.parametrize("request_line", [b"other\n", b"\n", b"x" * 5000 + b"\n"])
def test_another_request_than_state_is_answered_or_refused_and_no_more(
    request_line: bytes, tmp_path: Path
) -> None:
    path = str(tmp_path / "app.sock")

    async def check() -> None:
        async with StateSocket(f"unix://{path}", lambda: {"kind": "sessions"}):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(request_line)
            answer = await reader.readline()
            assert not answer or "the only request is: state" in json.loads(answer)["error"]
            writer.close()

    in_loop(check)


def test_a_socket_of_a_living_process_is_not_taken_and_a_dead_one_is(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 'app.sock'}"

    async def check() -> None:
        async with StateSocket(url, dict):
            with pytest.raises(polymux.BadUrl, match="a server answers there"):
                await StateSocket(url, dict).start()
        import socket

        left = socket.socket(socket.AF_UNIX)
        left.bind(str(tmp_path / "app.sock"))
        left.close()
        async with StateSocket(url, dict):
            pass

    in_loop(check)


@pytest.mark.parametrize("answer", ["no json", "[1]", '{"polymux": 99}'])
def test_an_answer_that_is_no_state_is_an_error(answer: str, tmp_path: Path) -> None:
    path = str(tmp_path / "other.sock")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer.encode() + b"\n")
        writer.close()

    async def check() -> None:
        server = await asyncio.start_unix_server(serve, path)
        async with server:
            loop = asyncio.get_running_loop()
            client = await loop.run_in_executor(None, StateClient, f"unix://{path}")
            with pytest.raises(polymux.Unreachable, match=r"other\.sock: the (answer|state)"):
                await loop.run_in_executor(None, client.request)
            client.close()

    in_loop(check)


@pytest.mark.parametrize("kind", ["record", "collect"])
def test_a_recorder_is_watched_at_its_socket(
    kind: str, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    """The command as a child process, one session through it, and what `top` says of it."""
    url = f"unix://{tmp_path / 'top.sock'}"
    out = str(tmp_path / ("talk.pcapng" if kind == "record" else "captures"))

    async def talk() -> None:
        server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
        listen = "tcp://127.0.0.1:0"
        arguments = (
            ("record", listen, server.url, "-o", out, "--protocol", "mplex")
            if kind == "record"
            else ("collect", "--listen", listen, "--protocol", "mplex", "--out", out)
        )
        child = await asyncio.create_subprocess_exec(
            *POLYMUX, *arguments, "--top", url, stderr=asyncio.subprocess.PIPE
        )
        assert child.stderr is not None
        line = (await child.stderr.readline()).decode()
        assert "listening at" in line, line
        address = line.split()[2].rstrip(",")
        async with polymux.connect(address, protocol="mplex") as session:
            async with await session.open("logs") as stream:
                await stream.send(b"hello")
                if kind == "record":
                    assert await stream.receive() == b"hello"
                await asyncio.get_running_loop().run_in_executor(None, watch)
                await stream.end()
        child.terminate()
        await child.wait()
        await server.close()

    def watch() -> None:
        client = StateClient(url)
        state = client.request()
        client.close()
        assert state["kind"] == "recorder"
        assert state["capture"] == out
        assert state["counters"]["open"] == 1
        deadline = time.monotonic() + 40
        while True:  # the collector may not have received the first frame yet
            (totals,) = once(run, url)["totals"]
            if totals["streams"] or time.monotonic() > deadline:
                break
        assert (totals["sessions"], totals["streams"]) == (1, 1)
        assert str(totals["what"]).startswith(url)

    in_loop(talk)
