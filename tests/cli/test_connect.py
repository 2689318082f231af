"""`polymux connect`: one stream to a real peer over a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.cli.conftest import Ran
from tests.cli.threaded_server import COMMAND, echo, served
from tests.ports import free_port

import polymux

Run = Callable[..., Ran]
Type = Callable[[bytes], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Puts bytes on the standard input of the next command."""

    def put(data: bytes) -> None:
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        monkeypatch.setattr("sys.stdin", os.fdopen(reader))

    return put


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=1", "nerdbank:version=3"])
def test_what_is_typed_goes_to_the_stream_and_what_comes_is_shown(
    protocol: str, run: Run, typed: Type
) -> None:
    typed(b"hello \xff\x00 world")
    with served(echo, protocol) as url:
        ran = run("connect", url, "--protocol", protocol, "--name", "logs")
    assert (ran.code, ran.raw_bytes, ran.err) == (0, b"hello \xff\x00 world", "")


def test_texts_are_sent_instead_of_standard_input(run: Run) -> None:
    with served(echo, "mplex") as url:
        ran = run("connect", url, "--protocol", "mplex", "--send", "one", "--send", "two")
    assert (ran.code, ran.out) == (0, "onetwo")


def test_streamux_asks_once_or_once_for_each_line(run: Run, typed: Type) -> None:
    async def upper(session: Any) -> None:
        async def work(call: Any) -> None:
            await call.reply((await call.read()).upper() + b"!")

        await session.serve_calls(work)

    with served(upper, "streamux") as url:
        typed(b"one\ntwo\n")
        assert run("connect", url, "--protocol", "streamux").out == "ONE\nTWO\n!"
        typed(b"one\ntwo\n")
        assert run("connect", url, "--protocol", "streamux", "--lines").out == "ONE!\nTWO!\n"
        assert run("connect", url, "--protocol", "streamux", "--send", "x").out == "X!"


def test_omnistreams_sends_messages_with_metadata(run: Run, typed: Type) -> None:
    got: list[Any] = []

    async def take(session: Any) -> None:
        async for receiver in session.incoming:
            got.append([receiver.metadata, *[message async for message in receiver]])

    typed(b"first\nsecond\n")
    with served(take, "omnistreams", "ws://127.0.0.1:0/x") as url:
        ran = run("connect", url, "--protocol", "omnistreams", "--name", "part 1", "--lines")
    assert ran.code == 0
    assert got == [[b"part 1", b"first", b"second"]]


def test_minmux_writes_odd_streams_and_reads_even_ones(run: Run, typed: Type) -> None:
    got: list[bytes] = []

    async def both(session: Any) -> None:
        async def write() -> None:
            sender = session.sender(2)
            with suppress(polymux.PolymuxError):  # the first of the two commands does not read it
                await sender.send(b"from the acceptor")
                await sender.end()

        writing = asyncio.create_task(write())
        with suppress(polymux.PolymuxError):  # and the second does not write
            got.append(b"".join([items async for items in session.receiver(1)]))
        await writing
        await session.wait_closed()

    typed(b"some items")
    with served(both, "minmux") as url:
        assert run("connect", url, "--protocol", "minmux").code == 0
        ran = run("connect", url, "--protocol", "minmux", "--stream", "2")
    assert (ran.code, ran.out) == (0, "from the acceptor")
    assert got[0] == b"some items"


@pytest.mark.parametrize(
    ("protocol", "url"), [("mplex", "tcp://127.0.0.1:0"), ("omnistreams", "ws://127.0.0.1:0/x")]
)
def test_the_first_stream_of_the_peer_can_be_taken_instead(
    protocol: str, url: str, run: Run, typed: Type
) -> None:
    async def push(session: Any) -> None:
        stream = await session.open("news")
        await stream.send(b"something happened")
        await stream.end()
        await session.wait_closed()

    typed(b"")
    with served(push, protocol, url) as there:
        ran = run("connect", there, "--protocol", protocol, "--accept")
    assert (ran.code, ran.out) == (0, "something happened")


def test_json_has_text_or_hex(run: Run) -> None:
    async def answer(session: Any) -> None:
        async for stream in session.incoming:
            await stream.send(b"caf\xc3\xa9 \x1b[31m")
            while not os.fstat(1).st_size:  # until the first has been printed, to a file
                await asyncio.sleep(0.01)
            await stream.send(b"\xff\x00")
            await stream.end()

    with served(answer, "mplex") as url:
        ran = run("connect", url, "--protocol", "mplex", "--json", "--name", "n", "--send", "x")
    assert "\x1b" not in ran.out
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert rows == [
        {"stream": "d1", "name": "n", "bytes": 11, "text": "café \x1b[31m"},
        {"stream": "d1", "name": "n", "bytes": 2, "hex": "ff00"},
    ]


