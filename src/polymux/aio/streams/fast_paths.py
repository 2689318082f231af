# mypyc: compiled
"""Messages and items in and out of a stream's lane: called for each, however small."""

from typing import Final

from mypy_extensions import i64

from polymux.aio.streams.outlet import (
    SESSION_SEND_BUFFER_BYTES,
    STREAM_SEND_BUFFER_BYTES,
    StreamSendBase,
)
from polymux.core.streams import OPEN

PREFETCH_BYTES: Final[i64] = (
    262144  # bytes that messages on order should come to, by those before them
)
MAX_PREFETCH_MESSAGES: Final[i64] = 256  # messages on order at most, however small


def try_send_message(stream: StreamSendBase, data: object) -> bool:
    """Queue a message for which there is room and leave. False: nothing was done."""
    if not isinstance(data, bytes) or stream.send_error is not None or message_would_block(stream):
        return False
    stream.endpoint.send(stream.state, data)
    stream.socket_writer.schedule_flush()
    return True


def message_would_block(stream: StreamSendBase) -> bool:
    """Does too much wait to leave, or has the peer asked for no more than waits already?

    Not where nothing can be sent any more: whoever tries is to be told.
    """
    lane = stream.buffers
    own = stream.own_half
    if lane.end_queued or own.state != OPEN:
        return False
    if (
        lane.queued_bytes >= STREAM_SEND_BUFFER_BYTES
        or stream.endpoint.scheduler.ready_bytes >= SESSION_SEND_BUFFER_BYTES
    ):
        return True
    return own.credit_granted - own.credit_spent <= len(lane.outgoing) - lane.next_piece


def try_send_items(stream: StreamSendBase, data: object, item_size: i64) -> bool:
    """Queue whole items of `size` bytes each, for which there is room and credit. False: nothing
    was done. Streams of which either side has announced the end are left to slower hands."""
    if not isinstance(data, bytes) or stream.send_error is not None or item_size <= 0:
        return False
    lane = stream.buffers
    own = stream.own_half
    length: i64 = len(data)
    if length == 0 or length % item_size != 0:
        return False
    if own.state != OPEN or own.promised_limit >= 0 or stream.peer_half.promised_limit >= 0:
        return False
    outbox = stream.endpoint.scheduler
    if (
        lane.queued_bytes >= STREAM_SEND_BUFFER_BYTES
        or outbox.ready_bytes >= SESSION_SEND_BUFFER_BYTES
    ):
        return False
    if own.credit_granted - own.credit_spent <= lane.queued_bytes // item_size:
        return False
    lane.outgoing.append(data)
    outbox.enqueue(stream.state, lane, length)
    stream.socket_writer.schedule_flush()
    return True


def pop_message(stream: StreamSendBase) -> bytes:
    """The first message that waits to be read; the lane and the session hold that much less."""
    lane = stream.buffers
    part = lane.received.pop(0)
    message = part if isinstance(part, bytes) else bytes(part)
    size: i64 = len(message)
    endpoint = stream.endpoint
    lane.unread_bytes -= size
    endpoint.receive_queue.unread_bytes -= size
    endpoint.read(stream.state, 1)
    if lane.window_may_grow:
        adapt_prefetch(stream, size)
    if len(endpoint.scheduler.control_queue) > 0:
        stream.socket_writer.schedule_flush()
    return message


def adapt_prefetch(outlet: StreamSendBase, size: i64) -> None:
    """A message of `size` was read: have more on order while they are small, fewer if they grow."""
    lane = outlet.buffers
    lane.bytes_read_since_grant += size
    if (
        lane.unreturned_credit != 0 or outlet.peer_half.state != OPEN
    ):  # more was not asked for just now
        return
    weight = lane.bytes_read_since_grant  # of half the messages on order
    lane.bytes_read_since_grant = 0
    endpoint = outlet.endpoint
    stream = outlet.state
    window = lane.target_window
    if weight * 4 <= PREFETCH_BYTES and window < MAX_PREFETCH_MESSAGES:
        lane.target_window = window * 2
        endpoint.queue_frame(stream, endpoint.protocol.credit_frame(endpoint.side, stream, window))
    elif weight > PREFETCH_BYTES and window > endpoint.protocol.receive_window:
        lane.target_window = window // 2
        lane.unreturned_credit = -(window // 2)  # so much less will be asked for again
