"""WebSocket as a transport: the HTTP handshake here, by the library `websockets`; frames are ours.

Once the upgrade is agreed, the session takes the connection over, with whatever came behind it.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from polymux.aio.errors import Unreachable, plain, why
from polymux.aio.session.session import Session
from polymux.aio.urls import Address, BadUrl
from polymux.core.errors import MissingExtra, PolymuxError, Unsupported
from polymux.protocols.registry import parse

if TYPE_CHECKING:
    from websockets.server import ServerProtocol

    from polymux.core.websocket.frames import Mask

SCHEMES = ("ws", "wss")
HEAD = 16 * 1024  # octets of an HTTP request or answer
HALF_OPEN = 128  # connections whose upgrade is not finished
END = b"\r\n\r\n"


def carried(protocol: str, scheme: str) -> str:
    """The protocol string for a transport: ws:// and wss:// carry messages, all others octets."""
    choice = parse(protocol)
    carrier = choice.options.get("carrier")
    if scheme not in SCHEMES:
        if carrier == "websocket":
            raise BadUrl(f"{protocol!r}: carrier=websocket needs a ws:// or wss:// URL")
        return protocol
    if choice.name != "omnistreams":
        raise Unsupported(
            f"{choice.name} does not run over WebSocket: use tcp://, tls://, unix:// or exec:"
        )
    if carrier not in (None, "websocket"):
        raise BadUrl(f"{protocol!r}: over {scheme}:// the carrier is websocket")
    check_library()
    choice.options["carrier"] = "websocket"
    return str(choice)


def check_library() -> None:
    try:
        import websockets.client
        import websockets.server  # noqa: F401
    except ImportError:
        raise MissingExtra("websocket", "the handshake of ws:// and wss://") from None


def quick_mask() -> "Mask | None":
    """The library's mask, where it was compiled: wider steps than compiled Python can take."""
    try:
        from websockets.speedups import apply_mask
    except ImportError:
        return None
    return apply_mask


class Upgrade(asyncio.Protocol):
    """Reads one HTTP head, at most HEAD octets of it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._came = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        seen = max(0, len(self._came) - len(END))
        self._came += data
        end = self._came.find(END, seen)
        if end < 0 and len(self._came) <= HEAD:
            return
        if end < 0 or end > HEAD:
            self.refuse(f"an HTTP head of more than {HEAD} octets")
            return
        rest = bytes(self._came[end + len(END) :])
        head = bytes(self._came[: end + len(END)])
        self._came.clear()
        self.headed(head, rest)

    def headed(self, head: bytes, rest: bytes) -> None:
        """The whole head is there, and `rest` came behind it."""
        raise NotImplementedError

    def refuse(self, reason: str) -> None:
        """This will be no WebSocket."""
        if self.transport is not None:
            self.transport.close()

    def hand_over(self, session: Session, rest: bytes) -> None:
        """From here on the connection is the session's."""
        transport = self.transport
        assert transport is not None
        transport.set_protocol(session)
        session.connection_made(transport)
        if rest and not transport.is_closing():
            session.data_received(rest)


# --- the side that dials


class Asking(Upgrade):
    """Asks for the upgrade; `done` is the session, or why there is none."""

    def __init__(self, address: Address, make: Callable[[], Session]) -> None:
        from websockets.client import ClientProtocol
        from websockets.uri import parse_uri

        super().__init__()
        self.address = address
        self.make = make
        self.done: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._handshake = ClientProtocol(parse_uri(str(address)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handshake.send_request(self._handshake.connect())
        assert self.transport is not None
        self.transport.write(b"".join(self._handshake.data_to_send()))

    def headed(self, head: bytes, rest: bytes) -> None:
        status = head.partition(b"\r\n")[0]
        if status.split(b" ")[1:2] != [b"101"]:
            self.refuse(f"the answer is {plain(status)!r} and no WebSocket; is the path right?")
            return
        self._handshake.receive_data(head)
        problem = self._handshake.handshake_exc
        if problem is not None:
            self.refuse(f"the WebSocket handshake failed: {plain(str(problem).encode())}")
        elif not self.done.done():
            session = self.make()
            self.hand_over(session, rest)
            self.done.set_result(session)

    def refuse(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Unreachable(f"{self.address}: {reason}"))
            self.done.exception()  # who has given up waiting need not hear of it
        super().refuse(reason)

    def connection_lost(self, error: Exception | None) -> None:
        text = f": {why(error)}" if error is not None else ""
        self.refuse(f"the peer ended the connection during the WebSocket handshake{text}")


async def dial(
    address: Address,
    make: Callable[[], Session],
    tls: ssl.SSLContext | None,
    server_hostname: str | None,
    timeout: float,
) -> Session:
    """A session over a WebSocket. If cancelled, no connection is left."""
    context = None
    if address.scheme == "wss":
        context = tls if tls is not None else ssl.create_default_context()
    transport, asking = await asyncio.get_running_loop().create_connection(
        lambda: Asking(address, make), address.host, address.port, ssl=context,
        server_hostname=(server_hostname or address.host) if context else None,
        ssl_handshake_timeout=timeout if context else None,
    )  # fmt: skip
    try:
        return await asking.done
    except BaseException:
        transport.abort()
        raise


# --- the side that listens


class Door:
    """Where connections become sessions: the upgrades that are not finished, and their bounds."""

    def __init__(self, path: str, make: Callable[[], Session], patience: float) -> None:
        self.path = path.partition("?")[0]
        self.make = make
        self.patience = patience
        self.waiting: set[Answering] = set()

    def __call__(self) -> "Answering":
        return Answering(self)

    def is_served(self, path: str) -> bool:
        """`/` stands for every path."""
        return self.path in ("/", path.partition("?")[0])

    def close(self) -> None:
        for answering in list(self.waiting):
            if answering.transport is not None:
                answering.transport.abort()


class Answering(Upgrade):
    """Answers a request for the upgrade; a request for anything else gets an HTTP error."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self.door = door
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        if len(self.door.waiting) >= HALF_OPEN:
            self.transport.abort()
            return
        self.door.waiting.add(self)
        loop = asyncio.get_running_loop()
        self._clock = loop.call_later(self.door.patience, self.transport.abort)

    def headed(self, head: bytes, rest: bytes) -> None:
        from websockets.server import ServerProtocol

        assert self.transport is not None
        handshake = ServerProtocol()
        handshake.receive_data(head)
        agreed = self._answer(handshake)
        self.transport.write(b"".join(handshake.data_to_send()))
        self._leave()
        if not agreed:
            self.transport.close()
            return
        try:
            self.hand_over(self.door.make(), rest)
        except PolymuxError:
            self.transport.abort()

    def _answer(self, handshake: "ServerProtocol") -> bool:
        """Accept or reject; False also for what is no HTTP, which gets no answer."""
        from websockets.http11 import Request

        for event in handshake.events_received():
            if isinstance(event, Request):
                if self.door.is_served(event.path):
                    response = handshake.accept(event)
                else:
                    response = handshake.reject(404, f"Only {self.door.path} is served here.\n")
                handshake.send_response(response)
                return response.status_code == 101
        return False

    def refuse(self, reason: str) -> None:
        if self.transport is not None:
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"
            )
        super().refuse(reason)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self.door.waiting.discard(self)
        if self._clock is not None:
            self._clock.cancel()
