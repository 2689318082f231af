# mypyc: compiled
"""Where a stream's content is queued: called for every message, however small."""

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from polymux.aio.errors import again
from polymux.aio.session.socket_writer import Leaving
from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError
from polymux.core.streams import OPEN, Half, Lane
from polymux.core.streams import Stream as Record

LANE_ROOM: Final[i64] = 262144  # octets one stream may have waiting before its senders wait
ROOM: Final[i64] = 524288  # and all streams of a session that wait for the transport


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet:
    """The sending side of a stream: what needs no waiting."""

    __slots__ = ("_endpoint", "_leaving", "_no_send", "_own", "_theirs", "lane", "record")

    def __init__(self, endpoint: Endpoint, record: Record, leaving: Leaving) -> None:
        lane = record.lane
        assert lane is not None
        self.record: Record = record
        self.lane: Lane = lane
        self._endpoint: Endpoint = endpoint
        self._own: Half = record.half(endpoint.side)
        self._theirs: Half = record.half(1 - endpoint.side)
        self._leaving: Leaving = leaving
        self._no_send: PolymuxError | None = None  # why nothing can be sent any more

    def send_nowait(self, data: bytes | bytearray | memoryview) -> None:
        """Queue `data` without waiting. The caller sees to it that not too much piles up."""
        problem = self._no_send
        if problem is not None:
            raise again(problem)
        self._endpoint.send(self.record, data if isinstance(data, bytes) else octets(data))
        self._leaving.give()

    def _sends_at_once(self, data: object) -> bool:
        """Queue octets for which there is room and leave. False: nothing was done."""
        if not isinstance(data, bytes) or self._no_send is not None or not has_room(self):
            return False
        self._endpoint.send(self.record, data)
        self._leaving.give()
        return True

    def send_many(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Queue many pieces, each a frame of its own if it fits, without waiting; all or none."""
        problem = self._no_send
        if problem is not None:
            raise again(problem)
        whole: list[bytes] = []
        for piece in pieces:
            whole.append(piece if isinstance(piece, bytes) else octets(piece))
        self._endpoint.send_many(self.record, whole)
        self._leaving.give()

    def _is_full(self) -> bool:
        """Does too much wait to leave, or is there no leave for more?"""
        return is_full(self)


# Functions, because methods that call one another look for overrides in interpreted classes.


def has_room(outlet: Outlet) -> bool:
    """Could more be queued without waiting, perhaps after writing what is queued?"""
    return not is_full(outlet) or (outlet._leaving.push() and not is_full(outlet))


def is_full(outlet: Outlet) -> bool:
    lane = outlet.lane
    if lane.queued >= LANE_ROOM or outlet._endpoint.outbox.queued >= ROOM:
        return True
    own = outlet._own
    return own.granted >= 0 and own.granted - own.spent <= lane.queued and own.state == OPEN


def octets(data: object) -> bytes:
    """A buffer's content, copied; TypeError for what is no buffer."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"a stream sends bytes, not {type(data).__name__}")
