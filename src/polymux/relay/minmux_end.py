"""`MinmuxEnd`: the end of a Minmux session, whose streams need no opening.

A Minmux stream is an id. It is read once the reader has given credit for it, so the peer of a
bridge often waits for that before it sends anything. Streams arrive here in three ways: their ids
are given in advance, the peer sends a packet on them, or (between two Minmux sessions) the peer at
the other end gives credit for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextvars import Context, copy_context

from polymux.core.errors import LocalProtocolError, PolymuxError, Unsupported
from polymux.core.events import Event, Opened
from polymux.core.side import DIALER
from polymux.core.streams import StreamState
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.streams.items import ItemReceiver
from polymux.protocols.minmux.packets import U64_MODULUS
from polymux.relay.channels import ALL, Channel, StreamChannel
from polymux.relay.ends import Arrival, End
from polymux.relay.traits import Shape, Traits

MAX_ID_ATTEMPTS = 1024  # ids of this side that are tried for a new stream


class ReceiverChannel(StreamChannel):
    """The channel of a stream that the peer writes: whole items only."""

    __slots__ = ("_partial", "receiver")

    def __init__(self, receiver: ItemReceiver, traits: Traits, context: Context) -> None:
        super().__init__(receiver, traits, context)
        self.receiver = receiver
        self._partial = b""  # of an item

    def take(self, size: int = ALL) -> bytes:
        data = self._partial + super().take(size) if self._partial else super().take(size)
        whole = len(data) - len(data) % self.receiver.stream_format.item_size
        self._partial = data[whole:]
        return data[:whole] if self._partial else data


class MinmuxEnd(End):
    """The end of a Minmux session.

    Streams whose items have no fixed size are not relayed: they are refused and counted as lost.

    Args:
        session: An open session. Its streams belong to the relay from now on.
        stream_ids: Ids that the peer writes, to give credit for at once.
        keeps_ids: The other end is a Minmux session: streams keep their ids.
    """

    traits: Traits

    def __init__(
        self, session: MinmuxSession, stream_ids: Iterable[int] = (), keeps_ids: bool = False
    ) -> None:
        self.session = session
        self.traits = Traits("minmux", Shape.ONE_WAY, names=keeps_ids)
        self.partner: MinmuxEnd | None = None  # the other end, if streams keep their ids
        self._wanted = deque(stream_ids)
        self._next_id = 1 if session.endpoint.side == DIALER else 2
        self._changed: asyncio.Future[None] | None = None
        self._context: Context = copy_context()
        session.stream_reader = self
        session.closed.add_done_callback(lambda _: self._wake())

    def want(self, stream_id: int) -> None:
        """Give the peer credit for this stream: it is asked for at the other end."""
        self._wanted.append(stream_id)
        self._wake()

    # Called by the session for streams that are not relayed yet

    def on_event(self, state: StreamState, event: Event) -> None:
        """The peer has used a stream, or it is over."""
        own = state.opener == self.session.endpoint.side
        if isinstance(event, Opened) and own and self.partner is not None:
            self.partner.want(state.stream_id % U64_MODULUS)
        self._wake()

    def on_content(self, state: StreamState) -> None:
        """Content came before the stream is relayed: it waits in its buffers."""

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # End

    async def next_arrival(self) -> Arrival:
        session = self.session
        while True:
            session.check_open()
            stream_id = self._next_wanted()
            if stream_id is None:
                self._changed = session.loop.create_future()
                await self._changed
                continue
            try:
                receiver = session.receiver(stream_id)
            except LocalProtocolError:
                continue  # it is over, or the profile has none
            if receiver.item_decoder is not None or receiver.stream_format.item_size <= 0:
                await receiver.close()
                self.lose("items")
                continue
            name = str(stream_id).encode() if self.traits.names else b""
            return Arrival(ReceiverChannel(receiver, self.traits, self._context), name)

    def _next_wanted(self) -> int | None:
        if self._wanted:
            return self._wanted.popleft()
        session = self.session
        if len(session.streams) >= session.endpoint.limits.max_streams:
            return None
        return next(iter(session.unclaimed_ids()), None)

    async def open(self, name: bytes) -> Channel:
        session = self.session
        if self.traits.names:
            return StreamChannel(session.sender(int(name)), self.traits, self._context)
        problem: PolymuxError = Unsupported("the Minmux profile has no further stream")
        for _ in range(MAX_ID_ATTEMPTS):
            stream_id = self._next_id
            self._next_id += 2
            try:
                return StreamChannel(session.sender(stream_id), self.traits, self._context)
            except LocalProtocolError as refusal:  # the profile has no such stream
                problem = refusal
        raise problem

    async def close(self) -> None:
        await self.session.close()

    def abort(self, reason: str) -> None:
        self.session.abort(reason)
