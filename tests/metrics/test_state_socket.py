"""A state socket serves clients that do not read, that are silent, and programs that fail."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from polymux.metrics import StateSocket, state_socket

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "app.sock")


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


async def ask(client: Client) -> dict[str, object] | None:
    """The answer to a request; None if the connection was closed."""
    reader, writer = client
    try:
        writer.write(b"state\n")
        line = await reader.readline()
    except OSError:
        return None
    answer: dict[str, object] | None = json.loads(line) if line else None
    return answer


async def connect(path: str) -> Client:
    return await asyncio.open_unix_connection(path, limit=64 << 20)


def test_an_answer_is_sent_again_for_ten_times_the_time_it_took(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(state_socket, "time", SimpleNamespace(monotonic=lambda: now))
    calls = 0

    def state() -> dict[str, object]:
        nonlocal calls, now
        calls += 1
        now += 2.0
        return {"call": calls}

    async def check() -> None:
        nonlocal now
        async with StateSocket(f"unix://{path}", state):
            client = await connect(path)
            assert await ask(client) == {"polymux": 1, "made_at": 1000.0, "call": 1}
            now += 19.9
            assert await ask(client) == {"polymux": 1, "made_at": 1000.0, "call": 1}
            now += 0.2
            answer = await ask(client)
            assert answer is not None
            assert answer["call"] == 2
            client[1].close()

    in_loop(check)


def test_closing_ends_a_client_that_does_not_read(path: str) -> None:
    async def check() -> None:
        asked = asyncio.Event()

        def state() -> dict[str, object]:
            asked.set()
            return {"large": "x" * (8 << 20)}

        socket = StateSocket(f"unix://{path}", state)
        await socket.start()
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(b"state\n")
        await asked.wait()
        await socket.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        writer.close()

    in_loop(check)


def test_a_state_function_that_raises_is_told_to_clients_and_logged_once(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def state() -> dict[str, object]:
        raise RuntimeError("no database")

    async def check() -> None:
        async with StateSocket(f"unix://{path}", state):
            client = await connect(path)
            for _ in range(3):
                answer = await ask(client)
                assert answer is not None
                assert answer["error"] == (
                    "the program cannot tell its state: RuntimeError: no database"
                )
            client[1].close()

    with caplog.at_level(logging.DEBUG):
        in_loop(check)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.name for record in errors] == ["polymux.metrics"]


def test_clients_that_never_read_do_not_lock_others_out(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_socket, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(state_socket, "REUSE_FACTOR", 0)
    calls = 0

    def state() -> dict[str, object]:
        nonlocal calls
        calls += 1
        return {"large": "x" * (8 << 20) if calls <= state_socket.MAX_CLIENTS else ""}

    async def check() -> None:
        async with StateSocket(f"unix://{path}", state):
            deaf = []
            for _ in range(state_socket.MAX_CLIENTS):
                _, writer = await asyncio.open_unix_connection(path)
                writer.write(b"state\n")
                deaf.append(writer)
            while True:
                client = await connect(path)
                answer = await ask(client)
                client[1].close()
                if answer is not None and answer["large"] == "":
                    break
            for writer in deaf:
                writer.close()

    in_loop(check)


def test_the_client_that_was_idle_for_longest_makes_room(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_socket, "IDLE_SECONDS", 0.0)

    async def check() -> None:
        async with StateSocket(f"unix://{path}", dict):
            clients = [await connect(path) for _ in range(state_socket.MAX_CLIENTS)]
            for client in [*clients, clients[0]]:
                assert await ask(client) is not None
            clients.append(await connect(path))
            assert await ask(clients[-1]) is not None
            assert await ask(clients.pop(1)) is None
            for client in clients:
                assert await ask(client) is not None
                client[1].close()

    in_loop(check)


def test_clients_that_ask_are_not_closed_for_a_further_one(path: str) -> None:
    async def check() -> None:
        async with StateSocket(f"unix://{path}", dict):
            clients = [await connect(path) for _ in range(state_socket.MAX_CLIENTS)]
            for client in clients:
                assert await ask(client) is not None
            further = await connect(path)
            assert await ask(further) is None
            for client in clients:
                assert await ask(client) is not None
                client[1].close()

    in_loop(check)
