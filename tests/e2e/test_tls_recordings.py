"""One run, seen twice: by the recorder inside the server, and encrypted on the wire.

The recorder keeps the secrets of its TLS sessions (`SecretLog`), with which the encrypted capture
is opened. Both give the same tables, times and offsets aside.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.analysis.recorded_conversation import Found, analyse
from tests.analysis.tls.test_tables import without_times

import polymux
from polymux import OmnistreamsSession, Session
from polymux.analysis.options import AnalysisOptions
from polymux.capture import PcapngWriter, read_sessions
from polymux.record import Recorder, RecordingProxy
from polymux.record.secret_log import SecretLog
from polymux.record.tls_contexts import client_context, server_context

MESSAGES = [b"one", bytes(70_000), b"x" * 126, b"last"]


async def echo(session: Session) -> None:
    async def answer(stream: Any) -> None:
        async for chunk in stream:
            if not isinstance(session, OmnistreamsSession):
                await stream.send(chunk)
        if not isinstance(session, OmnistreamsSession):
            await stream.end()

    async with asyncio.TaskGroup() as tasks:
        async for stream in session.incoming:
            if hasattr(stream, "accept"):
                await stream.accept()
            tasks.create_task(answer(stream))


async def converse(url: str, protocol: str, tls: Any) -> None:
    async with polymux.connect(url, protocol=protocol, tls=tls) as session:
        for number in range(2):
            stream: Any = await session.open(f"stream {number}")
            for message in MESSAGES:
                await stream.send(message)
            await stream.end()
            if not isinstance(session, OmnistreamsSession):
                assert await stream.receive_all() == b"".join(MESSAGES)


async def recorded_twice(protocol: str, scheme: str, folder: Path) -> None:
    """Write `inside.pcapng`, with secrets, and `wire.pcapng`."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    cert = folder / "cert.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(cert)
    cert.chmod(0o600)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    own = server_context(cert)
    secrets = SecretLog(own)
    path = "/omnistreams" if scheme == "wss" else ""
    with (
        PcapngWriter(folder / "inside.pcapng") as inside,
        PcapngWriter(folder / "wire.pcapng") as wire,
    ):
        async with await polymux.serve(
            echo, f"{scheme}://127.0.0.1:0{path}", protocol=protocol, tls=own,
            recorder=Recorder(inside, secrets=secrets),
        ) as server:  # fmt: skip
            upstream = f"tcp://127.0.0.1:{server.port}"
            async with RecordingProxy("tcp://127.0.0.1:0", upstream, wire) as tap:
                url = f"{scheme}://localhost:{tap.address.port}{path}"
                await converse(url, protocol, client_context(folder / "ca.pem"))
                async with asyncio.timeout(60):
                    while tap.stats.open:
                        await asyncio.sleep(0.01)
    secrets.close()


@pytest.mark.parametrize(
    ("protocol", "scheme"), [("mplex", "tls"), ("nerdbank", "tls"), ("omnistreams", "wss")]
)
def test_the_wire_and_the_recorder_give_the_same_tables(
    protocol: str, scheme: str, tmp_path: Path
) -> None:
    asyncio.run(recorded_twice(protocol, scheme, tmp_path))
    with read_sessions([str(tmp_path / "inside.pcapng")]) as reading:
        plan = AnalysisOptions().with_secrets(reading.secrets).with_content()
    inside: Found = analyse(str(tmp_path / "inside.pcapng"), plan=plan)
    wire: Found = analyse(str(tmp_path / "wire.pcapng"), plan=plan)
    assert inside.session.tls is None
    assert (wire.session.tls or "").startswith("1.3 ")
    assert wire.session.server_name == "localhost"
    assert wire.session.balanced
    assert wire.session.protocol == inside.session.protocol == protocol
    assert wire.session.tls_unopened == 0
    for table in ("streams", "content", "frames"):
        for side in ("dialer", "acceptor"):
            rows = [
                [row for row in without_times(found.rows(table)) if row.get("sender", side) == side]
                for found in (inside, wire)
            ]
            assert rows[0] == rows[1], table
    for name in ("frames", "streams", "payload_bytes_dialer", "payload_bytes_acceptor"):
        assert getattr(inside.session, name) == getattr(wire.session, name)
    assert wire.session.violations == inside.session.violations == 0


def test_a_proxy_keeps_the_secrets_of_both_its_ends_before_the_data(tmp_path: Path) -> None:
    async def run() -> None:
        authority = trustme.CA()
        cert = tmp_path / "cert.pem"
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(cert)
        cert.chmod(0o600)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        own, theirs = server_context(cert), client_context(tmp_path / "ca.pem")
        secrets = SecretLog(own, theirs)
        async with await polymux.serve(
            echo, "tls://127.0.0.1:0", protocol="mplex", tls=server_context(cert)
        ) as server:
            with PcapngWriter(tmp_path / "inside.pcapng") as sink:
                async with RecordingProxy(
                    "tls://127.0.0.1:0", f"tls://localhost:{server.port}", sink, tls=own,
                    upstream_tls=theirs, secrets=secrets,
                ) as proxy:  # fmt: skip
                    url = f"tls://localhost:{proxy.address.port}"
                    await converse(url, "mplex", client_context(tmp_path / "ca.pem"))
        secrets.close()

    asyncio.run(run())
    with read_sessions([str(tmp_path / "inside.pcapng")]) as reading:
        text = b"".join(reading.secrets)
    assert len({line.split()[1] for line in text.splitlines()}) == 2  # both TLS sessions
    data = (tmp_path / "inside.pcapng").read_bytes()
    assert 0 < data.index(text[:40]) < data.index(b"stream 0")
