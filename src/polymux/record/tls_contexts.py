"""TLS at both ends of the tap: what is listened with, and how the upstream is verified."""

from __future__ import annotations

import os
import ssl
import stat
from typing import NoReturn

from polymux.aio.errors import describe_os_error
from polymux.capture.io.paths import AnyPath
from polymux.core.errors import PolymuxError

GROUP_AND_OTHERS_MODE = stat.S_IRWXG | stat.S_IRWXO


class BadCertificate(PolymuxError):
    """A certificate, key or list of authorities that cannot be used; the text says why."""


def server_context(
    cert: AnyPath, key: AnyPath | None = None, client_ca: AnyPath | None = None
) -> ssl.SSLContext:
    """A context to listen with, TLS 1.2 or later.

    With `client_ca`, whoever connects must show a certificate that these authorities signed. The
    private key must be its owner's alone: mode 0600.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, cert, key)
    if client_ca is not None:
        load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: AnyPath | None = None,
    *,
    insecure: bool = False,
    cert: AnyPath | None = None,
    key: AnyPath | None = None,
) -> ssl.SSLContext:
    """A context to connect with, TLS 1.2 or later; verifies by the system's authorities or `ca`.

    `insecure` verifies nothing: whoever uses it should say so in the capture. `cert` and `key` are
    shown to an upstream that asks for them.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        load_authorities(context, ca)
    if cert is not None:
        load_certificate(context, cert, key)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_authorities(context: ssl.SSLContext, ca: AnyPath) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as problem:
        raise BadCertificate(
            f"{ca}: no authorities can be read from it: {describe_os_error(problem)}"
        ) from None


def load_certificate(context: ssl.SSLContext, cert: AnyPath, key: AnyPath | None) -> None:
    """Load a certificate and its key, which may stand in one file."""
    check_key_permissions(key or cert)

    def refuse() -> NoReturn:
        # Without this OpenSSL would ask on the terminal, or wait for ever where there is none.
        raise BadCertificate(f"{key or cert}: the key is encrypted; give one that is not")

    try:
        context.load_cert_chain(cert, key, password=refuse)
    except OSError as problem:
        names = f"{cert}" if key is None else f"{cert} with the key {key}"
        raise BadCertificate(f"{names}: cannot be used: {describe_os_error(problem)}") from None


def check_key_permissions(path: AnyPath) -> None:
    """Refuse a private key that others may read."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        with open(path, "rb") as file:
            secret = b"PRIVATE KEY" in file.read(1 << 20)
    except OSError as problem:
        raise BadCertificate(f"{path}: cannot be read: {describe_os_error(problem)}") from None
    if secret and mode & GROUP_AND_OTHERS_MODE:
        raise BadCertificate(
            f"{path}: this private key is open to others (mode {mode:04o}): chmod 600 it, and "
            "replace the key if somebody may have read it"
        )
