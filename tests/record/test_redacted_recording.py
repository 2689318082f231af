"""`record --payload`: what is recorded of content, and that the frames stay decodable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.record.captured_bytes import talks
from tests.record.record_process import Child, polymux

import polymux as library
from polymux.capture import read_sessions
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.core.observer import Observer
from polymux.core.redaction import Redaction
from polymux.protocols.registry import create
from polymux.record.proxy import RecordingProxy

SECRET = b"the-planted-secret-" * 300


async def echo(session: library.Session) -> None:
    async for stream in session.incoming:
        async with stream:
            async for chunk in stream:
                await stream.send(chunk)


def decoded(protocol: str, path: Path) -> tuple[int, list[bytes], list[object]]:
    """Bytes of the dialer's content, names of streams, and findings of the one session."""
    observer = Observer(create(protocol))
    with read_sessions([str(path)]) as reading:
        (session,) = list(reading)
        for piece in session.pieces():
            if piece.data:
                observer.feed(piece.side, piece.data, piece.timestamp)
    observer.finish(session.ended_at, False, False)
    assert observer.rows is not None
    streams = [*observer.protocol.streams.removed, *observer.protocol.streams.all()]
    content = sum(int(stream.dialer.content_bytes) for stream in streams)
    findings = [v for v in observer.take_violations() if v.rule.severity.value != "note"]
    return content, [stream.name or b"" for stream in streams], [*findings]


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank"])
async def test_a_recording_without_content_has_the_frames(protocol: str, tmp_path: Path) -> None:
    out = tmp_path / "talk.pcapng"
    async with await library.serve(echo, "tcp://127.0.0.1:0", protocol=protocol) as server:
        options = ("--protocol", protocol, "--payload", "none")
        async with Child("tcp://127.0.0.1:0", server.url, "-o", str(out), *options) as child:
            async with library.connect(child.url, protocol=protocol) as session:
                stream = await session.open("a-planted-name")
                await stream.send(SECRET)
                got = b""
                async with asyncio.timeout(60):
                    while len(got) < len(SECRET):
                        got += await stream.receive()
                await stream.end()
            assert got == SECRET
            await child.stop()
    data = out.read_bytes()
    assert b"planted" not in data
    assert b"sensor=" not in data
    assert b"redacted by polymux: payload none, names hashed" in data
    (talk,) = talks(out)
    assert talk.protocol == protocol
    content, names, violations = decoded(protocol, out)
    assert content == len(SECRET)
    assert [len(name) for name in names] == [14]
    assert not violations


async def test_a_client_that_speaks_another_protocol_leaves_no_text_as_a_name(
    tmp_path: Path,
) -> None:
    out = tmp_path / "talk.pcapng"
    request = b"POST /login HTTP/1.1\r\nCookie: a-planted-cookie\r\n" + b"planted: header\r\n" * 20

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(request))
        writer.write(request)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    upstream = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = ("--protocol", "mplex", "--payload", "none")
    async with server, Child("tcp://127.0.0.1:0", upstream, "-o", str(out), *options) as child:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(child.url.split(":")[-1]))
        writer.write(request)
        async with asyncio.timeout(60):
            assert await reader.read() == request
        writer.close()
        await child.stop()
    data = out.read_bytes()
    for word in (b"planted", b"ookie", b"HTTP", b"login", b"header"):
        assert word not in data


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--payload", "none"), "name the protocol"),
        (("--payload", "some"), "none of full"),
        (("--payload", "hash", "--protocol", "mplex:preamble=multistream"), "polymux redact"),
        (("--payload", "none", "--protocol", "mplex", "--keep-secrets"), "not with --payload"),
        (("--payload", "none", "--protocol", "mplex", "--sensor", "x"), "not with --payload"),
    ],
)
async def test_a_redaction_that_is_not_possible_is_refused(
    options: tuple[str, ...], word: str, tmp_path: Path
) -> None:
    between = ("tcp://127.0.0.1:0", "tcp://127.0.0.1:9")
    code, _, said = await polymux("record", *between, "-o", str(tmp_path / "x"), *options)
    assert code == 2
    assert word in said


def test_a_recording_without_content_does_not_name_the_path_of_a_profile(tmp_path: Path) -> None:
    protocol = "minmux:profile=/home/inner-host/profile.toml"
    with PcapngWriter(str(tmp_path / "x.pcapng")) as writer:
        ends = ("tcp://127.0.0.1:0", "tcp://127.0.0.1:9")
        whole = RecordingProxy(*ends, writer, protocol=protocol)
        redaction = Redaction("none", bytes(32))
        redacted = RecordingProxy(*ends, writer, protocol=protocol, redaction=redaction)
    assert "inner-host" in whole.comment
    assert redacted.comment == "polymux: vantage=middle"
