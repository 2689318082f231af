"""AEAD ciphers by suite, from the optional package `cryptography`."""

from __future__ import annotations

from polymux.analysis.tls.records import OpenInto
from polymux.analysis.tls.suites import CCM, CCM_8, CHACHA, Suite
from polymux.core.errors import MissingExtra


def tag_error() -> type[Exception]:
    """The exception that an `OpenInto` raises if the tag does not fit.

    Raises:
        MissingExtra: `cryptography` is not installed, or too old.
    """
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtra("tls", "opening TLS") from None
    if not hasattr(AESGCM, "decrypt_into"):
        raise MissingExtra("tls", "opening TLS")
    return InvalidTag


def make_cipher(suite: Suite, key: bytes) -> OpenInto:
    """The function that opens records of a suite with this key; `tag_error` was called before."""
    from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305

    if suite.cipher == CHACHA:
        return ChaCha20Poly1305(key).decrypt_into
    if suite.cipher in (CCM, CCM_8):
        return AESCCM(key, suite.tag_bytes).decrypt_into
    return AESGCM(key).decrypt_into
