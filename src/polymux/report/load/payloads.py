"""Payload in the report: none, a hash, the first bytes, or all of it.

The default is none, because reports are shared and payload may be confidential.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from polymux.analysis.schema.tables import SIDES
from polymux.report.load.frame_selection import KEY_STRIDE, frame_keys
from polymux.report.load.tables import ReportError, Tables
from polymux.report.load.top_rows import index_in

_BATCH_ROWS: Final = 512  # content rows can be large
_MAX_FRAME_BYTES: Final = 4096  # of one frame, even with `full`
_HASH_DIGITS: Final = 16  # enough to distinguish frames


@dataclass(frozen=True, slots=True)
class PayloadOption:
    """A parsed `payload` option: `none`, `hash`, `head:N` or `full`; `max_bytes` per frame."""

    mode: str
    max_bytes: int

    @classmethod
    def parse(cls, text: str) -> PayloadOption:
        """Parse the option; ReportError if it is invalid."""
        if text == "none":
            return cls("none", 0)
        if text == "hash":
            return cls("hash", 0)
        if text == "full":
            return cls("full", _MAX_FRAME_BYTES)
        word, _, number = text.partition(":")
        if (
            word == "head"
            and number.isascii()
            and number.isdigit()
            and 0 < int(number) <= _MAX_FRAME_BYTES
        ):
            return cls("head", int(number))
        raise ReportError(
            f"payload {text!r}: give none, hash, head:N (N from 1 to {_MAX_FRAME_BYTES}) or full"
        )

    def to_text(self, data: bytes) -> str:
        """A frame's content as the report shows it, in hexadecimal."""
        if self.mode == "hash":
            return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]
        return data[: self.max_bytes].hex()


def load_payloads(
    tables: Tables,
    ids: list[str],
    wanted: set[tuple[int, str, int]],
    option: PayloadOption,
    max_chars: int,
) -> dict[tuple[int, str, int], str]:
    """The content of the `wanted` frames (session, sender, frame index), up to `max_chars`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shown: dict[tuple[int, str, int], str] = {}
    if option.mode == "none" or not wanted:
        return shown
    keys = pa.array(
        sorted((g * 2 + SIDES.index(side)) * KEY_STRIDE + n for g, side, n in wanted), pa.int64()
    )
    columns = ("session_id", "sender", "frame_index", "data")
    for batch in tables.batches("content", columns, rows=_BATCH_ROWS):
        session = index_in(batch["session_id"], ids)
        side = index_in(batch["sender"], SIDES)
        key = frame_keys(session, side, batch["frame_index"])
        mask = pc.is_in(key, value_set=keys)
        for code, data in zip(
            key.filter(mask).to_pylist(), batch["data"].filter(mask).to_pylist(), strict=True
        ):
            text = option.to_text(data or b"")
            max_chars -= len(text)
            if max_chars < 0:
                return shown
            group, half = divmod(code // KEY_STRIDE, 2)
            shown[group, SIDES[half], code % KEY_STRIDE] = text
    return shown
