"""Live sessions report to their meter, and the counters match what happened."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.aio.session_helpers import echo, exchange

import polymux
from polymux import OmnistreamsSession, Session, StreamuxSession
from polymux.metrics import Meter, prometheus_text


def value(meter: Meter, name: str, *labels: str) -> int:
    family = next(f for f in meter.collect() if f.name == name)
    return family.values.get(labels, 0)


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=1", "nerdbank:version=3"])
def test_an_exchange_is_counted_on_both_sides(protocol: str) -> None:
    name = protocol.partition(":")[0]
    meter = Meter()

    async def run() -> None:
        async with await polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol=protocol, meter=meter
        ) as server:
            async with polymux.connect(server.url, protocol=protocol, meter=meter) as session:
                assert await exchange(session, "x", bytes(100_000)) == bytes(100_000)
                for side in ("dialer", "acceptor"):
                    assert value(meter, "sessions", name, side) == 1
        for side in ("dialer", "acceptor"):
            assert value(meter, "sessions", name, side) == 0
            assert value(meter, "sessions_begun", name, side) == 1
            assert value(meter, "streams_opened", name, side) == 1
            assert value(meter, "bytes", name, side, "in") > 100_000
        assert value(meter, "bytes", name, "dialer", "out") == value(
            meter, "bytes", name, "acceptor", "in"
        )
        assert value(meter, "frames", name, "dialer", "out") == value(
            meter, "frames", name, "acceptor", "in"
        )

    asyncio.run(run())
    assert b"polymux_sessions_failed_total{" not in prometheus_text(meter)


def test_what_a_peer_breaks_is_counted_by_its_rule_and_the_session_as_failed() -> None:
    meter = Meter()

    async def run() -> None:
        async with await polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol="mplex", meter=meter
        ) as server:
            for data in (b"\x0a\x01x" * 3 + b"\x08\x00\x08\x00", b"\x0a\x01x" * 2000):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(data)
                async with asyncio.timeout(60):
                    with contextlib.suppress(ConnectionResetError):
                        await reader.read()
                writer.close()

    asyncio.run(run())
    assert value(meter, "violations", "mplex", "mplex.id-reused") == 1
    assert value(meter, "violations", "mplex", "mplex.unknown-stream") >= 503
    assert value(meter, "limit_hits", "mplex", "unknown_stream_burst") == 1
    assert value(meter, "sessions_failed", "mplex", "acceptor", "violation") == 1
    assert value(meter, "sessions_failed", "mplex", "acceptor", "limit") == 1


@pytest.mark.parametrize("protocol", ["omnistreams", "streamux", "minmux"])
def test_every_protocol_reports(protocol: str) -> None:
    meter = Meter()

    async def handle(session: Session) -> None:
        await session.wait_closed()

    async def run() -> None:
        async with await polymux.serve(
            handle, "tcp://127.0.0.1:0", protocol=protocol, meter=meter
        ) as server:
            async with polymux.connect(server.url, protocol=protocol, meter=meter) as session:
                if isinstance(session, OmnistreamsSession):
                    await session.open("x")
                elif isinstance(session, StreamuxSession):
                    await (await session.open()).send(b"x")
                assert value(meter, "streams", protocol, "dialer") == int(protocol != "minmux")
                await asyncio.sleep(0.05)

    asyncio.run(run())
    assert value(meter, "sessions_begun", protocol, "acceptor") == 1
    assert value(meter, "sessions", protocol, "acceptor") == 0
