"""Sessions over real transports, with our own peer at both ends."""

import asyncio
import hashlib
import ssl
import sys
from pathlib import Path

import pytest
import trustme

import polymux

PROTOCOLS = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3"]


async def echo(session: polymux.Session) -> None:
    async def answer(stream: polymux.Stream) -> None:
        async with stream:
            async for chunk in stream:
                await stream.send(chunk)

    async with asyncio.TaskGroup() as tasks:
        async for stream in session.incoming:
            tasks.create_task(answer(stream))


async def exchange(session: polymux.Session, name: str, data: bytes) -> bytes:
    stream = await session.open(name)
    async with asyncio.TaskGroup() as tasks:
        reply = tasks.create_task(stream.receive_all())
        for start in range(0, len(data), 50_000):
            await stream.send(data[start : start + 50_000])
        await stream.end()
    return reply.result()


async def echoes(url: str, protocol: str, **options: object) -> None:
    data = bytes(range(256)) * 4096
    async with polymux.connect(url, protocol=protocol, **options) as session:  # type: ignore[arg-type]
        names = ["", "ascii", "grüße ✓", *map(str, range(7))]
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(exchange(session, name, data)) for name in names]
        for job in jobs:
            assert hashlib.sha256(job.result()).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_ten_streams_echo_a_mebibyte_over_tcp(protocol: str) -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=protocol) as server:
        await echoes(server.url, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_ten_streams_echo_a_mebibyte_over_a_unix_socket(
    protocol: str, tmp_path: Path
) -> None:
    url = f"unix://{tmp_path}/s"
    async with await polymux.serve(echo, url, protocol=protocol):
        await echoes(url, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_ten_streams_echo_a_mebibyte_in_memory(protocol: str) -> None:
    near, far = await polymux.pipe(protocol)
    serving = asyncio.create_task(echo(far))
    data = b"x" * 300_000
    assert await exchange(near, "n", data) == data
    await near.close()
    await serving


async def test_tls_verifies_the_peer() -> None:
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)
    async with await polymux.serve(
        echo, "tls://127.0.0.1:0", protocol="mplex", tls=server_tls
    ) as server:
        await echoes(server.url, "mplex", tls=client_tls, server_hostname="localhost")
        with pytest.raises(polymux.Unreachable, match="certificate is not trusted"):
            await polymux.connect(server.url, protocol="mplex", server_hostname="localhost")
        with pytest.raises(polymux.Unreachable, match="certificate is not trusted"):
            await polymux.connect(
                server.url, protocol="mplex", tls=client_tls, server_hostname="other.example"
            )


CHILD = """
import asyncio, polymux, sys
sys.path.insert(0, {tests!r})
from test_sessions import echo
async def main():
    server = await polymux.serve(echo, "stdio:", protocol="nerdbank")
    await server.wait_closed()
asyncio.run(main())
"""


async def test_a_child_process_is_a_peer_over_its_standard_streams(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(tests=str(Path(__file__).parent)))
    data = b"over pipes " * 20_000
    async with polymux.connect(f"exec:{sys.executable} {script}", protocol="nerdbank") as session:
        assert await exchange(session, "pipes", data) == data


async def test_nobody_listens_is_one_clear_line() -> None:
    server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
    url = server.url
    await server.close()
    with pytest.raises(polymux.Unreachable, match="nobody listens there"):
        await polymux.connect(url, protocol="mplex")


async def test_half_close_and_a_late_answer() -> None:
    near, far = await polymux.pipe("mplex")
    stream = await near.open("q")
    await stream.send(b"question")
    await stream.end()
    other = await far.accept()
    assert await other.receive_all() == b"question"
    await other.send(b"answer")
    await other.end()
    assert await stream.receive_all() == b"answer"
    with pytest.raises(polymux.StreamEnded):
        stream.send_nowait(b"more")
    await near.close()


async def test_a_reset_is_an_error_and_not_the_end_of_data() -> None:
    near, far = await polymux.pipe("mplex")
    stream = await near.open("q")
    await stream.send(b"x")
    other = await far.accept()
    other.abort()
    with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
        await stream.receive_all()
    with pytest.raises(polymux.StreamAborted):
        await stream.send(b"x")
    await near.close()


async def test_garbage_ends_that_session_only() -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as good:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\xff" * 40)
            assert await reader.read() == b""
            writer.close()
            assert await exchange(good, "still", b"here") == b"here"


async def test_an_oversized_length_is_refused_before_its_body() -> None:
    problems: list[str] = []

    async def watch(session: polymux.Session) -> None:
        await session.wait_closed()
        problems.append(str(session.failure))

    async with await polymux.serve(watch, "tcp://127.0.0.1:0", protocol="mplex") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(bytes.fromhex("0800 0a 808080808020"))
        assert await reader.read() == b""
        writer.close()
        await asyncio.sleep(0.05)
    assert "mplex.frame-too-long" in problems[0]


async def test_asyncio_streams_read_lines_over_a_polymux_stream() -> None:
    near, far = await polymux.pipe("nerdbank")
    serving = asyncio.create_task(echo(far))
    stream = await near.open("lines")
    reader, writer = polymux.as_asyncio_streams(stream)
    writer.write(b"one\ntwo\n")
    await writer.drain()
    writer.write_eof()
    assert await reader.readline() == b"one\n"
    assert await reader.readline() == b"two\n"
    assert await reader.read() == b""
    writer.close()
    await near.close()
    await serving
