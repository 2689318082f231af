"""WebSocket connections: the HTTP upgrade, with the library `websockets`.

Only the handshake happens here. After it, the session becomes the protocol of the transport and
gets the bytes that followed the HTTP head; WebSocket frames are decoded in `polymux.core`.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from polymux.core.errors import MissingExtra, PolymuxError, Unsupported
from polymux.live.connection_gate import Place
from polymux.live.errors import Unreachable, describe_os_error, printable
from polymux.live.hooks import SessionMeter
from polymux.live.runtime import Future, Runtime, Timer
from polymux.live.session.session import Session
from polymux.live.session.socket_options import peer_name
from polymux.live.transport import ByteHandler, Transport
from polymux.live.transports.origin_policy import OriginPolicy
from polymux.live.urls import Address, BadUrl
from polymux.protocols.registry import parse_protocol

if TYPE_CHECKING:
    from websockets.server import ServerProtocol

    from polymux.core.websocket.frames import MaskFunction

log = logging.getLogger("polymux.aio")

WEBSOCKET_SCHEMES = ("ws", "wss")
MAX_HTTP_HEAD_BYTES = 16 * 1024  # of an HTTP request or response
HTTP_HEAD_END = b"\r\n\r\n"


def protocol_for_scheme(protocol: str, scheme: str) -> str:
    """Return the protocol string for a URL scheme, with `carrier=websocket` for ws:// and wss://.

    Raises:
        BadUrl: The `carrier` option contradicts the scheme.
        Unsupported: The protocol does not run over WebSocket.
        MissingExtra: The library `websockets` is not installed.
    """
    choice = parse_protocol(protocol)
    carrier = choice.options.get("carrier")
    if scheme not in WEBSOCKET_SCHEMES:
        if carrier == "websocket":
            raise BadUrl(f"{protocol!r}: carrier=websocket needs a ws:// or wss:// URL")
        return protocol
    if choice.name != "omnistreams":
        raise Unsupported(
            f"{choice.name} does not run over WebSocket: use tcp://, tls://, unix:// or exec:"
        )
    if carrier not in (None, "websocket"):
        raise BadUrl(f"{protocol!r}: over {scheme}:// the carrier is websocket")
    check_websockets_installed()
    choice.options["carrier"] = "websocket"
    return str(choice)


def check_websockets_installed() -> None:
    """Raise MissingExtra unless the library `websockets` is installed."""
    try:
        import websockets.client
        import websockets.server  # noqa: F401
    except ImportError:
        raise MissingExtra("websocket", "the handshake of ws:// and wss://") from None


def fast_mask() -> "MaskFunction | None":
    """Return the mask function of `websockets` written in C, or None if it is not available.

    It is faster than the compiled Python one of `polymux.core`.
    """
    try:
        from websockets.speedups import apply_mask
    except ImportError:
        return None
    return apply_mask


class HttpUpgrade:
    """Reads one HTTP head of at most `MAX_HTTP_HEAD_BYTES`."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.received = False  # anything at all
        self._received = bytearray()

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received = True
        seen = max(0, len(self._received) - len(HTTP_HEAD_END))
        self._received += data
        end = self._received.find(HTTP_HEAD_END, seen)
        if end < 0 and len(self._received) <= MAX_HTTP_HEAD_BYTES:
            return
        if end < 0 or end > MAX_HTTP_HEAD_BYTES:
            self.refuse(f"an HTTP head of more than {MAX_HTTP_HEAD_BYTES} bytes")
            return
        rest = bytes(self._received[end + len(HTTP_HEAD_END) :])
        head = bytes(self._received[: end + len(HTTP_HEAD_END)])
        self._received.clear()
        self.on_head(head, rest)

    def on_head(self, head: bytes, rest: bytes) -> None:
        """The head is complete; `rest` are the bytes received after it."""
        raise NotImplementedError

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """So little is written that nothing has to wait."""

    def resume_writing(self) -> None:
        """Nothing waits."""

    def refuse(self, reason: str) -> None:
        """Close the connection: it does not become a WebSocket."""
        if self.transport is not None:
            self.transport.close()

    def hand_over_to(self, session: ByteHandler, rest: bytes) -> None:
        """Make the session the protocol of the connection."""
        transport = self.transport
        assert transport is not None  # set in `connection_made`
        transport.set_protocol(session)
        session.connection_made(transport)
        if rest and not transport.is_closing():
            session.data_received(rest)


# Client side


