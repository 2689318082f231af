"""The audit log: an event on a line, bounded in size and rate, and never in the way."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.aio.session_helpers import echo, exchange
from tests.record.certificate_authority import Authority
from tests.record.collector.test_collector import until

import polymux
from polymux.capture import PcapngWriter
from polymux.core.errors import UnwritableOutput
from polymux.record import AuditLog, RecordingProxy
from polymux.record.audit_log import MAX_BURST_EVENTS
from polymux.record.tls_contexts import client_context, server_context


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_server_writes_connections_violations_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        async with polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol="mplex", meter=audit
        ) as server:
            async with polymux.connect(server.url, protocol="mplex") as session:
                assert await exchange(session, "x", b"hello") == b"hello"
                # A message on a stream that was never opened.
                assert session.transport is not None
                session.transport.write(bytes.fromhex("ba 01 01 61"))
                assert await exchange(session, "y", b"hello") == b"hello"
    connected, violation, disconnected = events(path)
    assert (connected["event"], connected["protocol"]) == ("connected", "mplex")
    assert connected["peer"].startswith("127.0.0.1:")
    assert violation["event"] == "violation"
    assert violation["rule"].startswith("mplex.")
    assert disconnected["event"] == "disconnected"
    assert disconnected["bytes_received"] > 10
    assert disconnected["bytes_sent"] > 10
    assert {event["connection"] for event in events(path)} == {1}
    assert path.stat().st_mode & 0o777 == 0o600


async def test_refused_clients_are_written_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        async with polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol="mplex", meter=audit, allow=["192.0.2.0/24"]
        ) as server:
            session = await polymux.connect(server.url, protocol="mplex")
            await session.wait_closed()
    (refused,) = [event for event in events(path) if event["event"] == "refused"]
    assert refused["peer"].startswith("127.0.0.1:")
    assert "not on the list of allowed clients" in refused["reason"]


async def test_a_client_without_a_certificate_is_written_and_warned_about(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    asks = server_context(authority.cert, authority.key, authority.ca)
    with AuditLog(path) as audit, PcapngWriter(str(tmp_path / "x.pcapng"), sync="none") as sink:
        proxy = RecordingProxy(
            "tls://127.0.0.1:0", "tcp://127.0.0.1:9", sink, tls=asks, audit=audit
        )
        async with proxy:
            for _ in range(2):
                with suppress(OSError):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", proxy.address.port, ssl=client_context(authority.ca),
                        server_hostname="localhost",
                    )  # fmt: skip
                    await reader.read()
                    writer.close()
            await until(lambda: proxy.stats.refused == 2)
    refused = events(path)
    assert [event["event"] for event in refused] == ["refused", "refused"]
    assert refused[0]["peer"].startswith("127.0.0.1:")
    assert "certificate" in refused[0]["reason"]
    (warning,) = [record for record in caplog.records if "certificate" in record.getMessage()]
    assert warning.levelname == "WARNING"


async def test_a_recording_proxy_writes_what_it_forwarded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit, PcapngWriter(str(tmp_path / "x.pcapng"), sync="none") as sink:
        async with polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
            async with RecordingProxy("tcp://127.0.0.1:0", server.url, sink, audit=audit) as proxy:
                async with polymux.connect(proxy.url, protocol="mplex") as session:
                    assert await exchange(session, "x", b"hello") == b"hello"
                await until(lambda: proxy.stats.open == 0)
    connected, disconnected = events(path)
    assert connected["event"] == "connected"
    assert (disconnected["bytes_dialer"], disconnected["bytes_acceptor"]) == (
        proxy.stats.bytes_dialer,
        proxy.stats.bytes_acceptor,
    )


def test_a_flood_of_events_is_counted_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    burst = int(MAX_BURST_EVENTS)
    with AuditLog(path, rate=0.0) as audit:
        for number in range(burst + 500):
            audit.refused(f"192.0.2.1:{number}", "not on the list")
        assert audit.suppressed == 500
    written = events(path)
    assert len(written) == burst + 1
    assert (written[-1]["event"], written[-1]["count"]) == ("suppressed", 500)


def test_a_flood_of_refusals_hides_no_connection(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, rate=0.0, burst=3) as audit:
        for number in range(50):
            audit.refused(f"192.0.2.1:{number}", "not on the list")
            audit.limit_hit("mplex", "max_sessions")
        audit.write("connected", peer="198.51.100.1:1")
        audit.write("disconnected", peer="198.51.100.1:1")
    names = [event["event"] for event in events(path)]
    assert names == ["refused", "limit", "refused", "suppressed", "connected", "disconnected"]
    assert events(path)[3]["count"] == 97


def test_the_file_is_bounded_and_one_older_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, max_bytes=2000) as audit:
        for number in range(100):
            audit.refused(f"192.0.2.1:{number}", "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    assert all(entry.stat().st_size <= 2000 for entry in tmp_path.iterdir())
    assert events(path)[-1]["peer"] == "192.0.2.1:99"


def test_hostile_texts_are_escaped_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        audit.refused("peer", "\x1b[31m\n" + "x" * 10_000)
    (event,) = events(path)
    assert event["reason"].startswith("\\u001b[31m\\u000a")
    assert len(event["reason"]) <= 501


def test_a_disk_that_fails_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        for _ in range(3):
            audit.refused("peer", "reason")
    assert audit.suppressed == 3
    assert caplog.text.count("events are missing") == 1
    audit.refused("peer", "reason")
    audit.close()
    assert [event["event"] for event in events(tmp_path / "audit.jsonl")] == [
        "suppressed",
        "refused",
    ]


def test_a_line_that_the_disk_takes_in_part_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    write = os.write
    with AuditLog(path) as audit:
        audit.refused("first", "x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
            audit.refused("second", "x")
        assert audit.suppressed == 1
        audit.refused("third", "x")
    assert [event.get("peer", event["event"]) for event in events(path)] == [
        "first",
        "suppressed",
        "third",
    ]


def test_a_link_or_a_folder_is_no_audit_log(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("link", ".", "missing/audit"):
        with pytest.raises(UnwritableOutput, match="cannot be written"):
            AuditLog(tmp_path / name)


def test_a_rotation_that_fails_leaves_the_descriptors_of_others_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    (tmp_path / "audit.jsonl.1" / "taken").mkdir(parents=True)  # no file can have this name
    with AuditLog(path, max_bytes=300) as audit:
        for number in range(3):
            audit.refused(f"192.0.2.1:{number}", "x" * 100)
        assert audit.suppressed > 0
        reader, writer = os.pipe()  # takes a descriptor that was closed, if one was
        for number in range(3):
            audit.refused(f"192.0.2.1:{number}", "x" * 100)
        os.write(writer, b"still open")
        assert os.read(reader, 100) == b"still open"
        os.close(reader)
        os.close(writer)
