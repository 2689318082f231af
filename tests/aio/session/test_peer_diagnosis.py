"""A peer of another version or without a protocol: the error quotes its first bytes."""

from __future__ import annotations

import asyncio
import time

import pytest

import polymux
from polymux.live.session.peer_diagnosis import nerdbank_version


async def errors_of(server: int, client: int, both: bool = True) -> tuple[str, str]:
    """Return the errors of server and client when their versions differ.

    Without `both` only the client's: a server has no session before a handshake.
    """
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def take(session: polymux.Session) -> None:
        await session.wait_closed()
        if not heard.done():
            heard.set_result(str(session.failure))

    there = f"nerdbank:version={server}"
    async with await polymux.serve(take, "tcp://127.0.0.1:0", protocol=there) as listening:
        said = ""
        try:
            here = f"nerdbank:version={client}"
            async with polymux.connect(listening.url, protocol=here) as session:
                await session.open("x")
        except polymux.PolymuxError as problem:
            said = str(problem)
        return await heard if both else "", said


@pytest.mark.parametrize(("server", "client"), [(1, 2), (1, 3), (2, 1), (2, 3)])
async def test_a_clients_error_names_the_servers_version_and_the_option(
    server: int, client: int
) -> None:
    _, said = await errors_of(server, client, both=False)
    assert f"the peer speaks Nerdbank version {server}: write nerdbank:version={server}" in said


@pytest.mark.parametrize("client", [1, 2])
async def test_a_servers_error_names_the_clients_version(client: int) -> None:
    heard, said = await errors_of(3, client)
    assert f"the peer speaks Nerdbank version {client}" in heard
    assert "closed the connection before its handshake; Nerdbank version 3 has none" in said


async def test_a_server_that_stays_silent_may_speak_version_3() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(polymux.Unreachable) as told:
            await polymux.connect(
                f"tcp://127.0.0.1:{port}", protocol="nerdbank:version=1", timeout=0.2
            )
    assert "no handshake within 0.2 s; Nerdbank version 3 has none" in str(told.value)
    assert "nerdbank:version=3" in str(told.value)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 'began with text: "HTTP/1.1 400 Bad Request\\r\\n'),
        (b"\x00\x01\x02\x03" * 10, "began with the bytes 00 01 02 03 00 01"),
        (b"\x94\x00\x01\x01\xc4" + bytes(20), "the peer speaks Nerdbank version 3"),
        (b"\x92\x92\x04\x00\xc4\x10" + bytes(16), "Nerdbank version 4: it is not known"),
    ],
)
async def test_the_first_bytes_of_another_protocol_are_shown(sent: bytes, said: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(polymux.PolymuxError) as told:
            await polymux.connect(f"tcp://127.0.0.1:{port}", protocol="nerdbank:version=1")
    assert said in str(told.value)


async def test_what_a_child_prints_instead_of_frames_is_shown_escaped() -> None:
    session = await polymux.connect("exec:echo usage:\\ foo", protocol="mplex")
    stream = await session.open("x")
    with pytest.raises(polymux.PolymuxError) as told:
        await stream.receive()
    await session.wait_closed()
    assert 'the peer began with text: "usage: foo\\n"' in str(told.value)


async def test_what_a_child_printed_is_read_though_it_exited_without_reading() -> None:
    session = await polymux.connect("exec:echo usage:\\ foo", protocol="mplex")
    assert session.transport is not None
    session.transport.pause_reading()
    time.sleep(0.3)  # the child exits, and the loop does not notice before it writes
    stream = await session.open("x")
    await asyncio.sleep(0.2)
    session.transport.resume_reading()
    with pytest.raises(polymux.PolymuxError, match="the peer began with text"):
        await stream.receive()
    await session.wait_closed()


async def test_a_violation_after_valid_frames_does_not_quote_the_first_bytes() -> None:
    async def break_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01a")  # NewStream
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"\x0f\x00")  # no such flag
        await reader.read()
        writer.close()

    async with await asyncio.start_server(break_late, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        session = await polymux.connect(f"tcp://127.0.0.1:{port}", protocol="mplex")
        await session.wait_closed()
    assert "mplex.bad-flag" in str(session.failure)
    assert "began with" not in str(session.failure)


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (b"\x2f\xdf\x1d\x50" + bytes(16), 1),
        (b"\x92\x92\x02\x00\xc4\x10", 2),
        (b"\x93\x03\x01\x01", 3),
        (b"\x94\x00\x01\x01", 3),
        (b"", 0),
        (b"\x92", 0),
        (b"GET / HTTP/1.1", 0),
    ],
)
def test_versions_are_detected_by_their_first_bytes(data: bytes, version: int) -> None:
    assert nerdbank_version(data) == version


async def test_a_server_warns_of_peers_of_another_version_but_not_of_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def never(session: polymux.Session) -> None:
        raise AssertionError("the handshake cannot have been done")

    caplog.set_level("INFO", "polymux.aio")
    async with polymux.serve(never, "tcp://127.0.0.1:0", protocol="nerdbank:version=2") as server:
        for _ in range(5):
            with pytest.raises(polymux.PolymuxError):
                await polymux.connect(server.url, protocol="nerdbank:version=1")
        async with asyncio.timeout(30):
            while server.sessions:
                await asyncio.sleep(0.01)
    lines = [each for each in caplog.records if "before it was handled" in each.getMessage()]
    assert [each.levelname for each in lines] == ["WARNING", "INFO", "INFO", "INFO", "INFO"]
    assert "the peer speaks Nerdbank version 1" in lines[0].getMessage()
