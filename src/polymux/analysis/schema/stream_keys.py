"""Parsing of stream keys (`d1`, `a2`, `d0.2`, `s0`)."""

from __future__ import annotations

import re

from polymux.core.errors import PolymuxError

_STREAM_KEY = re.compile(r"([das])(\d{1,20})(?:\.(\d{1,18}))?")
_OPENERS = {"d": 0, "a": 1, "s": 2}


class BadStreamKey(PolymuxError):
    """The text is not a stream key."""


def parse_stream_key(key: str) -> tuple[int, int, int]:
    """Parse a stream key into (opener, stream id as a signed 64-bit pattern, incarnation).

    Raises:
        BadStreamKey: the text is not a stream key; the message says how to write one.
    """
    match = _STREAM_KEY.fullmatch(key)
    stream_id = int(match[2]) if match else 0
    if match is None or stream_id >= 2**64:
        raise BadStreamKey(
            f"{key!r} is not a stream key; write the opener's letter and the id as `polymux ls` "
            "shows them: d1, a2, d0.2, s0"
        )
    if stream_id >= 2**63:
        stream_id -= 2**64
    return _OPENERS[match[1]], stream_id, int(match[3] or 1)
