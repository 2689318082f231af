"""`Channel`: one stream of an end, as the pump sees it, and the channel of a session's stream.

A channel has no coroutines: the pump moves content when a channel calls it, so that no task has to
be woken for each chunk, and a relayed stream costs no task while it is idle.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Final

from polymux.core.errors import PolymuxError, SessionClosed, StreamAborted, StreamEnded
from polymux.core.streams import ENDED
from polymux.live.session.wakeups import IDLE, WAITING, Waiter
from polymux.live.streams.duplex import Stream
from polymux.live.streams.exchanges import Call
from polymux.live.streams.items import ItemSender
from polymux.live.streams.messages import MessageSender
from polymux.protocols.omnistreams.payloads import DEFAULT_CHUNK_SIZE
from polymux.relay.traits import Traits

ALL: Final = -1  # as the size of a read: everything there is
# Taken from a channel at once, and the room that is waited for: streams that share a full
# connection take turns.
MAX_PIECE_BYTES = 262144

# Why a channel takes no more content; the words of the table `stalls`.
NO_CREDIT: Final = "no-credit"  # the peer has not given credit for more
SLOW_READER: Final = "slow-reader"  # the peer of a socket does not read
TRANSPORT: Final = "transport"  # the connection that carries the stream is full

LOST_REASON: Final = "the connection on the other side of the relay was lost"

Callback = Callable[[], None]


class Channel(ABC):
    """One stream of an end: content in, content out, each until its end or an abort.

    Reading takes content out of the channel, which lets the peer send more (credit, or the window
    of a socket).
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """Names the stream in messages, such as `d3` or `127.0.0.1:5432`."""

    @abstractmethod
    def watch(self, on_change: Callback, on_room: Callback) -> None:
        """Call `on_change` when content, the end or an abort arrives, until the channel is over.

        `on_room` is called after `wait_for_room`. Another call replaces both.
        """

    # Reading

    @abstractmethod
    def has_unread(self) -> bool:
        """Whether `take` would return content."""

    @abstractmethod
    def take(self, size: int = ALL) -> bytes:
        """Remove and return content: at most `size` bytes, or one message where there are any."""

    @abstractmethod
    def at_end(self) -> bool:
        """Whether the content has ended, called when nothing is unread.

        Raises:
            PolymuxError: It ended otherwise: an abort, or the loss of the connection.
        """

    @abstractmethod
    def stop_reading(self) -> bool:
        """Tell the peer that nothing more is read, and discard what comes.

        Returns False, and does nothing, if that cannot be expressed.
        """

    # Writing

    @abstractmethod
    def is_full(self) -> bool:
        """Whether content has to wait; False also if nothing can be sent any more."""

    @abstractmethod
    def wait_for_room(self) -> None:
        """Call `on_room` once, as soon as the channel may have room, or nothing can be sent."""

    @abstractmethod
    def why_full(self) -> str:
        """Why the channel is full: NO_CREDIT, SLOW_READER or TRANSPORT."""

    @abstractmethod
    def write_failure(self) -> PolymuxError | None:
        """Why nothing can be sent any more: StreamEnded if the peer reads no more.

        None as long as content can be sent.
        """

    @abstractmethod
    def put(self, data: bytes) -> None:
        """Queue content without waiting.

        Raises:
            PolymuxError: Nothing can be sent any more; see `write_failure`.
        """

    @abstractmethod
    def end(self) -> None:
        """End this direction after what is queued: half-close."""

    # Ending

    @abstractmethod
    def abort(self, reason: str) -> bool:
        """Reset both directions; return whether the peer gets the reason. Harmless when over."""

    @property
    @abstractmethod
    def abort_reason(self) -> str:
        """The reason that the peer gave when it aborted the stream; empty if it gave none.

        LOST_REASON if the connection was lost.
        """

    @abstractmethod
    def release(self) -> None:
        """Call no callbacks any more. What is queued is still sent."""


