"""Lists to Arrow arrays without importing pandas.

`pyarrow.array` and `pyarrow.scalar` import pandas, where it is installed, to check their argument:
a third of a second and 50 MB in every command and every worker. The functions here do not.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

from polymux.core.errors import MissingExtra

try:
    import pyarrow as pa
except ImportError:
    raise MissingExtra("captures", "analysing captures") from None

SMALL_ARRAY_LENGTH: Final = 64  # up to this length a Python loop is faster than a pyarrow call
# Type codes of the module `array`: signed, unsigned.
_TYPECODES_BY_BIT_WIDTH: Final = {32: ("i", "I"), 64: ("q", "Q")}


def make_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """An array of text, bytes, integers, timestamps (as integers), or lists of those; None is null.

    Raises:
        OverflowError: a number is too large for the type, as with `pyarrow.array`.
    """
    rows = len(values)
    valid = _validity_buffer(values)
    if pa.types.is_decimal(data_type):
        with contextlib.suppress(OverflowError):  # most decimals fit 64 bits
            return make_array(values, pa.uint64()).cast(data_type)
        return pa.Array.from_buffers(
            data_type, rows, [valid, _decimal128_buffer(values, 10**data_type.precision)]
        )
    if pa.types.is_list(data_type):
        lists = [items if items is not None else () for items in values]
        within = make_array([value for items in lists for value in items], data_type.value_type)
        buffers = [valid, _offsets(map(len, lists))]
        return pa.Array.from_buffers(data_type, rows, buffers, children=[within])
    if pa.types.is_string(data_type):
        texts = [text if text is not None else "" for text in values]
        if all(map(str.isascii, texts)):
            buffers = [valid, _offsets(map(len, texts)), pa.py_buffer("".join(texts).encode())]
        else:
            buffers = [valid, *_offsets_and_data([text.encode() for text in texts])]
    elif pa.types.is_binary(data_type):
        buffers = [
            valid,
            *_offsets_and_data([part if part is not None else b"" for part in values]),
        ]
    else:
        code = _TYPECODES_BY_BIT_WIDTH[data_type.bit_width][pa.types.is_unsigned_integer(data_type)]
        if valid is not None:
            values = [number if number is not None else 0 for number in values]
        buffers = [valid, pa.py_buffer(array(code, values))]
    return pa.Array.from_buffers(data_type, rows, buffers)


def make_scalar(value: Any, data_type: pa.DataType) -> pa.Scalar:
    """A scalar, for comparison with a column."""
    return make_array([value], data_type)[0]


def _offsets_and_data(parts: Sequence[bytes]) -> tuple[pa.Buffer, pa.Buffer]:
    return _offsets(map(len, parts)), pa.py_buffer(b"".join(parts))


def _offsets(sizes: Iterable[int]) -> pa.Buffer:
    """The offsets buffer of values with these sizes."""
    return pa.py_buffer(array("i", accumulate(sizes, initial=0)))


def _decimal128_buffer(numbers: Sequence[int | None], limit: int) -> pa.Buffer:
    """Numbers as 128-bit integers; OverflowError if one is not below `limit`."""
    wide = bytearray()
    for number in numbers:
        if number is not None and abs(number) >= limit:
            raise OverflowError(f"{number} has more digits than the column")
        wide += (number or 0).to_bytes(16, sys.byteorder, signed=True)
    return pa.py_buffer(bytes(wide))


def _validity_buffer(values: Sequence[Any]) -> pa.Buffer | None:
    """The validity bitmap; None if no value is null."""
    if None not in values:
        return None
    if len(values) <= SMALL_ARRAY_LENGTH:
        few = 0
        for n, value in enumerate(values):
            if value is not None:
                few |= 1 << n
        return pa.py_buffer(few.to_bytes((len(values) + 7) // 8, "little"))
    valid = pa.py_buffer(bytes(value is not None for value in values))
    bits = pa.Array.from_buffers(pa.uint8(), len(values), [None, valid]).cast(pa.bool_())
    return bits.buffers()[1]
