"""Sessions, streams and servers as doors without an event loop of asyncio's show them.

A handle stands for an object of this package and passes on what the application calls. What waits
differs from door to door; what does not wait is here.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from polymux.core.errors import SessionClosed
from polymux.live.peer_identity import PeerIdentity
from polymux.live.protocols import minmux, nerdbank, streamux, yamux
from polymux.live.server import Server
from polymux.live.session.session import Session
from polymux.live.streams import duplex, exchanges, items, messages
from polymux.protocols.minmux.item_codecs import Codec

L = TypeVar("L")
T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")


class HandleRuntime(Protocol):
    """The runtime of a door, as its handles use it."""

    def do(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function that does not wait, such as a method of a session."""


class Handle(Generic[L]):
    """Stands for an object of a session, or of a server.

    Attributes:
        live: The object itself; for its attributes only.
        runtime: What runs it.
    """

    __slots__ = ("live", "runtime")

    def __init__(self, runtime: HandleRuntime, live: L) -> None:
        self.runtime = runtime
        self.live = live

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.live is other.live

    def __hash__(self) -> int:
        return hash(self.live)

    def __str__(self) -> str:
        return str(self.live)

    def __repr__(self) -> str:
        return repr(self.live)


# Streams


class StreamHandle(Handle[duplex.Stream]):
    """A stream of bytes."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the stream; bytes that are not UTF-8 are replaced."""
        return self.live.name

    @property
    def stream_id(self) -> int:
        """The id of the stream on the wire."""
        return self.live.stream_id

    @property
    def error(self) -> str | None:
        """The reason sent by the side that aborted the stream; None if it sent none."""
        return self.live.error

    @property
    def weight(self) -> int:
        """The stream's share of the connection; see `polymux.Stream.weight`. It may be set."""
        return self.live.weight

    @weight.setter
    def weight(self, weight: int) -> None:
        self.runtime.do(setattr, self.live, "weight", weight)

    @property
    def usable(self) -> bool:
        """Whether neither side has aborted the stream."""
        return self.live.usable

    def send_nowait(self, data: duplex.BytesLike) -> None:
        """Queue `data` without waiting."""
        self.runtime.do(self.live.send_nowait, data)

    def send_many(self, pieces: Iterable[duplex.BytesLike]) -> None:
        """Queue several pieces without waiting: all of them, or none if it raises."""
        self.runtime.do(self.live.send_many, list(pieces))

    def receive_nowait(self, size: int = -1) -> bytes:
        """Return what was received so far without waiting; empty if there is nothing."""
        return self.runtime.do(self.live.receive_nowait, size)

    def abort(self, text: str = "") -> None:
        """Abort both directions: discard queued and unread data, and notify the peer."""
        self.runtime.do(self.live.abort, text)


class MessageHandle(StreamHandle):
    """A stream of messages, in one direction."""

    __slots__ = ()
    live: messages.MessageStream

    @property
    def metadata(self) -> bytes:
        """The metadata bytes the stream was opened with."""
        return self.live.metadata

    def json(self) -> object:
        """Return the metadata decoded as JSON."""
        return self.live.json()

    def cancel(self) -> None:
        """Abort the stream."""
        self.runtime.do(self.live.cancel)


class MessageSenderHandle(MessageHandle):
    """A stream of messages to the peer."""

    __slots__ = ()
    live: messages.MessageSender

    @property
    def credit(self) -> int:
        """Messages that can be sent now without waiting."""
        return self.live.credit


class ItemHandle(StreamHandle):
    """A stream of items, in one direction."""

    __slots__ = ()
    live: items.ItemStream

    @property
    def announced(self) -> int | None:
        """The limit the peer has announced: items it still writes, or credit it still gives."""
        return self.live.announced


class ItemSenderHandle(ItemHandle):
    """A stream of items to the peer."""

    __slots__ = ()
    live: items.ItemSender

    @property
    def credit(self) -> int:
        """Items that can be sent now without waiting for credit."""
        return self.live.credit

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more items will be written, given the credit."""
        self.runtime.do(self.live.promise, amount)

    def forgo(self, amount: int) -> None:
        """Return `amount` of unused credit."""
        self.runtime.do(self.live.forgo, amount)


class ItemReceiverHandle(ItemHandle):
    """A stream of items from the peer."""

    __slots__ = ()
    live: items.ItemReceiver

    @property
    def last(self) -> bytes | None:
        """The last item, once it has arrived and all items before it were read; else None."""
        return self.runtime.do(lambda: self.live.last)

    @property
    def window(self) -> int:
        """Credit in circulation: given and not forgone, in items."""
        return self.live.window

    def grant(self, amount: int) -> None:
        """Give `amount` more credit."""
        self.runtime.do(self.live.grant, amount)

    def stop(self, more: int = 0) -> None:
        """Announce that at most `more` credit will be given from now on."""
        self.runtime.do(self.live.stop, more)

    def oops(self, keep: int = 0) -> None:
        """Ask the writer to return all credit but `keep`."""
        self.runtime.do(self.live.oops, keep)

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more credit will be given."""
        self.runtime.do(self.live.promise, amount)