class StreamChannel(Channel):
    """The channel of a session's stream, of any protocol.

    Args:
        stream: The stream, which no task reads or writes meanwhile.
        traits: What the protocol can express.
        context: In which the callbacks run; a copy of the caller's by default.
    """

    __slots__ = ("_context", "_on_change", "_on_room", "_tasks", "_traits", "stream")

    def __init__(self, stream: Stream, traits: Traits, context: Context | None = None) -> None:
        self.stream = stream
        self._traits = traits
        self._context = copy_context() if context is None else context
        self._on_change: Callback | None = None
        self._on_room: Callback | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def label(self) -> str:
        return self.stream.state.label()

    def watch(self, on_change: Callback, on_room: Callback) -> None:
        self._on_change = on_change
        self._on_room = on_room
        waiter = self.stream.read_waiter
        if waiter is None or waiter.state == IDLE:
            self._arm()

    def _arm(self) -> None:
        waiter = self.stream.wait_readable()
        waiter.add_done_callback(self._on_woken, context=self._context)

    def _on_woken(self, waiter: Waiter) -> None:
        waiter.result()
        on_change = self._on_change
        if on_change is None:
            return
        on_change()
        if self._on_change is not None and not self.stream.state.over:
            self._arm()

    # Reading

    def has_unread(self) -> bool:
        return self.stream.has_unread

    def take(self, size: int = ALL) -> bytes:
        return self.stream.receive_nowait(size)

    def at_end(self) -> bool:
        return self.stream.check_eof()

    def stop_reading(self) -> bool:
        if not self._traits.stop_reading:
            return False
        self.stream.stop_reading()
        return True

    # Writing

    def is_full(self) -> bool:
        stream = self.stream
        if not stream.send_would_block():
            return False
        stream.socket_writer.flush_for_sender()
        return stream.send_would_block()

    def wait_for_room(self) -> None:
        self.stream.call_when_writable(self._on_writable, MAX_PIECE_BYTES)

    def _on_writable(self) -> None:
        if self._on_room is not None:
            self._on_room()

    def why_full(self) -> str:
        stream = self.stream
        own = stream.own_half
        if own.credit_granted >= 0 and (
            own.credit_granted - own.credit_spent <= stream.buffers.queued_bytes
            or stream.endpoint.protocol.content_is_messages
        ):
            return NO_CREDIT
        return TRANSPORT

    def write_failure(self) -> PolymuxError | None:
        stream = self.stream
        failure = stream.send_error
        if (
            isinstance(failure, StreamAborted)
            and self._traits.ends_by_termination
            and stream.peer_half.state == ENDED
            and not stream.state.error
        ):
            return StreamEnded(str(failure))  # its peer is done with the channel
        return failure

    def put(self, data: bytes) -> None:
        self.stream.send_nowait(data)

    def end(self) -> None:
        stream = self.stream
        if isinstance(stream, ItemSender):  # its first packet may have to wait
            task = asyncio.ensure_future(stream.end())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            stream.end_nowait()

    # Ending

    def abort(self, reason: str) -> bool:
        stream = self.stream
        self.release()
        if stream.state.over and not stream.has_unread:
            return True
        kept = self._traits.carries_reason(reason)
        stream.abort(reason if kept else "")
        return kept

    @property
    def abort_reason(self) -> str:
        stream = self.stream
        if stream.state.reset_by == 1 - stream.endpoint.side:
            return stream.error or ""
        if isinstance(stream.read_error or stream.send_error, SessionClosed):
            return LOST_REASON
        return ""

    def release(self) -> None:
        self._on_change = self._on_room = None
        waiter = self.stream.read_waiter
        if waiter is not None and waiter.state == WAITING:
            waiter.result()  # forgets the callback


class CallChannel(StreamChannel):
    """The channel of a Streamux request of the peer, which cannot be told of a failure."""

    __slots__ = ("call",)

    def __init__(self, call: Call, traits: Traits, context: Context | None = None) -> None:
        super().__init__(call, traits, context)
        self.call = call

    def abort(self, reason: str) -> bool:
        self.release()
        self.call.drop(reason or "the request was not answered")
        return not reason


class MessageChannel(StreamChannel):
    """The channel of a stream of messages to the peer.

    `split` is set if the content has no boundaries of its own: it is then sent in messages of at
    most DEFAULT_CHUNK_SIZE bytes.
    """

    __slots__ = ("split",)

    def __init__(
        self, sender: MessageSender, traits: Traits, context: Context | None = None
    ) -> None:
        super().__init__(sender, traits, context)
        self.split = False

    def put(self, data: bytes) -> None:
        if not self.split:
            super().put(data)
        else:
            for start in range(0, len(data), DEFAULT_CHUNK_SIZE):
                super().put(data[start : start + DEFAULT_CHUNK_SIZE])
