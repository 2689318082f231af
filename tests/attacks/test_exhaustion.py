"""When every id is in use, opening another stream fails in time, and nothing is lost (ATK-15)."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest

import polymux
from polymux import NoFreeIds, OmnistreamsSession, StreamuxSession
from polymux.core.endpoint import Endpoint
from polymux.protocols.nerdbank.protocol import Nerdbank
from polymux.protocols.registry import create

SMALL = "streamux:length_bits=10,id_bits=4"


def test_a_peer_that_takes_no_stream_leaves_us_256() -> None:
    async def run() -> None:
        near, far = await polymux.pipe("omnistreams:carrier=length")
        assert isinstance(near, OmnistreamsSession)
        streams = [await near.open() for _ in range(256)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await near.open()
        streams[7].cancel()
        await near.open()
        for session in (near, far):
            session.abort()
            await session.wait_closed()

    asyncio.run(run())


class Withholding:
    """A Streamux peer that reads everything and delays its acknowledgements of cancels."""

    def __init__(self) -> None:
        self.writer: asyncio.StreamWriter | None = None
        self.cancelled: list[int] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        writer.write(bytes([1, 10, 4, 50]))
        await reader.readexactly(4)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (head,) = struct.unpack("<H", await reader.readexactly(2))
                length = head >> 4 & 0x3FF
                await reader.readexactly(length)
                if not length and not head >> 14:
                    self.cancelled.append(head & 15)
        writer.close()

    def acknowledge(self) -> None:
        assert self.writer is not None
        for number in self.cancelled:
            self.writer.write(struct.pack("<H", 1 << 14 | number))
        self.cancelled.clear()


def test_a_peer_that_withholds_its_acks_locks_our_ids_and_asking_says_so_in_time() -> None:
    async def run() -> None:
        peer = Withholding()
        server = await asyncio.start_server(peer, "127.0.0.1", 0)
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        session = await polymux.connect(url, protocol=SMALL)
        assert isinstance(session, StreamuxSession)
        for _ in range(16):
            with pytest.raises(TimeoutError):
                await session.request(b"x", timeout=0.05)
        with pytest.raises(NoFreeIds):
            session.endpoint.open()
        async with asyncio.timeout(10):
            with pytest.raises(TimeoutError, match=r"no reply within 0\.2 s"):
                await session.request(b"x", timeout=0.2)
            session.timeouts.slow_reader = 0.1
            for _ in range(2):
                with pytest.raises(NoFreeIds, match=r"all 16 ids .* for 0\.1 s: .* id_bits=4"):
                    await session.request(b"x", timeout=0)
                assert session.retiring
        assert len(peer.cancelled) == 16
        peer.acknowledge()
        async with asyncio.timeout(10):
            exchange = await session.open()  # free again
        assert not session.retiring
        await exchange.close()
        session.abort()
        await session.wait_closed()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_last_nerdbank_id_is_the_last(version: int) -> None:
    protocol = create(f"nerdbank:version={version}", vantage=0)
    assert isinstance(protocol, Nerdbank)
    protocol.handshake_done = True
    protocol.odd_id_side = 0
    end = Endpoint(protocol, 0)
    protocol.next_dialer_id = 2**31 - 1
    stream = end.open(b"x")
    assert stream.stream_id == 2**31 - 1
    with pytest.raises(NoFreeIds, match="use a new connection"):
        end.open(b"x")
