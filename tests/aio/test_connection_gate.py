"""Connections of a server: how many are accepted, and which one goes if there are too many."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
from tests.aio.session_helpers import echo, exchange
from tests.record.collector.test_collector import until

import polymux
from polymux import Limits, Session, Timeouts
from polymux.live import connection_gate
from polymux.live.connection_gate import ConnectionGate, GateLimits, Place, address_group
from polymux.metrics import Meter


def later(
    seconds: float, callback: Callable[..., object], *arguments: object
) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, callback, *arguments)


class Closing:
    """A connection in a gate, which notes that it was closed."""

    def __init__(self, gate: ConnectionGate, address: str, silent: bool = True) -> None:
        place = gate.admit(address, later)
        assert place is not None
        self.place: Place = place
        self.reason = ""
        self.place.attach(self.close, lambda: silent)

    def close(self, reason: str) -> None:
        self.reason = reason


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_gate, "SILENT_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(connection_gate, "HANDSHAKE_GRACE_SECONDS", 0.0)


def gate_of(sessions: int = 100, per_address: int = 0, half_open: int = 100) -> ConnectionGate:
    return ConnectionGate(GateLimits(sessions, per_address, half_open))


async def silent_sockets(port: int, count: int) -> list[socket.socket]:
    """Connections on which nothing is sent."""
    loop = asyncio.get_running_loop()
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
    return sockets


@contextlib.asynccontextmanager
async def serving(
    protocol: str, limits: Limits, meter: Meter | None = None
) -> AsyncIterator[polymux.aio.Server]:
    async def handle(session: Session) -> None:
        if isinstance(session, polymux.StreamuxSession):
            await session.serve_calls(answer_call)
        else:
            await echo(session)

    url = "tcp://127.0.0.1:0"
    server = await polymux.serve(
        handle, url, protocol=protocol, limits=limits, meter=meter, timeouts=Timeouts(close=1)
    )
    async with server:
        yield server


async def answer_call(call: polymux.Call) -> None:
    await call.reply(await call.read())


async def served(url: str, protocol: str) -> bytes:
    """What an honest client gets back."""
    async with polymux.connect(url, protocol=protocol) as session:
        if isinstance(session, polymux.StreamuxSession):
            return await session.request(b"hello")
        async with session.open("s") as stream:
            await stream.send(b"hello")
            await stream.end()
            return await stream.receive_all()


async def test_silent_sockets_do_not_lock_out_newcomers(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter()
    limits = Limits(max_half_open=8)
    with caplog.at_level(logging.WARNING):
        async with serving("streamux", limits, meter) as server:
            sockets = await silent_sockets(server.port, 100)
            async with asyncio.timeout(50):
                assert await served(server.url, "streamux") == b"hello"
                while sum(sample.value for sample in hits(meter)) < 92:
                    await asyncio.sleep(0.05)
            for sock in sockets:
                sock.close()
    assert {sample.labels for sample in hits(meter)} == {("streamux", "max_half_open")}
    [line] = [record.getMessage() for record in caplog.records]
    assert "made room for another: limit max_half_open=8; raise it with Limits" in line


def hits(meter: Meter) -> list[polymux.metrics.Sample]:
    return next(family for family in meter.collect() if family.name == "limit_hits").samples


async def test_a_burst_of_honest_clients_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_gate, "SILENT_GRACE_SECONDS", 20.0)  # they share a busy machine
    monkeypatch.setattr(connection_gate, "HANDSHAKE_GRACE_SECONDS", 20.0)
    async with serving("streamux", Limits(max_half_open=4)) as server:
        async with asyncio.timeout(50):
            replies = await asyncio.gather(*(served(server.url, "streamux") for _ in range(100)))
    assert replies == [b"hello"] * 100


async def test_the_oldest_half_open_one_of_the_busiest_address_goes_first(no_grace: None) -> None:
    gate = gate_of(half_open=5)
    honest = Closing(gate, "192.0.2.1")
    first, *others = [Closing(gate, "198.51.100.7") for _ in range(4)]
    newcomer = Closing(gate, "192.0.2.2")
    assert "max_half_open=5" in first.reason
    assert not any(each.reason for each in (honest, newcomer, *others))
    assert (gate.total, gate.half_open, gate.refused) == (5, 5, 1)


async def test_one_that_has_sent_something_goes_after_those_that_have_not(no_grace: None) -> None:
    gate = gate_of(half_open=3)
    speaking = Closing(gate, "192.0.2.1", silent=False)
    silent = [Closing(gate, "192.0.2.1") for _ in range(2)]
    Closing(gate, "192.0.2.1")
    assert [bool(each.reason) for each in (speaking, *silent)] == [False, True, False]


async def test_young_half_open_connections_may_be_more_for_a_while() -> None:
    gate = gate_of(half_open=2)
    connections = [Closing(gate, "192.0.2.1") for _ in range(6)]
    assert gate.half_open == 6
    assert gate.seconds_until_room(tls=False) == 0.0
    assert 0 < gate.seconds_until_room(tls=True) <= connection_gate.SILENT_GRACE_SECONDS
    async with asyncio.timeout(50):
        while gate.half_open > 2:
            await asyncio.sleep(0.02)
    assert [bool(each.reason) for each in connections] == [True] * 4 + [False] * 2


async def distrusted(gate: ConnectionGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an address use up the patience of a gate for two half-open connections."""
    for name in ("SILENT_GRACE_SECONDS", "HANDSHAKE_GRACE_SECONDS"):
        monkeypatch.setattr(connection_gate, name, 0.0)
    for _ in range(2 + 16):
        Closing(gate, "198.51.100.7", silent=False)
    for name in ("SILENT_GRACE_SECONDS", "HANDSHAKE_GRACE_SECONDS"):
        monkeypatch.setattr(connection_gate, name, 20.0)


