"""The limits of reading captures. Each stands where memory or time is about to be committed."""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """What a capture file may ask of us. Every limit is named in the error it causes."""

    max_block_bytes: int = 16 * MIB
    """Bytes of a pcapng block; libpcap and Wireshark refuse larger ones too."""
    max_packet_bytes: int = 256 * 1024
    """Bytes of a packet; the largest snap length in use. At most 1 MiB - 1."""
    max_interfaces: int = 65536
    """Interfaces described in a section."""
    max_flows: int = 1_000_000
    """TCP flows in a file; packets of further flows are counted as other."""
    max_decompressed_bytes: int = 64 * GIB
    """Bytes a compressed file, a pipe or stdin may become."""
    max_compression_ratio: int = 200
    """Inflated over compressed bytes, looked at once `ratio_from` bytes came out."""
    ratio_check_min_bytes: int = GIB
    """Below this size no compression is called a bomb."""
    max_out_of_order_bytes: int = 4 * MIB
    """Bytes of a direction held back behind a hole."""
    max_out_of_order_segments: int = 65536
    """Segments of a direction held back behind a hole."""
    hole_timeout_ns: int = 3_000_000_000
    """How long a hole may wait for a retransmission before it is a gap."""
    read_window_bytes: int = MIB // 2
    """Bytes of a file looked at in one go; what fits the processor's cache is fastest."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"limit {field.name} must be positive")
        if self.max_packet_bytes >= MIB:
            raise ValueError(
                f"limit max_packet_bytes={self.max_packet_bytes} must be under {MIB}: references count so far"
            )
