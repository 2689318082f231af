"""Encoders of the Nerdbank model peers, for v1, v2 and v3."""

from random import Random

OFFER, ACCEPTED, CONTENT, COMPLETED, TERMINATED, PROCESSED, UNREAD, ADJUST, GROW = range(9)
CODES = {
    "offer": OFFER, "accept": ACCEPTED, "content": CONTENT, "complete": COMPLETED,
    "terminate": TERMINATED, "processed": PROCESSED, "unread": UNREAD, "adjust": ADJUST,
    "grow": GROW,
}  # fmt: skip


def encode_int(value: int, rng: Random | None = None) -> bytes:
    """Return a msgpack integer; with `rng`, sometimes in a longer form than necessary."""
    if value < 0:
        return bytes([256 + value])
    forms = [(0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)]
    fitting = [(code, size) for code, size in forms if value < 1 << 8 * size]
    longer = rng is not None and rng.random() < 0.05
    if value < 128 and not longer:
        return bytes([value])
    code, size = fitting[0] if not longer or rng is None else rng.choice(fitting)
    return bytes([code]) + value.to_bytes(size, "big")


def encode_bin(data: bytes) -> bytes:
    size = len(data)
    if size < 256:
        return b"\xc4" + bytes([size]) + data
    if size < 65536:
        return b"\xc5" + size.to_bytes(2, "big") + data
    return b"\xc6" + size.to_bytes(4, "big") + data


def encode_str(data: bytes) -> bytes:
    size = len(data)
    return (bytes([0xA0 + size]) if size < 32 else b"\xd9" + bytes([size])) + data


def encode_handshake(version: int, random: bytes, major: int = 2) -> bytes:
    if version == 1:
        return b"\x2f\xdf\x1d\x50" + random
    return b"\x92\x92" + bytes([major, 0]) + encode_bin(random)


def encode_frame(
    version: int, code: int, channel_id: int, source: int, payload: bytes, rng: Random | None = None
) -> bytes:
    """Return a frame. `source` (v3): offered by 1 the sender, -1 the other side, 0 neither."""
    if version == 1:
        return (
            bytes([code])
            + channel_id.to_bytes(4, "big")
            + len(payload).to_bytes(2, "big")
            + payload
        )
    elements = [encode_int(code), encode_int(channel_id, rng)] + (
        [encode_int(source)] if version == 3 else []
    )
    if payload:
        elements.append(encode_bin(payload))
    return bytes([0x90 + len(elements)]) + b"".join(elements)


def encode_payload(version: int, verb: str, amount: int, text: bytes) -> bytes:
    """Return the payload of a control frame."""
    if verb == "offer":
        if version == 1:
            return text
        return b"\x92" + encode_str(text) + encode_int(amount)
    if version == 1:
        return b""
    if verb == "terminate":
        return b"\x91" + encode_str(text) if text else b""
    if verb in ("accept", "processed", "adjust"):
        return b"\x91" + encode_int(amount)
    return b""
