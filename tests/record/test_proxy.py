"""The recording proxy between two real peers: the file has exactly what passed."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest
from tests.record.collector.test_collector import until

import polymux
from polymux.capture import read_sessions
from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.record import RecordingProxy


async def echo(session: polymux.Session) -> None:
    async for stream in session.incoming:
        async with stream:
            async for chunk in stream:
                await stream.send(chunk)


def recorded(paths: list[str]) -> list[tuple[str, list[bytes]]]:
    """(protocol comment, bytes of both directions) of every session in these files."""
    found = []
    with read_sessions(paths) as reading:
        for session in reading:
            chunks = [b"", b""]
            for piece in session.pieces():
                assert not piece.is_gap, "a gap in our own recording"
                chunks[piece.side] += piece.data
            found.append((session.protocol_hint or "", chunks))
    return found


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=2"])
async def test_a_proxied_session_works_and_is_in_the_file(protocol: str, tmp_path: Path) -> None:
    path = str(tmp_path / "tap.pcapng")
    data = random.Random(1).randbytes(300_000)
    with PcapngWriter(path) as sink:
        async with (
            await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=protocol) as server,
            RecordingProxy("tcp://127.0.0.1:0", server.url, sink, protocol=protocol) as tap,
        ):
            async with polymux.connect(tap.url, protocol=protocol) as session:
                stream = await session.open("through the tap")
                sending = asyncio.create_task(stream.send(data))
                got = b""
                while len(got) < len(data):
                    got += await stream.receive()
                await sending
                await stream.end()
            assert got == data
            await asyncio.sleep(0.1)
            counts = tap.stats
    ((hint, chunks),) = recorded([path])
    assert hint == protocol
    assert [len(chunks[0]), len(chunks[1])] == [counts.bytes_dialer, counts.bytes_acceptor]
    assert data[:1000] in chunks[0]


async def test_a_refused_upstream_is_counted_and_logged(tmp_path: Path) -> None:
    gone = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
    await gone.close()
    with PcapngWriter(str(tmp_path / "x.pcapng")) as sink:
        async with RecordingProxy("tcp://127.0.0.1:0", gone.url, sink) as tap:
            reader, writer = await asyncio.open_connection("127.0.0.1", tap.address.port)
            assert await reader.read() == b""
            writer.close()
    assert tap.stats.refused == 1
    assert "tcp://127.0.0.1" in tap.failure


async def test_what_is_refused_is_warned_about_by_its_cause_and_not_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
    await gone.close()

    async def dial(proxy: RecordingProxy, host: str, times: int) -> None:
        for _ in range(times):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", proxy.address.port, local_addr=(host, 0)
            )
            with suppress(OSError):
                await reader.read()
            writer.close()

    with PcapngWriter(str(tmp_path / "x.pcapng")) as sink:
        async with RecordingProxy(
            "tcp://127.0.0.1:0", gone.url, sink, allow=["127.0.0.1"]
        ) as proxy:
            await dial(proxy, "127.0.0.1", 3)
            await dial(proxy, "127.0.0.2", 3)
    assert proxy.stats.refused == 6
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    upstream, dialer = (text for text in warned if "open to all" not in text)
    assert upstream.startswith("not forwarded: tcp://127.0.0.1")
    assert "127.0.0.2" in dialer
    assert "refused: " in dialer


async def test_keepalive_probes_run_on_both_connections(tmp_path: Path) -> None:
    def probed(end: int, port: int) -> bool:
        """Whether an established connection with this port at one end (1: own, 2: far) has a
        keepalive timer, which Linux calls 2."""
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(
            row[3] == "01" and row[end].endswith(f":{port:04X}") and row[5].startswith("02:")
            for row in rows
        )

    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with PcapngWriter(str(tmp_path / "x.pcapng"), sync="none") as sink:
        async with RecordingProxy("tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}", sink) as proxy:
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.address.port)
            await until(lambda: probed(1, proxy.address.port) and probed(2, port))
            assert not probed(2, proxy.address.port), "the dialer has none"
            writer.close()
    server.close()
    for writer in accepted:
        writer.close()
        await writer.wait_closed()


async def test_half_close_passes_through_the_proxy(tmp_path: Path) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read()
        writer.write(b"answer to " + question)
        writer.close()

    server = await asyncio.start_server(late, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = str(tmp_path / "half.pcapng")
    with PcapngWriter(path) as sink:
        async with RecordingProxy("tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}", sink) as tap:
            reader, writer = await asyncio.open_connection("127.0.0.1", tap.address.port)
            writer.write(b"question")
            writer.write_eof()
            assert await reader.read() == b"answer to question"
            writer.close()
            await asyncio.sleep(0.05)
    server.close()
    ((_, chunks),) = recorded([path])
    assert chunks == [b"question", b"answer to question"]


async def test_a_session_spans_rotated_files(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(200_000)

    async def sink_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(sink_all, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    writer_of_files = RotatingWriter(str(tmp_path / "r.pcapng"), max_bytes=50_000)
    async with RecordingProxy(
        "tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}", writer_of_files
    ) as tap:
        reader, writer = await asyncio.open_connection("127.0.0.1", tap.address.port)
        for start in range(0, len(data), 5000):
            writer.write(data[start : start + 5000])
            await asyncio.sleep(0.001)
        writer.write_eof()
        await reader.read()
        writer.close()
        await asyncio.sleep(0.05)
    server.close()
    files = writer_of_files.close()
    assert len(files) > 2
    ((_, chunks),) = recorded(files)
    assert chunks[0] == data
