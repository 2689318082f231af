"""The key schedules of TLS 1.3 (RFC 8446, 7.1 and 7.3) and TLS 1.2 (RFC 5246, 5 and 6.3).

Only what follows from the logged secrets: traffic keys, not the secrets themselves.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from polymux.analysis.tls.suites import Suite

IV_BYTES = 12
SALT_BYTES = 4  # the part of a TLS 1.2 nonce that is not in the record


class TrafficKeys(NamedTuple):
    """Key and initialisation vector of one direction; of TLS 1.2 the vector may be a salt."""

    key: bytes
    iv: bytes


def hkdf_expand(secret: bytes, info: bytes, length: int, hash_name: str) -> bytes:
    """HKDF-Expand of RFC 5869."""
    out = block = b""
    number = 1
    while len(out) < length:
        block = hmac.digest(secret, block + info + bytes([number]), hash_name)
        out += block
        number += 1
    return out[:length]


def expand_label(secret: bytes, label: str, length: int, hash_name: str) -> bytes:
    """HKDF-Expand-Label of TLS 1.3 with an empty context."""
    name = b"tls13 " + label.encode()
    info = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
    return hkdf_expand(secret, info, length, hash_name)


def traffic_keys(secret: bytes, suite: Suite) -> TrafficKeys:
    """The keys of a TLS 1.3 traffic secret."""
    return TrafficKeys(
        expand_label(secret, "key", suite.key_bytes, suite.hash),
        expand_label(secret, "iv", IV_BYTES, suite.hash),
    )


def updated_secret(secret: bytes, suite: Suite) -> bytes:
    """The traffic secret after a KeyUpdate."""
    return expand_label(secret, "traffic upd", hashlib.new(suite.hash).digest_size, suite.hash)


def prf(secret: bytes, label: bytes, seed: bytes, length: int, hash_name: str) -> bytes:
    """The pseudorandom function of TLS 1.2."""
    seed = label + seed
    out, block = b"", seed
    while len(out) < length:
        block = hmac.digest(secret, block, hash_name)
        out += hmac.digest(secret, block + seed, hash_name)
    return out[:length]


def key_block(
    master: bytes, client_random: bytes, server_random: bytes, suite: Suite
) -> tuple[TrafficKeys, TrafficKeys]:
    """The keys of client and server in TLS 1.2."""
    size, vector = suite.key_bytes, SALT_BYTES if suite.explicit_nonce else IV_BYTES
    block = prf(
        master,
        b"key expansion",
        server_random + client_random,
        2 * (size + vector),
        suite.hash,
    )
    vectors = block[2 * size :]
    return (
        TrafficKeys(block[:size], vectors[:vector]),
        TrafficKeys(block[size : 2 * size], vectors[vector:]),
    )
