"""What the parts of a session and its streams need of the session: a structural type.

The components, the streams and the session refer to one another. This protocol lets a component or
a stream name what it uses without importing the session classes, which import all of them.
"""

from typing import TYPE_CHECKING, Any, Protocol

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.core.limits import Timeouts
from polymux.core.streams import StreamState
from polymux.live.runtime import Runtime
from polymux.live.session.busy_poll import BusyPoller
from polymux.live.session.open_allowance import OpenAllowance
from polymux.live.session.socket_writer import SocketWriter
from polymux.live.session.wakeups import WakeupQueue
from polymux.live.transport import Transport

if TYPE_CHECKING:
    from polymux.live.streams.base import StreamBase
    from polymux.live.streams.duplex import Stream


class ReadPause(Protocol):
    """The read backpressure of a session, as its streams use it."""

    @property
    def paused_at(self) -> float:
        """When reading was paused (the runtime's time), or 0.0 while the session reads."""

    def update(self) -> None:
        """Pause or resume reading according to the number of unread bytes."""

    def on_assembled(self) -> None:
        """More bytes are being put together to a message."""


class UnfinishedMessages(Protocol):
    """The messages that the streams of a session are putting together."""

    def hold(self, stream: "StreamBase", size: int) -> None:
        """Count `size` bytes as what the stream's message has by now."""

    def must_wait(self, stream: "StreamBase") -> bool:
        """Return whether an unfinished message must leave its data unread for now."""

    def release(self, stream: "StreamBase") -> None:
        """The stream's message is complete or given up."""


class SendQueue(Protocol):
    """The streams that wait for room in the session's send buffer."""

    def add(self, stream: "StreamBase", retrying: bool) -> None:
        """Register a stream; `retrying` if it was woken before and found no room."""

    def clear(self) -> None:
        """Forget all streams."""


class SessionInterface(Protocol):
    """The part of a session that its components and streams use. `SessionBase` implements it."""

    reset_discards_unread: bool
    pauses_at_stream_limit: bool
    aborted_stream_weight: float

    runtime: Runtime
    endpoint: Endpoint
    timeouts: Timeouts
    transport: Transport | None
    ready: Any
    closed: Any
    close_reason: SessionClosed | None
    failure: SessionClosed | None
    peer: str
    streams: "dict[StreamState, Stream]"
    peer_stream_count: int
    open_allowance: OpenAllowance
    busy_poller: BusyPoller
    socket_writer: SocketWriter
    wakeup_queue: WakeupQueue

    @property
    def preamble(self) -> object: ...
    @property
    def read_backpressure(self) -> ReadPause: ...
    @property
    def assembly(self) -> UnfinishedMessages: ...
    @property
    def send_waiters(self) -> SendQueue: ...

    # Sending
    def flush(self) -> None: ...
    def schedule_flush(self) -> None: ...

    # Streams
    def exceeded_stream_limit(self) -> str: ...
    def create_stream(self, state: StreamState) -> "Stream": ...
    def admit_stream(self, stream: "Stream") -> None: ...
    def reject_excess_stream(self, stream: "Stream", limit: str) -> None: ...
    def on_stream_claimed(self, stream: "Stream") -> None: ...
    def on_stream_released(self, stream: "StreamBase") -> None: ...
    def remove_if_finished(self, stream: "StreamBase") -> None: ...
    def is_held_back(self, stream: "Stream") -> bool: ...
    def waiting_to_open(self) -> int: ...

    # Ending
    def check_open(self) -> None: ...
    def fail(self, problem: PolymuxError) -> None: ...
