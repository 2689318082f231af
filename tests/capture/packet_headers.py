"""The synthesised headers of a packet, without the packet block."""

from __future__ import annotations

from librt.strings import BytesWriter

from polymux.capture.synthesis.packet_builder import ADVERTISED_WINDOW, HeaderTemplate, payload_sum


def headers(
    maker: HeaderTemplate,
    seq: int,
    ack: int,
    flags: int,
    payload: bytes,
    window: int = ADVERTISED_WINDOW,
) -> bytes:
    out = BytesWriter()
    words = payload_sum(payload, 0, len(payload))
    maker.write_headers(out, seq, ack, flags, len(payload), words, window)
    return out.getvalue()
