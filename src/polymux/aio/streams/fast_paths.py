# mypyc: compiled
"""Messages and items in and out of a stream's lane: called for each, however small."""

from typing import Final

from mypy_extensions import i64

from polymux.aio.streams.outlet import LANE_ROOM, ROOM, Outlet
from polymux.core.streams import OPEN

ON_ORDER: Final[i64] = 262144  # octets that messages on order should come to, by those before them
WIDEST: Final[i64] = 256  # messages on order at most, however small


def post(outlet: Outlet, data: object) -> bool:
    """Queue a message for which there is room and leave. False: nothing was done."""
    if not isinstance(data, bytes) or outlet._no_send is not None or must_wait(outlet):
        return False
    outlet._endpoint.send(outlet.record, data)
    outlet._leaving.give()
    return True


def must_wait(outlet: Outlet) -> bool:
    """Does too much wait to leave, or has the peer asked for no more than waits already?

    Not where nothing can be sent any more: whoever tries is to be told.
    """
    lane = outlet.lane
    own = outlet._own
    if lane.ending or own.state != OPEN:
        return False
    if lane.queued >= LANE_ROOM or outlet._endpoint.outbox.queued >= ROOM:
        return True
    return own.granted - own.spent <= len(lane.outgoing) - lane.next


def bring(outlet: Outlet, data: object, size: i64) -> bool:
    """Queue whole items of `size` octets each, for which there is room and credit. False: nothing
    was done. Streams of which either side has announced the end are left to slower hands."""
    if not isinstance(data, bytes) or outlet._no_send is not None or size <= 0:
        return False
    lane = outlet.lane
    own = outlet._own
    length: i64 = len(data)
    if length == 0 or length % size != 0:
        return False
    if own.state != OPEN or own.limit >= 0 or outlet._theirs.limit >= 0:
        return False
    outbox = outlet._endpoint.outbox
    if lane.queued >= LANE_ROOM or outbox.queued >= ROOM:
        return False
    if own.granted - own.spent <= lane.queued // size:
        return False
    lane.outgoing.append(data)
    outbox.load(outlet.record, lane, length)
    outlet._leaving.give()
    return True


def fetch(outlet: Outlet) -> bytes:
    """The first message that waits to be read; the lane and the session hold that much less."""
    lane = outlet.lane
    part = lane.inbox.pop(0)
    message = part if isinstance(part, bytes) else bytes(part)
    size: i64 = len(message)
    endpoint = outlet._endpoint
    lane.unread -= size
    endpoint.inbox.unread -= size
    endpoint.read(outlet.record, 1)
    if lane.grows:
        suit_order(outlet, size)
    if len(endpoint.outbox.control) > 0:
        outlet._leaving.give()
    return message


def suit_order(outlet: Outlet, size: i64) -> None:
    """A message of `size` was read: have more on order while they are small, fewer if they grow."""
    lane = outlet.lane
    lane.weight += size
    if lane.held != 0 or outlet._theirs.state != OPEN:  # more was not asked for just now
        return
    weight = lane.weight  # of half the messages on order
    lane.weight = 0
    endpoint = outlet._endpoint
    stream = outlet.record
    window = lane.window
    if weight * 4 <= ON_ORDER and window < WIDEST:
        lane.window = window * 2
        endpoint.answer(stream, endpoint.protocol.granting(endpoint.side, stream, window))
    elif weight > ON_ORDER and window > endpoint.protocol.window:
        lane.window = window // 2
        lane.held = -(window // 2)  # so much less will be asked for again
