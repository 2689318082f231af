# mypyc: compiled
"""The eight packets of Minmux: their kinds, the numbers they carry, and functions to make them.

A kind is `group * 2`, plus 1 if its sender writes the stream. The group is the two high bits of the
header byte; the parity of the id tells which side writes. A stream's key is its id as a signed
64-bit integer.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import CONTENT, CONTROL, GRANTS, Frame, FrameKind
from polymux.core.varint import I64_MAX, put_varu64

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
    0: FrameKind("GiveCredit", GRANTS),
    1: FrameKind("Write", CONTENT),
    2: FrameKind("StopRead", CONTROL),
    3: FrameKind("StopWrite", CONTROL),
    4: FrameKind("Oops", CONTROL),
    5: FrameKind("ForgoCredit", CONTROL),
    6: FrameKind("PromiseRead", CONTROL),
    7: FrameKind("PromiseWrite", CONTROL),
}

U64_MAX: Final = 0xFFFFFFFFFFFFFFFF  # 2**64 - 1: the largest id, amount and credit
U64_MODULUS: Final = 0x10000000000000000  # 2**64
# Plain ints, since comparing with an i64 would narrow the other side:
I64_MAX_INT: Final = 0x7FFFFFFFFFFFFFFF  # 2**63 - 1
FAST_COMPARE_BELOW: Final = 0x1000000000000000  # 2**60: compared without allocating below this
ID_BIAS: Final[i64] = 63  # a VarGt62U64 is the id - 63: ids up to 62 fit the header byte
I64_MIN: Final[i64] = -I64_MAX - 1


def writer_of(stream_id: i64) -> i64:
    """Return the side that writes a stream: the dialer (proactive) odd ids, the acceptor even."""
    return 1 - (stream_id & 1)


def has_nonzero_amount(kind: i64) -> bool:
    """Return whether the packet's number is a VarNonZeroU64 (not StopRead, StopWrite, Oops)."""
    return kind != STOP_READ and kind != STOP_WRITE and kind != OOPS


def add_id_bias(value: i64) -> i64:
    """Convert the 64 bits of a VarGt62U64 to those of the id. The caller excludes overflow."""
    if value > I64_MAX - ID_BIAS:
        return I64_MIN + (ID_BIAS - 1 - (I64_MAX - value))
    return value + ID_BIAS


def remove_id_bias(stream_id: i64) -> i64:
    """Convert the 64 bits of an id above 62 to those of its VarGt62U64."""
    if stream_id < I64_MIN + ID_BIAS:
        return I64_MAX - (ID_BIAS - 1 - (stream_id - I64_MIN))
    return stream_id - ID_BIAS


def put_u64(out: BytesWriter, number: int) -> None:
    """Append a number from 0 to 2**64-1 as VarU64 in shortest form."""
    if number >= FAST_COMPARE_BELOW and number > I64_MAX_INT:
        number -= U64_MODULUS
    put_varu64(out, i64(number))


def key_of(stream_id: int) -> int:
    """Return the key of the stream with this id.

    Raises:
        ValueError: the id is not 0 to 2**64-1.
    """
    if stream_id < 0 or stream_id > U64_MAX:
        raise ValueError(f"a Minmux stream id is 0 to 2**64-1, not {stream_id}")
    return stream_id - U64_MODULUS if stream_id > I64_MAX_INT else stream_id


# Packets for `Endpoint.send_frame`, by stream id


def give_credit(stream_id: int, amount: int) -> Frame:
    """Allow the writer `amount` more items."""
    return Frame(GIVE_CREDIT, key_of(stream_id), b"", amount)


def write(stream_id: int, data: bytes, amount: int) -> Frame:
    """Write `amount` items, which `data` holds encoded in sequence; or the last item, amount 1."""
    return Frame(WRITE, key_of(stream_id), data, amount)


def stop_read(stream_id: int, amount: int = 0) -> Frame:
    """Announce that at most `amount` more credit will be given."""
    return Frame(STOP_READ, key_of(stream_id), b"", amount)


def stop_write(stream_id: int, amount: int = 0) -> Frame:
    """Announce that at most `amount` more items will be written."""
    return Frame(STOP_WRITE, key_of(stream_id), b"", amount)


def forgo_credit(stream_id: int, amount: int) -> Frame:
    """Forgo `amount` of unused credit."""
    return Frame(FORGO_CREDIT, key_of(stream_id), b"", amount)


def oops(stream_id: int, maximum: int = 0) -> Frame:
    """Ask the writer to forgo its credit above `maximum`."""
    return Frame(OOPS, key_of(stream_id), b"", maximum)


def promise_read(stream_id: int, amount: int) -> Frame:
    """Promise that at least `amount` more credit will be given."""
    return Frame(PROMISE_READ, key_of(stream_id), b"", amount)


def promise_write(stream_id: int, amount: int) -> Frame:
    """Promise that at least `amount` more items will be written if there is credit."""
    return Frame(PROMISE_WRITE, key_of(stream_id), b"", amount)
