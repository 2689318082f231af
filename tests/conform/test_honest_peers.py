"""Peers that are slow, cautious or started anew for each case: they are honest and do not fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from tests.conform.peers import PATIENCE, Serve, bad_peer, wait_until_gone

from polymux import Unreachable
from polymux.conform import engine, opening
from polymux.conform.connection import PeerConnection
from polymux.conform.notation.selection import NOTATIONS
from polymux.conform.opening import Acceptor, child_connection
from polymux.core.conformance import Outcome, Verdict
from polymux.testing import conform

PROGRAM = f"{shlex.quote(sys.executable)} -c 'from polymux.cli import main; main()'"
CLIENT = f"{PROGRAM} testee {{url}} --protocol mplex --role dialer"
SILENT_CLIENT = (
    f"{shlex.quote(sys.executable)} -S -c 'import socket, sys\n"
    'host, port = sys.argv[1][6:].split(":")\n'
    "with socket.create_connection((host, int(port))) as sock:\n"
    "    while sock.recv(65536): pass' {url}"
)
NEW_STREAM, MESSAGE, CLOSE = 0, 2, 4  # flags of the initiator
PIECE = 32768


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends. IndexError: it is not complete."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def encoded(number: int) -> bytes:
    low = bytearray()
    while number > 0x7F:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*low, number])


def echo(seconds_for_piece: float = 0.0, seconds_for_stream: float = 0.0) -> Serve:
    """An mplex echo that takes its time for each piece of content and each new stream."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = b""
        while data := await reader.read(1 << 16):
            held += data
            while True:
                try:
                    header, at = varint(held, 0)
                    size, at = varint(held, at)
                except IndexError:
                    break
                if len(held) < at + size:
                    break
                body, held = held[at : at + size], held[at + size :]
                flag, stream = header & 7, header >> 3
                if flag == NEW_STREAM:
                    await asyncio.sleep(seconds_for_stream)
                elif flag == CLOSE:
                    writer.write(encoded(stream << 3 | CLOSE - 1) + b"\0")
                for start in range(0, size if flag == MESSAGE else 0, PIECE):
                    piece = body[start : start + PIECE]
                    writer.write(encoded(stream << 3 | MESSAGE - 1) + encoded(len(piece)) + piece)
                    await asyncio.sleep(seconds_for_piece)

    return serve


def examine(serve: Serve, names: list[str], timeout: float) -> conform.Results:
    async def run() -> conform.Results:
        async with bad_peer(serve) as url:
            return await conform.run_async(url, "mplex", names, level=1, timeout=timeout)

    return asyncio.run(run())


def test_a_peer_that_is_slow_but_goes_on_has_more_than_the_time_limit() -> None:
    began = time.monotonic()
    results = examine(echo(seconds_for_piece=0.1), ["MPLEX-CLOSE-4"], 1.0)
    assert time.monotonic() - began > 2 * 1.0
    assert results.verdict("MPLEX-CLOSE-4") is Verdict.OK


def test_a_peer_that_still_sends_after_all_that_time_is_not_wedged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MAX_PERIODS", 2)
    results = examine(echo(seconds_for_piece=0.2), ["MPLEX-CLOSE-4"], 1.0)
    assert results.verdict("MPLEX-CLOSE-4") is Verdict.INFORMATIONAL
    assert "it still sent after 2 s" in results.cases[0].detail


def test_a_peer_that_limits_the_rate_of_streams_is_not_wedged() -> None:
    results = examine(echo(seconds_for_stream=0.2), ["MPLEX-RATE-1"], 2.0)
    [result] = results.cases
    assert (result.outcome, result.verdict) == (Outcome.WEDGED, Verdict.INFORMATIONAL)


# Clients


def test_a_connection_that_its_client_has_closed_is_not_given_to_a_case() -> None:
    def make() -> PeerConnection:
        return PeerConnection("mplex", 1, NOTATIONS["mplex"]({}, 1))

    async def run() -> tuple[object, object]:
        async with Acceptor("tcp://127.0.0.1:0", PATIENCE) as acceptor:
            port = acceptor.address.port
            for _ in range(2):
                with socket.create_connection(("127.0.0.1", port)) as gone:
                    gone.send(b"\x00\x00")
            with socket.create_connection(("127.0.0.1", port)) as living:
                async with acceptor.connection(make) as link:
                    assert link.transport is not None
                    return link.transport.get_extra_info("peername"), living.getsockname()

    given, living = asyncio.run(run())
    assert given == living


def run_client(
    command: str, names: list[str], timeout: float = PATIENCE, level: int = 1, url: str = ""
) -> conform.Results:
    return conform.run(
        url or "tcp://127.0.0.1:0", "mplex", names, role="acceptor", level=level, timeout=timeout,
        command=command,
    )  # fmt: skip


def test_a_case_does_not_get_the_connection_of_the_client_before() -> None:
    # This client connects again as soon as a case is over, and is then killed.
    results = run_client(CLIENT, ["MPLEX-OPEN-3", "MPLEX-CLOSE-3"])
    assert conform.failure_text(results) == ""
    assert {result.verdict for result in results.cases} == {Verdict.OK}


def test_a_command_may_start_more_slowly_than_the_time_limit() -> None:
    command = f"sh -c {shlex.quote(f'sleep 0.5; exec {CLIENT} --once')}"
    results = run_client(command, ["MPLEX-HDR-2"], timeout=0.1, level=0)
    assert results.failures() == []
    assert results.cases[0].outcome is not None


def test_a_command_that_exits_without_a_connection_is_named() -> None:
    with pytest.raises(Unreachable, match="false exited with 1 and did not connect"):
        run_client("false", ["MPLEX-HDR-2"], timeout=0.1)


@pytest.mark.parametrize(
    ("later", "verdict"), [("exit 3", Verdict.FAILED), ("sleep 600", Verdict.UNIMPLEMENTED)]
)
def test_a_command_that_connects_once_fails_only_if_it_exits(
    later: str, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "START_SECONDS", PATIENCE if later == "exit 3" else 4.0)
    monkeypatch.setattr(opening, "EXIT_GRACE_SECONDS", 0.1)
    first = tmp_path / "first"
    script = f"if mkdir {first}; then exec {SILENT_CLIENT}; else {later}; fi"
    names = ["MPLEX-HDR-2", "MPLEX-HDR-3/ten-bytes"]
    results = run_client(f"sh -c {shlex.quote(script)}", names, timeout=0.5, level=0)
    assert results.cases[1].verdict is verdict, results.cases[1].detail


def test_what_a_command_has_started_ends_with_its_case(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {noted}; exec {CLIENT} --once"
    run_client(f"sh -c {shlex.quote(script)}", ["MPLEX-HDR-2"])
    helper = int(noted.read_text())
    try:
        wait_until_gone(helper)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(helper, signal.SIGKILL)


def test_a_unix_socket_of_a_running_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(Unreachable, match="in use"):
            run_client("", ["MPLEX-HDR-2"], url=f"unix://{path}")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_the_unix_socket_of_the_tester_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    results = run_client(f"{CLIENT} --once", ["MPLEX-HDR-2"], url=f"unix://{path}")
    assert conform.failure_text(results) == ""
    assert not path.exists()


def test_a_child_whose_input_has_ended_is_left_without_an_error() -> None:
    async def main() -> list[str]:
        problems: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: problems.append(context["message"])
        )

        def make() -> PeerConnection:
            return PeerConnection("mplex", 0, NOTATIONS["mplex"]({}, 0))

        async with child_connection(("cat",), make) as link:
            link.end()
        return problems

    assert asyncio.run(main()) == []
