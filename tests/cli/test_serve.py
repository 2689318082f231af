"""`polymux serve`: every stream of real sessions echoed, dropped, shown or saved."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ran
from tests.cli.threaded_server import COMMAND, Serving

import polymux
from polymux.cli.support.stream_files import MANIFEST_KEYS

Run = Callable[..., Ran]
HOSTILE = "../../etc/passwd\x00\x1b[31m"


def talk(url: str, protocol: str, do: Callable[[Any], Any]) -> Any:
    async def go() -> Any:
        async with polymux.connect(url, protocol=protocol) as session:
            return await do(session)

    return asyncio.run(go())


async def ask(session: Any, name: str = "a stream", data: bytes = b"hello") -> bytes:
    stream = await session.open(name)
    await stream.send(data)
    await stream.end()
    answer: bytes = await stream.receive_all()
    return answer


async def ask_by_message(session: Any) -> list[bytes]:
    sender = await session.open("there")
    await sender.send(b"one")
    await sender.send(b"two")
    await sender.end()
    return [message async for message in await session.accept()]


async def ask_by_items(session: Any) -> bytes:
    sender, back = session.sender(1), session.receiver(2)
    await sender.send(b"items")
    await sender.end()
    return b"".join([items async for items in back])


@pytest.mark.parametrize(
    ("protocol", "url", "do", "answer"),
    [
        ("mplex", "tcp://127.0.0.1:0", ask, b"hello"),
        ("nerdbank:version=3", "tcp://127.0.0.1:0", ask, b"hello"),
        ("omnistreams", "ws://127.0.0.1:0/x", ask_by_message, [b"one", b"two"]),
        ("streamux", "tcp://127.0.0.1:0", lambda session: session.request(b"hello"), b"hello"),
        ("minmux", "tcp://127.0.0.1:0", ask_by_items, b"items"),
    ],
)
def test_echo_answers_in_every_protocol_and_once_ends(
    protocol: str, url: str, do: Callable[[Any], Any], answer: object
) -> None:
    with Serving(url, "--protocol", protocol, "--action", "echo", "--once") as serving:
        assert talk(serving.url, protocol, do) == answer
        code, out, err = serving.wait()
    assert (code, out) == (0, "")
    assert "1 stream, " in err


def test_saved_streams_are_numbered_files_and_names_stay_in_the_manifest(tmp_path: Path) -> None:
    async def send(session: Any) -> None:
        for number in range(3):
            await ask(session, f"{HOSTILE}{number}", b"x" * 100_000 * number)

    folder = tmp_path / "saved"
    with Serving(
        "tcp://127.0.0.1:0", "--protocol", "mplex", "--save", str(folder), "--once"
    ) as serving:
        talk(serving.url, "mplex", send)
        assert serving.wait()[0] == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.jsonl", *(f"stream-00000{n}.bin" for n in (1, 2, 3))]
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == [f"{HOSTILE}{number}" for number in range(3)]
    for number, row in enumerate(rows):
        data = (folder / row["file"]).read_bytes()
        assert data == b"x" * 100_000 * number
        assert row["sha256"] == hashlib.sha256(data).hexdigest()
        assert (row["bytes"], row["ending"]) == (len(data), "ended")
        assert tuple(row) == MANIFEST_KEYS
        assert (row["sender"], row["opener"], row["protocol"]) == ("dialer", "dialer", "mplex")


def test_a_pipe_gets_json_lines_and_a_stop_is_no_failure() -> None:
    with Serving("tcp://127.0.0.1:0", "--protocol", "mplex") as serving:
        talk(serving.url, "mplex", lambda session: ask(session, HOSTILE, b"\xff"))
        talk(serving.url, "mplex", lambda session: ask(session, "second", "é".encode()))
        serving.process.send_signal(signal.SIGTERM)
        code, out, err = serving.wait()
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"stream": "d1", "name": HOSTILE, "bytes": 1, "hex": "ff"},
        {"stream": "d1", "name": "second", "bytes": 2, "text": "é"},
    ]
    assert "\x1b" not in out + err
    assert err.count("1 stream, ") == 2


def test_a_stream_that_is_reset_is_one_line_and_harms_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "saved"

    async def reset(session: Any) -> bytes:
        stream = await session.open("given up")
        await stream.send(b"never mind")
        async with asyncio.timeout(60):
            while not [path for path in folder.iterdir() if path.read_bytes() == b"never mind"]:
                await asyncio.sleep(0.01)
        stream.abort()
        return await ask(session)

    with Serving(
        "tcp://127.0.0.1:0", "--protocol", "mplex", "--save", str(folder), "--once"
    ) as serving:
        assert talk(serving.url, "mplex", reset) == b""
        code, _, err = serving.wait()
    assert code == 0
    assert "2 streams, 15 bytes" in err
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert [row["ending"] == "ended" for row in rows] == [False, True]


def test_a_child_that_serves_on_its_standard_input_and_output(run: Run) -> None:
    child = shlex.join([*COMMAND, "serve", "stdio:", "--protocol", "mplex", "--action", "echo"])
    ran = run("connect", f"exec:{child}", "--protocol", "mplex", "--send", "hello, child")
    assert (ran.code, ran.out) == (0, "hello, child")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tcp://127.0.0.1:0", "--protocol", "telnet"], "no protocol 'telnet'"),
        (["tls://127.0.0.1:0", "--protocol", "mplex"], "--cert"),
        (["tcp://127.0.0.1:0", "--protocol", "minmux", "--stream", "2"], "odd ids only"),
        (
            ["tcp://127.0.0.1:0", "--protocol", "mplex", "--action", "dance"],
            "'dance' is not one of",
        ),
        (["exec:true", "--protocol", "mplex"], "cannot be listened on"),
        (["stdio:", "--protocol", "mplex"], "stdio: is the connection itself"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: list[str], said: str, run: Run) -> None:
    ran = run("serve", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_port_that_is_taken_and_a_directory_that_is_full(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run("serve", f"tcp://127.0.0.1:{taken.getsockname()[1]}", "--protocol", "mplex")
    assert ran.code == 2
    assert "cannot listen there" in ran.err
    (tmp_path / "mine").write_text("keep me")
    ran = run("serve", "tcp://127.0.0.1:0", "--protocol", "mplex", "--save", str(tmp_path))
    assert ran.code == 2
    assert "is not empty" in ran.err
