"""The TLS options of commands that listen, and checks that no option of TLS is left without effect.

An option that protects a connection is refused where it cannot: on a URL without TLS it would be
ignored, and the command would run in plain text.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import click

from polymux.aio.peer_identity import AllowedPeers
from polymux.record import tls_contexts as tls

Command = TypeVar("Command", bound=Callable[..., object])

SECURE_SCHEMES = ("tls:", "wss:")


def listening_tls_options(command: Command) -> Command:
    """Add --cert, --key, --client-ca, --crl and --allow-client."""
    for add in (
        click.option(
            "--allow-client",
            "allow",
            multiple=True,
            metavar="NAME|CIDR",
            help="Accept only these clients; repeatable: a name in their certificate (with "
            "--client-ca), an address, or a network such as 192.0.2.0/24.",
        ),
        click.option(
            "--crl",
            help="Revocation lists (PEM) of --client-ca, to refuse revoked certificates.",
        ),
        click.option(
            "--client-ca", help="Authorities (PEM) that must have signed the dialers' certificates."
        ),
        click.option("--key", help="Private key of --cert (PEM), mode 0600."),
        click.option("--cert", help="Certificate chain (PEM) to listen with on tls:// and wss://."),
    ):
        command = add(command)
    return command


def listening_context(
    urls: Iterable[str],
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
) -> ssl.SSLContext | None:
    """Return the context to listen with; None if all URLs are without TLS.

    Raises:
        click.UsageError: A URL with TLS has no certificate, or an option has no effect.
        BadCertificate: A file cannot be used.
    """
    urls = list(urls)
    check_effect(urls, {"--cert": cert, "--key": key, "--client-ca": client_ca, "--crl": crl})
    secure = [url for url in urls if is_secure(url)]
    if not secure:
        return None
    if cert is None:
        raise click.UsageError(f"{secure[0]}: needs a certificate to listen with: --cert and --key")
    if crl is not None and client_ca is None:
        raise click.UsageError(
            "--crl has no effect without --client-ca: it is about client certificates"
        )
    return tls.server_context(cert, key, client_ca, crl)


def allowed_clients(
    allow: tuple[str, ...], urls: Iterable[str], client_ca: str | None
) -> tuple[str, ...] | None:
    """Return the clients of --allow-client; None if the option was not given: all.

    Raises:
        click.UsageError: An entry is malformed, or has no effect on one of the URLs.
    """
    if not allow:
        return None
    try:
        entries = AllowedPeers(allow)
    except ValueError as problem:
        raise click.UsageError(f"--allow-client: {problem}") from None
    plain = [url for url in urls if not is_secure(url)]
    if entries.names and (client_ca is None or plain):
        names = ", ".join(sorted(entries.names))
        raise click.UsageError(
            f"--allow-client {names}: only certificates have names: "
            + (f"{plain[0]} has no TLS" if plain else "ask for them with --client-ca")
        )
    if any(url.startswith(("unix:", "stdio:")) for url in urls) and not entries.names:
        raise click.UsageError("--allow-client: Unix sockets and stdio: have no client addresses")
    return allow


def check_effect(urls: Iterable[str], options: Mapping[str, object]) -> None:
    """Refuse options of TLS if no URL has TLS. Options that are None or False were not given.

    Raises:
        click.UsageError: An option was given and has no effect.
    """
    urls = list(urls)
    given = [name for name, value in options.items() if value]
    if given and not any(map(is_secure, urls)):
        verb = "has" if len(given) == 1 else "have"
        raise click.UsageError(
            f"{', '.join(given)} {verb} no effect without TLS, and {', '.join(urls)} has none: "
            "use tls:// or wss://, or leave the option out"
        )


def is_secure(url: str) -> bool:
    return url.startswith(SECURE_SCHEMES)