def test_a_recording_of_the_session_can_be_read(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "talk.pcapng")
    with served(echo, "mplex") as url:
        asked = ("connect", url, "--protocol", "mplex", "--send", "hi", "--record", path)
        assert run(*asked).code == 0
        again = run(*asked)
    rows = [json.loads(line) for line in run("ls", path).out.splitlines()]
    assert [row["vantage"] for row in rows if row["table"] == "sessions"] == ["dialer"]
    assert [row["bytes_acceptor"] for row in rows if row["table"] == "streams"] == [2]
    assert again.code == 2
    assert "is there already" in again.err


def test_tls_is_verified_unless_told_otherwise(run: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(ca)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with served(echo, "mplex", "tls://127.0.0.1:0", context) as url:
        asked = ("connect", url, "--protocol", "mplex", "--send", "hi", "--server-name")
        refused = run(*asked, "localhost")
        known = run(*asked, "localhost", "--ca", ca)
        careless = run(*asked, "elsewhere", "--insecure")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (4, "", 1)
    assert "--ca" in refused.err
    assert (known.code, known.out) == (0, "hi")
    assert (careless.code, careless.out) == (0, "hi")
    assert careless.err == "warning: the peer's certificate is not verified\n"


# --- what can go wrong: one line, and the documented exit code


def one_line(ran: Ran, code: int, said: str) -> None:
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert len([line for line in ran.err.splitlines() if not line.startswith(("Usage", "Try"))
                and line]) == 1  # fmt: skip


@pytest.mark.parametrize(
    ("url", "arguments", "said"),
    [
        ("nowhere", ["--protocol", "mplex"], "a URL begins with one of"),
        ("tcp://127.0.0.1:1", ["--protocol", "telnet"], "no protocol 'telnet'"),
        ("tcp://127.0.0.1:1", [], "Missing option '--protocol'"),
        ("stdio:", ["--protocol", "mplex"], "use exec:COMMAND"),
        ("tls://127.0.0.1:1", ["--protocol", "mplex", "--ca", "/no/such"], "/no/such"),
    ],
)
def test_wrong_options_are_usage_errors(
    url: str, arguments: list[str], said: str, run: Run
) -> None:
    one_line(run("connect", url, *arguments), 2, said)


@pytest.mark.parametrize("protocol", ["streamux", "minmux"])
@pytest.mark.parametrize("option", [["--name", "x"], ["--accept"]])
def test_what_a_protocol_does_not_have_is_said(protocol: str, option: list[str], run: Run) -> None:
    async def wait(session: Any) -> None:
        await session.wait_closed()

    with served(wait, protocol) as url:
        one_line(run("connect", url, "--protocol", protocol, "--send", "x", *option), 2, option[0])


def test_a_standard_input_that_is_closed_is_an_empty_one() -> None:
    with served(echo, "mplex") as url:
        done = subprocess.run(
            ["bash", "-c", '"$@" <&-', "-", *COMMAND, "connect", url, "--protocol", "mplex"],
            capture_output=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_nobody_there_is_exit_code_4(run: Run) -> None:
    one_line(run("connect", "tcp://127.0.0.1:1", "--protocol", "mplex"), 4, "nothing listens there")


def test_a_peer_that_comes_late_is_waited_for(run: Run) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as pool:

        def late() -> None:
            time.sleep(0.3)
            with served(echo, "mplex", url):
                over.wait(60)

        over = threading.Event()
        serving = pool.submit(late)
        ran = run("connect", url, "--protocol", "mplex", "--send", "x", "--wait", "60")
        over.set()
        serving.result()
    assert (ran.code, ran.out) == (0, "x")


def test_a_stream_that_the_peer_gives_up_is_exit_code_4(run: Run) -> None:
    async def give_up(session: Any) -> None:
        async for stream in session.incoming:
            await stream.receive()
            stream.abort("no")

    with served(give_up, "mplex") as url:
        one_line(run("connect", url, "--protocol", "mplex", "--send", "x"), 4, "stream d1")


def test_a_reply_that_does_not_come_in_time_is_exit_code_4(run: Run) -> None:
    async def wait(session: Any) -> None:
        await session.wait_closed()

    with served(wait, "streamux") as url:
        asked = ("connect", url, "--protocol", "streamux", "--send", "x", "--timeout", "0.3")
        one_line(run(*asked), 4, "no reply within 0.3 s")


@pytest.mark.parametrize("option", [[], ["--lines"]], ids=["bytes", "lines"])
def test_an_interrupt_is_exit_code_130(option: list[str]) -> None:
    with served(echo, "mplex") as url:
        process = subprocess.Popen(
            [*COMMAND, "connect", url, "--protocol", "mplex", *option],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"are you there?" + b"\n" * len(option))
        process.stdin.flush()
        assert os.read(process.stdout.fileno(), 100) == b"are you there?" + b"\n" * len(option)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err == b"polymux: interrupted\n"
    assert time.monotonic() - began < 25


def test_a_terminal_gets_nothing_it_would_obey(terminal: Callable[..., Ran]) -> None:
    with served(echo, "mplex") as url:
        ran = terminal("connect", url, "--protocol", "mplex", "--send", "a\x1b[2Jb\u202e")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == r"a\u001b[2Jb\u202e"