class CallHandle(StreamHandle):
    """A request of the peer, to be answered by this side."""

    __slots__ = ()
    live: exchanges.Call

    def drop(self, reason: str = "this side dropped the call") -> None:
        """Abandon the call without a reply."""
        self.runtime.do(self.live.drop, reason)


# Sessions


class SessionHandle(Handle[Session]):
    """A connection with many streams."""

    __slots__ = ()

    @property
    def peer(self) -> str:
        """Address or URL of the peer."""
        return self.live.peer

    @property
    def peer_identity(self) -> PeerIdentity | None:
        """The names in the peer's certificate, if it was verified."""
        return self.live.peer_identity

    @property
    def failure(self) -> SessionClosed | None:
        """Why the session ended, or None while it is open and after an orderly end."""
        return self.live.failure

    @property
    def open_streams(self) -> int:
        """Number of streams that are open, or closed with data that was not read."""
        return self.live.open_streams

    @property
    def bytes_sent(self) -> int:
        """Number of bytes handed to the transport."""
        return self.live.bytes_sent

    @property
    def read_pauses(self) -> int:
        """How many times reading was paused because the application read too slowly."""
        return self.live.read_pauses

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        return bool(self.live.closed.done())

    def abort(self, reason: str = "this side aborted the session") -> None:
        """End the connection at once; queued data is not sent."""
        self.runtime.do(self.live.abort, reason)

    def _shown(self, stream: duplex.Stream) -> Any:
        """Return the door's handle of a stream."""
        raise NotImplementedError


class NerdbankHandle(SessionHandle, Generic[T]):
    """A session of Nerdbank channels."""

    __slots__ = ()
    live: nerdbank.NerdbankSession

    def reject(self, stream: StreamHandle, text: str = "") -> None:
        """Reject an offer of the peer; see `offers`."""
        self.runtime.do(self.live.reject, stream.live, text)

    def offers(self) -> list[T]:
        """Channels that the peer has offered and this side has not accepted yet, oldest first."""
        return [self._shown(stream) for stream in self.runtime.do(self.live.offers)]

    def seeded(self, stream_id: int) -> T:
        """Return a seeded channel: one that both sides configure and no side offers (v3)."""
        stream: T = self._shown(self.runtime.do(self.live.seeded, stream_id))
        return stream


class StreamuxHandle(SessionHandle):
    """A session of requests and replies."""

    __slots__ = ()
    live: streamux.StreamuxSession

    @property
    def keep_alive(self) -> float:
        """Send a keep-alive after this many seconds without sending; 0 sends none. May be set."""
        return self.live.keep_alive

    @keep_alive.setter
    def keep_alive(self, seconds: float) -> None:
        self.runtime.do(setattr, self.live, "keep_alive", seconds)

    @property
    def silence(self) -> float:
        """End the session after this many seconds without a byte from the peer; 0: never. May be
        set."""
        return self.live.silence

    @silence.setter
    def silence(self, seconds: float) -> None:
        self.runtime.do(setattr, self.live, "silence", seconds)


class MinmuxHandle(SessionHandle, Generic[S, R]):
    """A session of one-way streams by id."""

    __slots__ = ()
    live: minmux.MinmuxSession

    def sender(self, stream_id: int) -> S:
        """Return the stream with this id for writing."""
        sender: S = self._shown(self.runtime.do(self.live.sender, stream_id))
        return sender

    def receiver(
        self, stream_id: int, *, window: int | None = None, codec: Codec | None = None
    ) -> R:
        """Return the stream with this id for reading, and give its initial credit."""
        live = self.runtime.do(self.live.receiver, stream_id, window=window, codec=codec)
        receiver: R = self._shown(live)
        return receiver

    def unclaimed_ids(self) -> list[int]:
        """Ids written by the peer that it has used and no `receiver` call has asked for."""
        return self.runtime.do(self.live.unclaimed_ids)


class YamuxHandle(SessionHandle):
    """A session of yamux streams."""

    __slots__ = ()
    live: yamux.YamuxSession

    @property
    def round_trip(self) -> float | None:
        """The last round trip that a ping of this side has measured, in seconds; None: none yet."""
        return self.live.round_trip

    @property
    def peer_go_away(self) -> int | None:
        """The code of the peer's Go Away; None: it has sent none."""
        return self.live.peer_go_away

    def go_away(self, code: int = yamux.NORMAL) -> None:
        """Tell the peer to open no more streams. Those that are open go on."""
        self.runtime.do(self.live.go_away, code)

    def reset(self, stream: StreamHandle, code: int = 0) -> None:
        """Reset a stream: `Stream.abort` with an error code."""
        self.runtime.do(self.live.reset, stream.live, code)


# Servers


class ServerHandle(Handle[Server], Generic[S]):
    """A listening socket and its sessions."""

    __slots__ = ()

    @property
    def url(self) -> str:
        """The URL that the server listens on, with the port that was bound."""
        return self.live.url

    @property
    def port(self) -> int:
        """The TCP port that was bound; 0 where there is none."""
        return self.live.port

    @property
    def sessions(self) -> list[S]:
        """The open sessions, including those whose handshake is not done."""
        found: list[Session] = self.runtime.do(list, self.live.sessions)
        return [self._shown(session) for session in found]

    def _shown(self, session: Session) -> Any:
        """Return the door's handle of a session."""
        raise NotImplementedError
