"""TLS contexts for the recording proxy and the collector: server and client side."""

from __future__ import annotations

import os
import ssl
import stat
from typing import NoReturn

from polymux.capture.io.paths import AnyPath
from polymux.core.errors import PolymuxError
from polymux.live.errors import describe_os_error

GROUP_AND_OTHERS_MODE = stat.S_IRWXG | stat.S_IRWXO


class BadCertificate(PolymuxError):
    """A certificate, key or CA file cannot be used; the message has path and reason."""


def server_context(
    cert: AnyPath,
    key: AnyPath | None = None,
    client_ca: AnyPath | None = None,
    crl: AnyPath | None = None,
) -> ssl.SSLContext:
    """Return a server context for TLS 1.2 or later.

    Args:
        cert: Certificate chain (PEM).
        key: Private key, readable only by its owner (mode 0600); None if it is in `cert`.
        client_ca: CA file; clients must then present a certificate signed by one of these CAs.
        crl: Revocation lists (PEM), one of each authority that signs clients; it is read once. A
            client whose certificate is on it, or whose authority has no current list, is refused.

    Raises:
        BadCertificate: A file cannot be used, or other users have access to the key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, cert, key)
    if client_ca is not None:
        load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    if crl is not None:
        load_revocations(context, crl)
    return context


def client_context(
    ca: AnyPath | None = None,
    *,
    insecure: bool = False,
    cert: AnyPath | None = None,
    key: AnyPath | None = None,
) -> ssl.SSLContext:
    """Return a client context for TLS 1.2 or later.

    Args:
        ca: CA file to verify the server with; None for the CAs of the system.
        insecure: Verify neither certificate nor host name. The caller should note it in the
            capture.
        cert: Client certificate chain (PEM), for servers that request one.
        key: Its private key; None if it is in `cert`.

    Raises:
        BadCertificate: A file cannot be used, or other users have access to the key.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        load_authorities(context, ca)
    if cert is not None:
        load_certificate(context, cert, key)
    elif key is not None:
        raise BadCertificate(f"{key}: a private key without a certificate to present")
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_authorities(context: ssl.SSLContext, ca: AnyPath) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as problem:
        raise BadCertificate(
            f"{ca}: no CA certificates can be read from it: {describe_os_error(problem)}"
        ) from None


def load_revocations(context: ssl.SSLContext, crl: AnyPath) -> None:
    """Load revocation lists, and refuse certificates that are on them."""
    before = context.cert_store_stats()["crl"]
    try:
        context.load_verify_locations(cafile=crl)
        problem = "" if context.cert_store_stats()["crl"] > before else "it has none"
    except OSError as failure:
        problem = describe_os_error(failure)
    if problem:
        raise BadCertificate(f"{crl}: no revocation list can be read from it: {problem}")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def load_certificate(context: ssl.SSLContext, cert: AnyPath, key: AnyPath | None) -> None:
    """Load a certificate and its key, which may be in the same file."""
    check_key_permissions(key or cert)

    def refuse() -> NoReturn:
        # By default OpenSSL would prompt on the terminal, or block without one.
        raise BadCertificate(f"{key or cert}: the key is encrypted; give one that is not")

    try:
        context.load_cert_chain(cert, key, password=refuse)
    except OSError as problem:
        if key is None and not has_private_key(cert):
            raise BadCertificate(
                f"{cert}: has no private key; name the file that has it (--key)"
            ) from None
        names = f"{cert}" if key is None else f"{cert} with the key {key}"
        raise BadCertificate(f"{names}: cannot be used: {describe_os_error(problem)}") from None


def check_key_permissions(path: AnyPath) -> None:
    """Raise BadCertificate for a private key that other users have access to."""
    secret = has_private_key(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if secret and mode & GROUP_AND_OTHERS_MODE:
        raise BadCertificate(
            f"{path}: other users have access to this private key (mode {mode:04o}): chmod 600 it, "
            "and replace the key if it may have been read"
        )


def has_private_key(path: AnyPath) -> bool:
    """Return whether a PEM file contains a private key.

    Raises:
        BadCertificate: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return b"PRIVATE KEY" in file.read(1 << 20)
    except OSError as problem:
        raise BadCertificate(f"{path}: cannot be read: {describe_os_error(problem)}") from None
