# mypyc: compiled
"""The two sides of a connection, and where a connection is observed."""

from enum import IntEnum
from typing import Final

from mypy_extensions import i64

DIALER: Final[i64] = 0
ACCEPTOR: Final[i64] = 1
NEITHER_SIDE: Final[i64] = 2  # the opener of a stream that both sides were configured with


class Side(IntEnum):
    """One end of a connection: DIALER connected, ACCEPTOR accepted the connection."""

    DIALER = 0
    ACCEPTOR = 1


SIDES: Final = (Side.DIALER, Side.ACCEPTOR)  # indexed by side: ten times as fast as `Side(side)`


class Vantage(IntEnum):
    """Where a connection is observed (qlog: vantage point).

    DIALER, ACCEPTOR: in that side's process, so that the side has read everything seen so far.
    MIDDLE: on the network, with socket buffers on both sides. UNORDERED: each direction is in
    order, but which of two frames in opposite directions came first is not known.
    """

    DIALER = 0
    ACCEPTOR = 1
    MIDDLE = 2
    UNORDERED = 3


UNORDERED: Final[i64] = 3
