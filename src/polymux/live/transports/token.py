"""The exchange of a shared token, before a session or a WebSocket upgrade takes over a connection.

As long as the peer has not proved the token, no session exists: nothing of the peer is decoded,
recorded or counted as a session.
"""

import logging
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from polymux.core.errors import PolymuxError
from polymux.core.token_exchange import (
    NONCE_BYTES,
    SharedToken,
    TokenAcceptor,
    TokenDialer,
    TokenExchange,
)
from polymux.live.connection_gate import Place
from polymux.live.errors import Unreachable, describe_os_error
from polymux.live.hooks import SessionMeter
from polymux.live.log_limiter import LevelLimiter
from polymux.live.peer_identity import is_local
from polymux.live.runtime import Future, Runtime, Timer
from polymux.live.session.socket_options import peer_name
from polymux.live.transport import ByteHandler, Transport
from polymux.live.urls import Address, BadUrl

log = logging.getLogger("polymux.aio")

P = TypeVar("P", bound=ByteHandler)

SECURE_SCHEMES = ("tls", "wss", "unix")
LINGER_SECONDS = 1.0  # for a refused peer to read the refusal


def check_token(token: object, address: Address) -> SharedToken | None:
    """Return the token to use at an address; None for None.

    Raises:
        BadUrl: The connection would not protect what follows the exchange.
        TypeError, ValueError: The token is no text or bytes, or has another length.
    """
    if token is None:
        return None
    shared = SharedToken(token)
    if address.scheme in ("exec", "stdio"):
        raise BadUrl(f"{address}: a token has no use here: the other side is a local process")
    if address.scheme not in SECURE_SCHEMES and not is_local(address):
        raise BadUrl(
            f"{address}: a token needs TLS, a Unix socket or a loopback address: others could take "
            "over the connection after it; use tls:// or wss://"
        )
    return shared


class TokenProtocol:
    """Runs one side of the exchange on a connection, then makes another protocol its protocol."""

    def __init__(self, exchange: TokenExchange) -> None:
        self.transport: Transport | None = None
        self.received = False  # anything at all
        self.over = False
        self._exchange = exchange

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        transport.write(self._exchange.initial_bytes())

    def data_received(self, data: bytes) -> None:
        transport = self.transport
        assert transport is not None  # set in `connection_made`
        self.received = True
        if self.over:
            return
        reply = self._exchange.receive(data)
        if reply:
            transport.write(reply)
        if self._exchange.failure:
            self.fail(self._exchange.failure)
        elif self._exchange.done:
            self.over = True
            self._hand_over(transport, self._exchange.take_rest())

    def _hand_over(self, transport: Transport, rest: bytes) -> None:
        try:
            following = self.on_proved()
        except PolymuxError:
            transport.abort()
            return
        transport.set_protocol(following)
        following.connection_made(transport)
        if rest and not transport.is_closing():
            following.data_received(rest)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """So little is written that nothing has to wait."""

    def resume_writing(self) -> None:
        """Nothing waits."""

    def connection_lost(self, error: Exception | None) -> None:
        text = f": {describe_os_error(error)}" if error is not None else ""
        self.fail(f"the connection ended before the token was proved{text}")

    def fail(self, reason: str) -> None:
        """End the exchange without success, unless it is over."""
        if not self.over:
            self.over = True
            self.on_failure(reason)

    def on_proved(self) -> ByteHandler:
        """The token was proved. Return the protocol that goes on with the connection."""
        raise NotImplementedError

    def on_failure(self, reason: str) -> None:
        """The token was not proved. Called once."""
        raise NotImplementedError


# Client side


class DialerToken(TokenProtocol, Generic[P]):
    """Presents the token to a server. The future `done` gets the next protocol, or Unreachable."""

    def __init__(
        self, address: Address, token: SharedToken, make: Callable[[], P], runtime: Runtime
    ) -> None:
        super().__init__(TokenDialer(token, os.urandom(NONCE_BYTES)))
        self.address = address
        self.make = make
        self.done: Future[P] = runtime.create_future()

    def on_proved(self) -> ByteHandler:
        following = self.make()
        if not self.done.done():
            self.done.set_result(following)
        return following

    def on_failure(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Unreachable(f"{self.address}: {reason}"))
            self.done.exception()  # retrieved: the caller may have been cancelled
        if self.transport is not None:
            self.transport.abort()

    async def proved(self) -> P:
        """Wait for the end of the exchange. If it fails or is cancelled, no connection is left.

        Raises:
            Unreachable: The token was refused, not asked for, or not known to the server.
        """
        try:
            return await self.done
        except BaseException:
            if self.transport is not None:
                self.transport.abort()
            raise


# Server side


class TokenListener:
    """Protocol factory of a server that asks for a token; keeps the exchanges that are not over.

    Args:
        token: The token.
        make: Creates what follows on a connection, with its place.
        timeout: Seconds for an exchange.
        runtime: Where the server runs.
        meter: Notified of refused clients.
    """

    def __init__(
        self,
        token: SharedToken,
        make: Callable[[Place], ByteHandler],
        timeout: float,
        runtime: Runtime,
        meter: SessionMeter | None = None,
    ) -> None:
        self.token = token
        self.make = make
        self.timeout = timeout
        self.runtime = runtime
        self.meter = meter
        self.pending: set[AcceptorToken] = set()
        self._refused = LevelLimiter()

    def __call__(self, place: Place) -> "AcceptorToken":
        return AcceptorToken(self, place)

    def log_refused(self, peer: str, reason: str) -> None:
        """Log a refused client, as a warning once in a while."""
        log.log(self._refused.level(self.runtime.time()), "%s refused: %s", peer, reason)
        if self.meter is not None:
            self.meter.refused(peer, reason)

    def close(self) -> None:
        """Abort the connections on which no token was proved."""
        for exchange in list(self.pending):
            exchange.abort()


class AcceptorToken(TokenProtocol):
    """Asks a client for the token, and closes the connection unless it is proved in time."""

    def __init__(self, listener: TokenListener, place: Place) -> None:
        super().__init__(TokenAcceptor(listener.token, os.urandom(NONCE_BYTES)))
        self.listener = listener
        self.place = place
        self._timer: Timer | None = None

    def connection_made(self, transport: Transport) -> None:
        self.place.attach(lambda _: self.abort(), lambda: not self.received)
        self.listener.pending.add(self)
        self._timer = self.listener.runtime.call_later(self.listener.timeout, self._on_timeout)
        super().connection_made(transport)

    def on_proved(self) -> ByteHandler:
        self._leave()
        return self.listener.make(self.place)

    def on_failure(self, reason: str) -> None:
        self.listener.log_refused(peer_name(self.transport, "a local peer"), reason)
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        # Closing at once could reset the connection, and the peer would not read the refusal.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.listener.runtime.call_later(LINGER_SECONDS, transport.abort)
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._leave()
        self.place.release()

    def abort(self) -> None:
        """Close the connection for a reason that has nothing to do with the client's token."""
        self.over = True
        if self.transport is not None:
            self.transport.abort()

    def _on_timeout(self) -> None:
        self.fail(f"it presented no token within {self.listener.timeout:g} s")

    def _leave(self) -> None:
        self.listener.pending.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
