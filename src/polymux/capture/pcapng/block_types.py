# mypyc: compiled
"""Block types of pcapng, as far as polymux reads or writes them."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

SECTION: Final[i64] = 0x0A0D0D0A
INTERFACE: Final[i64] = 1
OLD_PACKET: Final[i64] = 2
SIMPLE_PACKET: Final[i64] = 3
INTERFACE_STATISTICS: Final[i64] = 5
ENHANCED_PACKET: Final[i64] = 6

BYTE_ORDER_MAGIC: Final[i64] = 0x1A2B3C4D  # in a section header, in the byte order of the section
