# mypyc: compiled
"""Where a stream's content is queued: called for every message, however small."""

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from polymux.aio.errors import copy_of
from polymux.aio.session.socket_writer import SocketWriter
from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError
from polymux.core.streams import OPEN, HalfStream, StreamBuffers
from polymux.core.streams import StreamState as Record

STREAM_SEND_BUFFER_BYTES: Final[i64] = (
    262144  # bytes one stream may have waiting before its senders wait
)
SESSION_SEND_BUFFER_BYTES: Final[i64] = (
    524288  # and all streams of a session that wait for the transport
)


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamSendBase:
    """The sending side of a stream: what needs no waiting."""

    __slots__ = (
        "endpoint",
        "socket_writer",
        "send_error",
        "own_half",
        "peer_half",
        "buffers",
        "state",
    )

    def __init__(self, endpoint: Endpoint, state: Record, socket_writer: SocketWriter) -> None:
        lane = state.buffers
        assert lane is not None
        self.state: Record = state
        self.buffers: StreamBuffers = lane
        self.endpoint: Endpoint = endpoint
        self.own_half: HalfStream = state.half(endpoint.side)
        self.peer_half: HalfStream = state.half(1 - endpoint.side)
        self.socket_writer: SocketWriter = socket_writer
        self.send_error: PolymuxError | None = None  # why nothing can be sent any more

    def send_nowait(self, data: bytes | bytearray | memoryview) -> None:
        """Queue `data` without waiting. The caller sees to it that not too much piles up."""
        problem = self.send_error
        if problem is not None:
            raise copy_of(problem)
        self.endpoint.send(self.state, data if isinstance(data, bytes) else copied_bytes(data))
        self.socket_writer.schedule_flush()

    def _try_send(self, data: object) -> bool:
        """Queue bytes for which there is room and leave. False: nothing was done."""
        if not isinstance(data, bytes) or self.send_error is not None or not can_queue(self):
            return False
        self.endpoint.send(self.state, data)
        self.socket_writer.schedule_flush()
        return True

    def send_many(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Queue many pieces, each a frame of its own if it fits, without waiting; all or none."""
        problem = self.send_error
        if problem is not None:
            raise copy_of(problem)
        whole: list[bytes] = []
        for piece in pieces:
            whole.append(piece if isinstance(piece, bytes) else copied_bytes(piece))
        self.endpoint.send_many(self.state, whole)
        self.socket_writer.schedule_flush()

    def _is_send_full(self) -> bool:
        """Does too much wait to leave, or is there no leave for more?"""
        return is_send_full(self)


# Functions, because methods that call one another look for overrides in interpreted classes.


def can_queue(stream: StreamSendBase) -> bool:
    """Could more be queued without waiting, perhaps after writing what is queued?"""
    return not is_send_full(stream) or (
        stream.socket_writer.flush_for_sender() and not is_send_full(stream)
    )


def is_send_full(stream: StreamSendBase) -> bool:
    lane = stream.buffers
    if (
        lane.queued_bytes >= STREAM_SEND_BUFFER_BYTES
        or stream.endpoint.scheduler.ready_bytes >= SESSION_SEND_BUFFER_BYTES
    ):
        return True
    own = stream.own_half
    return (
        own.credit_granted >= 0
        and own.credit_granted - own.credit_spent <= lane.queued_bytes
        and own.state == OPEN
    )


def copied_bytes(data: object) -> bytes:
    """A buffer's content, copied; TypeError for what is no buffer."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"a stream sends bytes, not {type(data).__name__}")
