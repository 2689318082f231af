"""The text key of a stream, taken apart again."""

from __future__ import annotations

import re

from polymux.core.errors import PolymuxError

_STREAM_KEY = re.compile(r"([das])(\d{1,20})(?:\.(\d{1,18}))?")
_OPENERS = {"d": 0, "a": 1, "s": 2}


class BadStreamKey(PolymuxError):
    """A text that cannot name a stream."""


def parse_stream_key(key: str) -> tuple[int, int, int]:
    """`d1`, `a2`, `d0.2`, `s0` as (opener, number as the tables' bit pattern, incarnation)."""
    found = _STREAM_KEY.fullmatch(key)
    number = int(found[2]) if found else 0
    if found is None or number >= 2**64:
        raise BadStreamKey(
            f"{key!r} names no stream; write the opener's letter and the number as `polymux ls` "
            "shows them: d1, a2, d0.2, s0"
        )
    if number >= 2**63:
        number -= 2**64
    return _OPENERS[found[1]], number, int(found[3] or 1)
