"""`YamuxSession`: pings, Go Away, resets with a code, and streams that are acknowledged.

A stream is usable as soon as it was opened. The ACK tells the opener that the application has taken
it, and at most `MAX_UNACKNOWLEDGED` streams wait for theirs: a peer resets those beyond.
"""

from polymux.core.endpoint import Endpoint
from polymux.core.errors import (
    LimitExceeded,
    LocalProtocolError,
    PeerViolation,
    PolymuxError,
    SessionClosed,
)
from polymux.core.events import Control
from polymux.core.limits import Timeouts
from polymux.live.arguments import check_stream_window
from polymux.live.errors import copy_of
from polymux.live.runtime import Runtime
from polymux.live.session.session import Session
from polymux.live.session.wakeups import Waiter
from polymux.live.streams.duplex import Stream
from polymux.protocols.yamux.protocol import MAX_UNACKNOWLEDGED, MAX_WINDOW, Yamux
from polymux.protocols.yamux.rules import GO_AWAY, PONG

NORMAL = 0
PROTOCOL_ERROR = 1
INTERNAL_ERROR = 2


class PendingPing:
    """A ping of this side, and the task that waits for its answer."""

    __slots__ = ("began", "problem", "round_trip", "waiter")

    def __init__(self, began: float, waiter: Waiter) -> None:
        self.began = began
        self.waiter = waiter
        self.round_trip: float | None = None  # in seconds
        self.problem: SessionClosed | None = None  # why there will be no answer

    def end(self, now: float) -> None:
        """The answer has come."""
        self.round_trip = now - self.began
        self.waiter.wake()

    def fail(self, problem: SessionClosed) -> None:
        """The session has ended. An answer that came before still counts."""
        self.problem = problem
        self.waiter.wake()


class YamuxSession(Session):
    """A session of yamux streams.

    `open` takes no name, which raises Unsupported, and a window of 262144 bytes or more; it raises
    LocalProtocolError once the peer has sent Go Away. It does not wait for the ACK, but waits while
    256 streams of this side are not acknowledged.
    """

    pauses_at_stream_limit = False  # a stream is refused by a reset, and the others go on

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        runtime: Runtime,
        opens_per_second: float = 0.0,
    ) -> None:
        super().__init__(endpoint, timeouts, runtime, opens_per_second)
        assert isinstance(endpoint.protocol, Yamux)  # the session factory pairs the two
        self.protocol: Yamux = endpoint.protocol
        self.open_allowance.max_unaccepted = MAX_UNACKNOWLEDGED
        self._pings: dict[int, PendingPing] = {}  # by value

    async def accept(self, *, window: int = 0) -> Stream:
        """Wait for the next stream that the peer opens, and acknowledge it.

        If cancelled, no stream was taken: the next call returns it.

        Args:
            window: Receive window in bytes, at least 262144; 0 for `Limits.receive_window`.

        Raises:
            LocalProtocolError: The window is out of range.
            SessionClosed: The session is closed and no stream is left to be accepted.
        """
        check_stream_window(self.protocol, window)
        return self._acknowledge(await self.accept_queue.take(), window)

    async def ping(self) -> float:
        """Ping the peer; return the round trip in seconds.

        If cancelled, an answer that comes later is ignored.

        Raises:
            SessionClosed: The session has ended, or ends before the answer.
        """
        self.check_open()
        value = self.endpoint.queue_ping()
        ping = self._pings[value] = PendingPing(self.runtime.time(), Waiter(self.wakeup_queue))
        self.socket_writer.set_prompt(True)
        self.flush()
        try:
            while ping.round_trip is None and ping.problem is None:
                await ping.waiter
        finally:
            self._pings.pop(value, None)
            self.socket_writer.set_prompt(len(self._pings) > 0)
        if ping.round_trip is None:
            assert ping.problem is not None  # the loop above has ended
            raise copy_of(ping.problem)
        return ping.round_trip

    @property
    def round_trip(self) -> float | None:
        """The last round trip that a ping of this side has measured, in seconds; None: none yet."""
        latest = self.protocol.pings.latest[self.endpoint.side]
        return latest / 1e9 if latest >= 0 else None

    def go_away(self, code: int = NORMAL) -> None:
        """Tell the peer to open no more streams. Those that are open go on.

        Peers of libp2p close the connection when they read it.

        Args:
            code: 0 normal, 1 protocol error, 2 internal error; libp2p has more.

        Raises:
            LocalProtocolError: The code is not a number of 32 bits.
            SessionClosed: The session has ended.
        """
        check_code(code)
        self.check_open()
        self.endpoint.send_frame(self.protocol.go_away_frame(code))
        self.schedule_flush()

    @property
    def peer_go_away(self) -> int | None:
        """The code of the peer's Go Away; None: it has sent none."""
        code = self.protocol.go_away_code(1 - self.endpoint.side)
        return code if code >= 0 else None

    def reset(self, stream: Stream, code: int = 0) -> None:
        """Reset a stream: `Stream.abort` with an error code.

        The code is sent with `dialect=libp2p` only; a peer has it in `Stream.error` as `code N`.

        Raises:
            LocalProtocolError: The code is not a number of 32 bits.
        """
        check_code(code)
        stream.abort(f"code {code}" if code else "")

    # Callbacks of the base class

    def _acknowledge(self, stream: Stream, window: int) -> Stream:
        if not self.shutdown.io_stopped:
            self.endpoint.accept(stream.state, window)
            self.schedule_flush()
        return stream

    def on_stream_claimed(self, stream: Stream) -> None:
        self._acknowledge(stream, 0)

    def _on_session_frame(self, event: Control) -> None:
        if event.kind == PONG and event.amount in self._pings:
            self._pings[event.amount].end(self.runtime.time())
        elif event.kind >= GO_AWAY:
            self.open_allowance.close()  # callers that wait to open find out

    def _notify_peer(self, problem: PolymuxError) -> bool:
        """Say in a Go Away why the session ends, where the peer is the reason."""
        transport = self.transport
        if (
            not isinstance(problem, (PeerViolation, LimitExceeded))
            or self.socket_writer.blocked
            or self.shutdown.io_stopped
            or self.preamble is not None
            or transport is None
            or transport.is_closing()
        ):
            return False
        code = INTERNAL_ERROR if self._is_limit_error(problem) else PROTOCOL_ERROR
        self.endpoint.take_events()  # the session is failing: drop its last events
        self.endpoint.scheduler.control_queue.clear()
        self.protocol.pending_replies.clear()
        self.endpoint.send_frame(self.protocol.go_away_frame(code))
        data = self.endpoint.data_to_send(0)
        self.socket_writer.bytes_sent += len(data)
        transport.write(data)
        return True

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        for ping in self._pings.values():
            ping.fail(problem)
        super()._end_receiving(problem, can_reply)


def check_code(code: object) -> None:
    """Check an error code, which has 32 bits."""
    if not isinstance(code, int):
        raise TypeError(f"a code is an int, not {type(code).__name__}")
    if not 0 <= code <= MAX_WINDOW:
        raise LocalProtocolError(f"a code is 0 to {MAX_WINDOW}, not {code}")
