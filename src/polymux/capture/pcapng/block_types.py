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
DECRYPTION_SECRETS: Final[i64] = 10
TLS_KEY_LOG: Final[i64] = 0x544C534B  # the type of secrets that is a TLS key log

BYTE_ORDER_MAGIC: Final[i64] = 0x1A2B3C4D  # in a section header, in the byte order of the section

# The first four bytes of a capture: pcapng, and pcap in both byte orders and resolutions.
MAGICS = (
    b"\x0a\x0d\x0d\x0a",
    b"\xa1\xb2\xc3\xd4",
    b"\xd4\xc3\xb2\xa1",
    b"\xa1\xb2\x3c\x4d",
    b"\x4d\x3c\xb2\xa1",
)
NOT_A_CAPTURE = "not a capture: neither pcapng nor pcap"
