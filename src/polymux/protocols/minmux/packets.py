# mypyc: compiled
"""Minmux's eight packets: their kinds, their numbers, and how a user writes them.

A kind is `group * 2`, plus 1 if its sender writes the stream: group is the header octet's two high
bits, and who writes follows from the id's parity. A stream's key is the 64 bits of its id.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import CONTENT, CONTROL, GRANTS, Frame, Kind
from polymux.core.varint import HUGE, put_varu64

GIVE_CREDIT: Final[i64] = 0
WRITE: Final[i64] = 1
STOP_READ: Final[i64] = 2
STOP_WRITE: Final[i64] = 3
OOPS: Final[i64] = 4
FORGO_CREDIT: Final[i64] = 5
PROMISE_READ: Final[i64] = 6
PROMISE_WRITE: Final[i64] = 7

# Stops are CONTROL: most of them only announce a limit. A half ends when its limit is used up.
KINDS: Final = {
    0: Kind("GiveCredit", GRANTS),
    1: Kind("Write", CONTENT),
    2: Kind("StopRead", CONTROL),
    3: Kind("StopWrite", CONTROL),
    4: Kind("Oops", CONTROL),
    5: Kind("ForgoCredit", CONTROL),
    6: Kind("PromiseRead", CONTROL),
    7: Kind("PromiseWrite", CONTROL),
}

MOST: Final = 0xFFFFFFFFFFFFFFFF  # 2**64 - 1: the largest id, amount and credit
WORD: Final = 0x10000000000000000  # 2**64
# Plain ints, since comparing with an i64 would narrow the other side:
TOP: Final = 0x7FFFFFFFFFFFFFFF  # 2**63 - 1
USUAL: Final = 0x1000000000000000  # 2**60: anything below is compared without allocating
BIAS: Final[i64] = 63  # VarGt62U64 carries the id less 63: the six bits of the header end at 62
LEAST: Final[i64] = -HUGE - 1


def writer_of(number: i64) -> i64:
    """The side that writes a stream: the dialer (proactive) the odd ids, the acceptor the even."""
    return 1 - (number & 1)


def counts_from_one(kind: i64) -> bool:
    """Is the packet's number a VarNonZeroU64? StopRead, StopWrite and Oops may say 0."""
    return kind != STOP_READ and kind != STOP_WRITE and kind != OOPS


def add_bias(value: i64) -> i64:
    """From the 64 bits of a VarGt62U64 to those of the id; the caller has excluded overflow."""
    if value > HUGE - BIAS:
        return LEAST + (BIAS - 1 - (HUGE - value))
    return value + BIAS


def take_bias(number: i64) -> i64:
    """From the 64 bits of an id above 62 to those of its VarGt62U64."""
    if number < LEAST + BIAS:
        return HUGE - (BIAS - 1 - (number - LEAST))
    return number - BIAS


def put_number(out: BytesWriter, number: int) -> None:
    """A number from 0 to 2**64-1 as VarU64, shortest form."""
    if number >= USUAL and number > TOP:
        number -= WORD
    put_varu64(out, i64(number))


def key_of(number: int) -> int:
    """The key of the stream with this id (0 to 2**64-1)."""
    if number < 0 or number > MOST:
        raise ValueError(f"a Minmux stream id is 0 to 2**64-1, not {number}")
    return number - WORD if number > TOP else number


# --- packets for `Endpoint.put`, by the id of their stream


def give_credit(number: int, amount: int) -> Frame:
    """Allow the writer `amount` more items."""
    return Frame(GIVE_CREDIT, key_of(number), b"", amount)


def write(number: int, octets: bytes, amount: int) -> Frame:
    """Write `amount` items, encoded one after the other in `octets`; or the last item, amount 1."""
    return Frame(WRITE, key_of(number), octets, amount)


def stop_read(number: int, amount: int = 0) -> Frame:
    """Announce that at most `amount` more credit will be given."""
    return Frame(STOP_READ, key_of(number), b"", amount)


def stop_write(number: int, amount: int = 0) -> Frame:
    """Announce that at most `amount` more items will be written."""
    return Frame(STOP_WRITE, key_of(number), b"", amount)


def forgo_credit(number: int, amount: int) -> Frame:
    """Give up credit that was not used."""
    return Frame(FORGO_CREDIT, key_of(number), b"", amount)


def oops(number: int, maximum: int = 0) -> Frame:
    """Ask the writer to keep at most `maximum` of its credit."""
    return Frame(OOPS, key_of(number), b"", maximum)


def promise_read(number: int, amount: int) -> Frame:
    """Promise that at least `amount` more credit will be given some day."""
    return Frame(PROMISE_READ, key_of(number), b"", amount)


def promise_write(number: int, amount: int) -> Frame:
    """Promise that at least `amount` more items will be written, given the credit."""
    return Frame(PROMISE_WRITE, key_of(number), b"", amount)
