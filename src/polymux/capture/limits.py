"""Limits for reading captures. Each is checked before memory or time is committed."""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Limits on what a capture file can make the reader do; all must be positive.

    An error caused by a limit names it.
    """

    max_block_bytes: int = 16 * MIB
    """Bytes of a pcapng block; libpcap and Wireshark reject larger ones too."""
    max_packet_bytes: int = 256 * 1024
    """Bytes of a packet; the default is the largest snap length in use. At most 1 MiB - 1."""
    max_secrets_bytes: int = 64 * MIB
    """Bytes of all TLS secrets in a file; further ones are ignored."""
    max_interfaces: int = 65536
    """Interfaces described in a section."""
    max_flows: int = 1_000_000
    """TCP flows in a file; packets of further flows are counted as other."""
    max_decompressed_bytes: int = 64 * GIB
    """Decompressed bytes of a compressed file, and bytes of a pipe or standard input."""
    max_compression_ratio: int = 200
    """Decompressed over compressed bytes, checked beyond `ratio_check_min_bytes`."""
    ratio_check_min_bytes: int = GIB
    """Decompressed bytes up to which the compression ratio is not checked."""
    max_out_of_order_bytes: int = 4 * MIB
    """Payload bytes of a direction that are buffered behind a hole."""
    max_out_of_order_segments: int = 65536
    """Segments of a direction that are buffered behind a hole."""
    hole_timeout_ns: int = 3_000_000_000
    """Nanoseconds a hole waits for a retransmission before it becomes a gap."""
    read_window_bytes: int = MIB // 2
    """Bytes of a file scanned at a time; a window that fits the processor's cache is fastest."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"limit {field.name} must be positive")
        if self.max_packet_bytes >= MIB:
            raise ValueError(
                f"limit max_packet_bytes={self.max_packet_bytes} must be under {MIB}: "
                "a packet reference has 20 bits for the size"
            )
