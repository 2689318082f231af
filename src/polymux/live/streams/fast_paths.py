# mypyc: compiled
"""Fast paths for messages, items and exchanges: queue or take one without waiting.

Compiled, because these functions run once for every message. Each returns False or None when it
does not apply, and the caller takes the slow path.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.streams import ABORTED, OPEN
from polymux.live.streams.base import StreamBase, can_queue, queue_end, take_received

PREFETCH_BYTES: Final[i64] = 262144  # what the messages requested ahead should add up to
MAX_PREFETCH_MESSAGES: Final[i64] = 256  # messages requested ahead at most, however small


def try_send_message(stream: StreamBase, data: object) -> bool:
    """Queue a message if there is buffer space and credit. False: nothing was done."""
    if not isinstance(data, bytes) or stream.send_error is not None or message_would_block(stream):
        return False
    stream.endpoint.send(stream.state, data)
    stream.socket_writer.schedule_flush()
    return True


def message_would_block(stream: StreamBase) -> bool:
    """Whether a send buffer is full, or the peer has requested no more than is already queued.

    False once nothing can be sent any more: sending does not block then, it raises.
    """
    buffers = stream.buffers
    own = stream.own_half
    if buffers.end_queued or own.state != OPEN:
        return False
    if stream.endpoint.scheduler.lacks_room(buffers):
        return True
    return own.credit_granted - own.credit_spent <= len(buffers.outgoing) - buffers.next_piece


def try_send_items(stream: StreamBase, data: object, item_size: i64) -> bool:
    """Queue complete items of `item_size` bytes each, if there is buffer space and credit.

    False: nothing was done. Streams whose end either side has announced take the slow path.
    """
    if not isinstance(data, bytes) or stream.send_error is not None or item_size <= 0:
        return False
    buffers = stream.buffers
    own = stream.own_half
    length: i64 = len(data)
    if length == 0 or length % item_size != 0:
        return False
    if own.state != OPEN or own.promised_limit >= 0 or stream.peer_half.promised_limit >= 0:
        return False
    scheduler = stream.endpoint.scheduler
    if scheduler.lacks_room(buffers):
        return False
    if own.credit_granted - own.credit_spent <= buffers.queued_bytes // item_size:
        return False
    buffers.outgoing.append(data)
    scheduler.enqueue(stream.state, buffers, length)
    stream.socket_writer.schedule_flush()
    return True


def items_would_block(stream: StreamBase, item_size: i64) -> bool:
    """Whether items of `item_size` bytes would have to wait: for credit, or for room.

    Only for streams whose end neither side has announced.
    """
    own = stream.own_half
    if stream.send_error is not None or own.state != OPEN:
        return False
    buffers = stream.buffers
    if own.credit_granted - own.credit_spent <= buffers.queued_bytes // item_size:
        return stream.peer_half.state == OPEN
    return stream.endpoint.scheduler.lacks_room(buffers)


def pop_message(stream: StreamBase) -> bytes:
    """Remove and return the oldest message received, and return the credit for it."""
    buffers = stream.buffers
    part = buffers.received.pop(0)
    message = part if isinstance(part, bytes) else bytes(part)
    size: i64 = len(message)
    endpoint = stream.endpoint
    if size > 0:
        endpoint.receive_queue.count_taken(buffers, size, 1)
    endpoint.read(stream.state, 1)
    if buffers.window_may_grow:
        adapt_prefetch(stream, size)
    if len(endpoint.scheduler.control_queue) > 0:
        stream.socket_writer.schedule_flush()
    return message


def adapt_prefetch(stream: StreamBase, size: i64) -> None:
    """Adapt the number of messages requested ahead after a message of `size` bytes was read.

    Decided whenever credit has just been returned, that is after half a window: the window doubles
    while messages are small, up to `MAX_PREFETCH_MESSAGES`, and halves while they are large.
    """
    buffers = stream.buffers
    buffers.bytes_read_since_grant += size
    if buffers.unreturned_credit != 0 or stream.peer_half.state != OPEN:
        return
    half_window_bytes = buffers.bytes_read_since_grant
    buffers.bytes_read_since_grant = 0
    endpoint = stream.endpoint
    state = stream.state
    window = buffers.target_window
    if half_window_bytes * 4 <= PREFETCH_BYTES and window < MAX_PREFETCH_MESSAGES:
        buffers.target_window = window * 2
        endpoint.queue_frame(state, endpoint.protocol.credit_frame(endpoint.side, state, window))
    elif half_window_bytes > PREFETCH_BYTES and window > endpoint.protocol.receive_window:
        buffers.target_window = window // 2
        buffers.unreturned_credit = -(window // 2)  # this much less will be requested


def try_send_whole(stream: StreamBase, data: object) -> bool:
    """Queue bytes and the end of this side's half, if there is buffer space and credit.

    False: nothing was done.

    Raises:
        LocalProtocolError: The half cannot end here.
    """
    if not isinstance(data, bytes) or stream.send_error is not None or not can_queue(stream):
        return False
    stream.endpoint.send(stream.state, data)
    queue_end(stream)
    return True


def take_whole(stream: StreamBase, max_bytes: i64) -> bytes | None:
    """Take everything that the peer has sent, if all of it has arrived and nothing was read.

    None: nothing was done.
    """
    buffers = stream.buffers
    if (
        not buffers.all_received
        or buffers.unread_bytes > max_bytes
        or stream.read_error is not None
        or stream.peer_half.state == ABORTED
        or stream._reading_closed
    ):
        return None
    return take_received(stream) if len(buffers.received) > 0 else b""