async def test_an_address_that_never_finishes_a_handshake_does_not_make_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = gate_of(half_open=2)
    await distrusted(gate, monkeypatch)
    for _ in range(20):
        assert gate.seconds_until_room(tls=True) == 0.0
        newest = Closing(gate, "198.51.100.7", silent=False)
    assert gate.half_open == 2
    honest = Closing(gate, "192.0.2.1")
    assert not honest.reason
    assert not newest.reason
    assert gate.seconds_until_room(tls=True) > 0, "no address has most of the places"


@pytest.mark.parametrize("failing", [False, True])
async def test_connections_that_their_peer_closes_itself_count_too(
    failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_gate, "HANDSHAKE_GRACE_SECONDS", 20.0)
    gate = gate_of(half_open=2)
    staying = [Closing(gate, "198.51.100.7", silent=False) for _ in range(2)]
    for _ in range(16):
        passing = Closing(gate, "198.51.100.7", silent=False)
        if failing:
            passing.place.release()
        else:
            passing.place.established()
    assert (gate.seconds_until_room(tls=True) == 0.0) is failing
    assert not any(each.reason for each in staying)


async def test_finished_handshakes_restore_the_trust_in_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = gate_of(half_open=2)
    await distrusted(gate, monkeypatch)
    connections = [Closing(gate, "198.51.100.7", silent=False) for _ in range(2)]
    assert gate.seconds_until_room(tls=True) == 0.0
    connections[-1].place.established()
    connections += [Closing(gate, "198.51.100.7", silent=False) for _ in range(5)]
    assert gate.seconds_until_room(tls=True) > 0
    assert [bool(each.reason) for each in connections[1:]] == [False] * 6


async def test_with_all_places_taken_a_silent_connection_gives_way(no_grace: None) -> None:
    gate = gate_of(sessions=3)
    busy, quiet = Closing(gate, "192.0.2.1", silent=False), Closing(gate, "192.0.2.1")
    other = Closing(gate, "192.0.2.2", silent=False)
    for each in (busy, quiet, other):
        each.place.established()
    newcomer = Closing(gate, "192.0.2.3", silent=False)
    newcomer.place.established()
    assert "max_sessions=3" in quiet.reason
    assert not busy.reason
    assert gate.admit("192.0.2.4", later) is None, "all places are in use"
    other.place.release()
    other.place.release()
    assert gate.total == 2
    assert gate.admit("192.0.2.4", later) is not None


async def test_one_address_cannot_take_all_places(no_grace: None) -> None:
    gate = gate_of(sessions=10, per_address=2)
    for _ in range(2):
        Closing(gate, "2001:db8:0:1::7", silent=False).place.established()
    assert gate.admit("2001:db8:0:1::8", later) is None, "the same network"
    assert gate.admit("2001:db8:0:2::7", later) is not None
    assert gate.counters.hits == {"max_sessions_per_address": 1}


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, group: str) -> None:
    assert address_group(address) == group


async def test_a_server_with_all_places_taken_refuses_and_counts_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = Meter()
    async with serving("mplex", Limits(max_sessions=2), meter) as server:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                session = await stack.enter_async_context(
                    polymux.connect(server.url, protocol="mplex")
                )
                assert await exchange(session, "s", b"mine") == b"mine"
            with caplog.at_level(logging.WARNING):
                for _ in range(5):
                    with pytest.raises(polymux.PolymuxError):
                        await served(server.url, "mplex")
        async with asyncio.timeout(50):
            while server.sessions:
                await asyncio.sleep(0.01)
        assert await served(server.url, "mplex") == b"hello"
    assert [(sample.labels, sample.value) for sample in hits(meter)] == [
        (("mplex", "max_sessions"), 5)
    ]
    assert len(caplog.records) == 1


async def test_clients_that_wait_are_kept_while_the_server_itself_is_late() -> None:
    """A process that does not run for a while finds connections old that it has not yet served."""

    async def handle(session: polymux.Session) -> None:
        await session.wait_closed()

    limits = polymux.Limits(max_half_open=4)
    async with polymux.serve(
        handle, "tcp://127.0.0.1:0", protocol="mplex", limits=limits
    ) as server:
        dialers: list[socket.socket] = []
        for _ in range(8):
            for _ in range(8):
                dialers.append(socket.create_connection(("127.0.0.1", server.port)))
            time.sleep(0.3)  # longer than a silent connection is left alone
            await asyncio.sleep(0)
        await until(lambda: len(server.sessions) == len(dialers))
        for dialer in dialers:
            dialer.close()