class ClientUpgrade(HttpUpgrade):
    """Requests the upgrade. The future `done` gets the session, or Unreachable."""

    def __init__(self, address: Address, make: Callable[[], Session], runtime: Runtime) -> None:
        from websockets.client import ClientProtocol
        from websockets.uri import parse_uri

        super().__init__()
        self.address = address
        self.make = make
        self.done: Future[Session] = runtime.create_future()
        self._handshake = ClientProtocol(parse_uri(str(address)))

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self._handshake.send_request(self._handshake.connect())
        assert self.transport is not None
        self.transport.write(b"".join(self._handshake.data_to_send()))

    def on_head(self, head: bytes, rest: bytes) -> None:
        status = head.partition(b"\r\n")[0]
        if status.split(b" ")[1:2] != [b"101"]:
            self.refuse(f"the answer is {printable(status)!r} and no WebSocket; is the path right?")
            return
        self._handshake.receive_data(head)
        problem = self._handshake.handshake_exc
        if problem is not None:
            self.refuse(f"the WebSocket handshake failed: {printable(str(problem).encode())}")
        elif not self.done.done():
            session = self.make()
            self.hand_over_to(session, rest)
            self.done.set_result(session)

    def refuse(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Unreachable(f"{self.address}: {reason}"))
            self.done.exception()  # retrieved: the caller may have been cancelled
        super().refuse(reason)

    def connection_lost(self, error: Exception | None) -> None:
        text = f": {describe_os_error(error)}" if error is not None else ""
        self.refuse(f"the peer ended the connection during the WebSocket handshake{text}")


# Server side


class UpgradeListener:
    """Protocol factory of a WebSocket server; keeps the upgrades that are not finished.

    Args:
        path: Path that is served; `/` serves every path.
        make: Creates a session after an upgrade, with the place of its connection.
        timeout: Seconds for an upgrade.
        origins: Decides which web pages may connect.
        runtime: Where the server runs.
        meter: Notified of pages that are refused.
    """

    def __init__(
        self,
        path: str,
        make: Callable[[Place], Session],
        timeout: float,
        origins: OriginPolicy,
        runtime: Runtime,
        meter: SessionMeter | None = None,
    ) -> None:
        self.path = path.partition("?")[0]
        self.make = make
        self.timeout = timeout
        self.origins = origins
        self.runtime = runtime
        self.meter = meter
        self.pending: set[ServerUpgrade] = set()

    def __call__(self, place: Place) -> "ServerUpgrade":
        return ServerUpgrade(self, place)

    def is_served(self, path: str) -> bool:
        """Whether `path` is served here."""
        return self.path in ("/", path.partition("?")[0])

    def close(self) -> None:
        """Abort the connections whose upgrade is not finished."""
        for upgrade in list(self.pending):
            if upgrade.transport is not None:
                upgrade.transport.abort()


class ServerUpgrade(HttpUpgrade):
    """Answers an upgrade request; any other request gets an HTTP error."""

    def __init__(self, listener: UpgradeListener, place: Place) -> None:
        super().__init__()
        self.listener = listener
        self.place = place
        self._timer: Timer | None = None

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        abort = self.transport.abort
        self.place.attach(lambda _: abort(), lambda: not self.received)
        self.listener.pending.add(self)
        self._timer = self.listener.runtime.call_later(self.listener.timeout, self.transport.abort)

    def on_head(self, head: bytes, rest: bytes) -> None:
        from websockets.server import ServerProtocol

        assert self.transport is not None
        handshake = ServerProtocol()
        handshake.receive_data(head)
        accepted = self._respond(handshake)
        self.transport.write(b"".join(handshake.data_to_send()))
        self._remove_from_pending()
        if not accepted:
            self.transport.close()
            return
        try:
            self.hand_over_to(self.listener.make(self.place), rest)
        except PolymuxError:
            self.transport.abort()
            self.place.release()

    def _respond(self, handshake: "ServerProtocol") -> bool:
        """Accept or reject the upgrade. False also for data that is not HTTP: it gets no answer."""
        from websockets.http11 import Request

        for event in handshake.events_received():
            if isinstance(event, Request):
                headers = event.headers
                refusal = self.listener.origins.refusal(
                    headers.get_all("Origin"), headers.get_all("Host")
                )
                if refusal:
                    reason = printable(refusal.encode())
                    peer = peer_name(self.transport, "")
                    log.info("%s: a WebSocket was refused: %s", peer, reason)
                    if self.listener.meter is not None:
                        self.listener.meter.refused(peer, reason)
                    response = handshake.reject(403, f"Refused: {refusal}.\n")
                elif self.listener.is_served(event.path):
                    response = handshake.accept(event)
                else:
                    response = handshake.reject(404, f"Only {self.listener.path} is served here.\n")
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
        self._remove_from_pending()
        self.place.release()

    def _remove_from_pending(self) -> None:
        self.listener.pending.discard(self)
        if self._timer is not None:
            self._timer.cancel()
