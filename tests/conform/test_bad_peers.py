"""Hostile and dead peers: a clear verdict within the time limit, and bounded memory."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc

import pytest
from tests.conform.peers import bad_peer

from polymux import Unreachable
from polymux.conform import opening
from polymux.conform.connection import MAX_RECEIVED, PeerConnection
from polymux.conform.runner import PeerTester
from polymux.core.conformance import Verdict
from polymux.testing import conform

ECHO_CASES = ["MPLEX-CLOSE-3", "MPLEX-HDR-2"]


def test_a_refused_connection_is_an_error_within_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}: nothing listens there"):
        conform.run(f"tcp://127.0.0.1:{port}", "mplex", level=1, timeout=0.3)


def test_the_reason_of_an_attempt_is_told_if_the_last_one_runs_out_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = []

    async def attempt(dialer: opening.Dialer, make: opening.MakeConnection) -> PeerConnection:
        attempts.append(make)
        if len(attempts) > 1:
            await asyncio.Event().wait()
        raise ConnectionRefusedError

    monkeypatch.setattr(opening.Dialer, "_attempt", attempt)
    with pytest.raises(Unreachable, match="nothing listens there"):
        conform.run("tcp://127.0.0.1:9", "mplex", level=1, timeout=0.3)


def test_as_acceptor_a_client_that_never_comes_is_an_error() -> None:
    with pytest.raises(Unreachable, match=r"did not connect in 0\.2 s"):
        conform.run("tcp://127.0.0.1:0", "mplex", role="acceptor", timeout=0.2)


def test_a_silent_peer_does_not_echo_and_nothing_is_claimed_about_it() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def examine() -> conform.Results:
        async with bad_peer(silent) as url:
            return await conform.run_async(url, "mplex", ECHO_CASES, level=1, timeout=0.2)

    results = asyncio.run(examine())
    assert results.note == "the peer did not echo a stream"
    assert results.verdict("MPLEX-CLOSE-3") is Verdict.UNIMPLEMENTED
    assert results.verdict("MPLEX-HDR-2") is Verdict.INFORMATIONAL


@pytest.mark.parametrize(
    ("protocol", "chunk"),
    [("mplex", b"\xff" * 65536), ("yamux", b"\xff" * 65536), ("nerdbank", b"\xc1" * 65536)],
)
def test_endless_garbage_fails_at_once(protocol: str, chunk: bytes) -> None:
    results, peak = examine_sender(protocol, chunk)
    assert [result.verdict for result in results.cases] == [Verdict.FAILED]
    assert "cannot be decoded" in results.note
    assert peak < 4 * MAX_RECEIVED


def test_a_flood_of_valid_frames_fails_and_memory_is_bounded() -> None:
    frame = b"\x08\x00" + (b"\x0a\x80\x80\x04" + bytes(65536)) * 8
    results, peak = examine_sender("mplex", frame)
    assert [result.verdict for result in results.cases] == [Verdict.FAILED]
    assert "unasked" in results.note
    assert peak < 8 * MAX_RECEIVED


def examine_sender(protocol: str, chunk: bytes) -> tuple[conform.Results, int]:
    """Examine a peer that sends this chunk again and again; with the peak of memory."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(chunk)
            await writer.drain()

    async def examine() -> conform.Results:
        async with bad_peer(send) as url:
            names = {"mplex": "MPLEX-CLOSE-3", "yamux": "YAMUX-PING-1", "nerdbank": "NB-HS-7"}
            return await conform.run_async(url, protocol, [names[protocol]], timeout=60.0, level=1)

    tracemalloc.start()
    try:
        return asyncio.run(examine()), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_peer_that_serves_one_connection_is_not_blamed() -> None:
    served = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(1)
        if len(served) > 1:
            await asyncio.Event().wait()
        # NewStream and MessageInitiator come, MessageReceiver with the same content goes back.
        data = await reader.readuntil(b"still there? 0")
        at = data.index(b"still there?")
        head = data[: at - 1].rpartition(b"echo")[2]
        writer.write(bytes([head[0] - 1]) + head[1:] + data[at - 1 :])
        await writer.drain()
        await reader.read()

    async def examine() -> conform.Results:
        async with bad_peer(once) as url:
            return await conform.run_async(url, "mplex", ["MPLEX-HDR-2"], level=1, timeout=2.0)

    results = asyncio.run(examine())
    assert "serves no second connection" in results.note
    assert {result.verdict for result in results.cases} == {Verdict.UNIMPLEMENTED}


def test_a_peer_that_dies_is_blamed_for_the_case_that_killed_it() -> None:
    async def examine() -> conform.Results:
        async with await conform.serve_testee("tcp://127.0.0.1:0", "mplex") as server:
            tester = PeerTester(server.url, "mplex", ["MPLEX-HDR-2", "MPLEX-HDR-3"], timeout=3.0)

            def close_server(result: conform.CaseResult) -> None:
                if server.listener is not None:
                    server.listener.close()

            tester.on_result = close_server
            return await tester.run()

    results = asyncio.run(examine())
    assert results.verdict("MPLEX-HDR-2/flag-7") is Verdict.FAILED
    assert "could not be reached any more after it" in results.cases[0].detail
    assert results.note == "the peer is gone since MPLEX-HDR-2/flag-7"


def test_a_client_that_connects_only_once_is_not_blamed() -> None:
    async def examine() -> conform.Results:
        clients: list[asyncio.Task[None]] = []

        def start(url: str) -> None:
            clients.append(asyncio.create_task(conform.dial_testee(url, "mplex", once=True)))

        results = await conform.run_async(
            "tcp://127.0.0.1:0", "mplex", ["MPLEX-HDR-2", "MPLEX-HDR-3"], role="acceptor",
            timeout=1.0, on_listening=start,
        )  # fmt: skip
        await asyncio.gather(*clients, return_exceptions=True)
        return results

    results = asyncio.run(examine())
    assert results.failures() == []
    assert results.note.startswith("the peer is gone since MPLEX-HDR-3")
