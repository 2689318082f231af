"""Data sent over TLS is recorded; the keys of TLS are not (S10)."""

from __future__ import annotations

import asyncio
import logging
import struct
from pathlib import Path

import pytest
from tests.attacks.test_tls import server_context, trusting

import polymux
from polymux import Session
from polymux.capture import PcapngWriter
from polymux.record import Recorder

SECRETS_BLOCK = 0x0000000A  # of pcapng: keys beside the packets
LABELS = (b"CLIENT_RANDOM", b"TRAFFIC_SECRET", b"EXPORTER_SECRET", b"PRIVATE KEY")


def block_types(data: bytes) -> list[int]:
    found = []
    pos = 0
    while pos < len(data):
        kind, length = struct.unpack_from("<II", data, pos)
        found.append(kind)
        pos += length
    return found


def test_a_recording_of_tls_holds_the_words_and_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys.log"
    monkeypatch.setenv("SSLKEYLOGFILE", str(keys))
    caplog.set_level(logging.DEBUG)
    client = trusting()
    client.keylog_filename = str(keys)
    capture = tmp_path / "talk.pcapng"

    async def handle(session: Session) -> None:
        async for stream in session.incoming:
            async with stream:
                await stream.send(await stream.receive_all())

    async def run() -> None:
        server = await polymux.serve(handle, "tls://127.0.0.1:0", protocol="mplex",
                                     tls=server_context())  # fmt: skip
        with PcapngWriter(str(capture)) as sink:
            async with polymux.connect(server.url, protocol="mplex", tls=client,
                                       recorder=Recorder(sink)) as session:  # fmt: skip
                async with await session.open("x") as stream:
                    await stream.send(b"words for the record")
                    await stream.end()
                    assert await stream.receive_all() == b"words for the record"
        await server.close()

    asyncio.run(run())
    data = capture.read_bytes()
    assert b"words for the record" in data
    assert SECRETS_BLOCK not in block_types(data)
    logged = caplog.text.encode()
    written = keys.read_bytes()  # by OpenSSL, where the user asked for it
    assert b"TRAFFIC_SECRET" in written
    secrets = [line.split()[-1] for line in written.splitlines() if line and line[:1] != b"#"]
    for secret in (*LABELS, *secrets):
        assert secret not in data
        assert secret not in logged
    for secret in secrets:
        assert bytes.fromhex(secret.decode()) not in data
    print(f"S10: {len(secrets)} keys of one session, none in the capture or the log")
