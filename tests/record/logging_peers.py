"""Two peers that send and log continuously, so that there is traffic when something breaks."""

from __future__ import annotations

import asyncio
import ssl
from random import Random
from typing import cast

LARGEST = 60_000


class Peer(asyncio.Protocol):
    """Sends bytes that its number foretells, in chunks of any size, and logs what it receives.

    The acceptor learns the number of its dialer from the first four bytes.
    """

    def __init__(self, number: int, dials: bool, room: Room) -> None:
        self.number = number
        self.dials = dials
        self.room = room
        self.sent = bytearray()
        self.received = bytearray()
        self.error: Exception | None = None
        self.over = asyncio.get_running_loop().create_future()
        self._chance = Random(number * 2 + dials)
        self._writing = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none of asyncio's
        if self.dials:
            self._say(self.number.to_bytes(4, "big"))
            self.go_on()

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.dials and self.number < 0 and len(self.received) >= 4:
            self.number = int.from_bytes(self.received[:4], "big")
            self._chance = Random(self.number * 2)
            self.room.acceptors[self.number] = self
            self.go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self.error = error
        if not self.over.done():
            self.over.set_result(None)

    def pause_writing(self) -> None:
        self._writing = False

    def resume_writing(self) -> None:
        self.go_on()

    def go_on(self) -> None:
        self._writing = True
        asyncio.get_running_loop().call_soon(self._talk)

    def _talk(self) -> None:
        if self._writing and not self.transport.is_closing() and not self.room.quiet:
            size = self._chance.choice([1, 7, 100, 3000, LARGEST])
            self._say(self._chance.randbytes(self._chance.randrange(1, size + 1)))
            asyncio.get_running_loop().call_later(self.room.rest, self._talk)

    def _say(self, data: bytes) -> None:
        self.sent += data
        self.transport.write(data)


class Room:
    """All peers: an acceptor that listens, and numbered dialers."""

    def __init__(self, rest: float = 0.0005) -> None:
        self.rest = rest
        self.quiet = False
        self.dialers: dict[int, Peer] = {}
        self.acceptors: dict[int, Peer] = {}

    async def listen(self, tls: ssl.SSLContext | None = None) -> int:
        """Listen at a free port and return it."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._acceptor, "127.0.0.1", 0, ssl=tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def listen_unix(self, path: str) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(self._acceptor, path)

    async def dial(self, number: int, where: int | str, tls: ssl.SSLContext | None = None) -> Peer:
        """Dial a port of this machine, or the path of a Unix socket."""
        loop = asyncio.get_running_loop()
        peer = self.dialers[number] = Peer(number, True, self)
        if isinstance(where, str):
            await loop.create_unix_connection(lambda: peer, where)
        else:
            name = "localhost" if tls else None
            await loop.create_connection(
                lambda: peer, "127.0.0.1", where, ssl=tls, server_hostname=name
            )
        return peer

    def _acceptor(self) -> Peer:
        return Peer(-1, False, self)

    async def dial_all(
        self, where: int | str, count: int = 3, tls: ssl.SSLContext | None = None
    ) -> None:
        """Connect all dialers, wait until each is accepted, then start to send."""
        self.quiet = True
        for number in range(1, count + 1):
            await self.dial(number, where, tls)
        async with asyncio.timeout(60):
            while len(self.acceptors) < count:
                await asyncio.sleep(0.005)
        self.quiet = False
        for peer in (*self.dialers.values(), *self.acceptors.values()):
            peer.go_on()

    async def settle(self) -> None:
        """Stop sending, and wait until everything has arrived."""
        self.quiet = True
        async with asyncio.timeout(60):
            while not all(map(self._has_arrived, self.dialers)):
                await asyncio.sleep(0.01)

    def _has_arrived(self, number: int) -> bool:
        dialer, acceptor = self.dialers[number], self.acceptors.get(number)
        return acceptor is not None and (
            dialer.sent == acceptor.received and acceptor.sent == dialer.received
        )

    async def close(self) -> None:
        self._server.close()
        peers = [*self.dialers.values(), *self.acceptors.values()]
        for peer in peers:
            peer.transport.close()
        if peers:
            await asyncio.wait([peer.over for peer in peers], timeout=60)
