"""The TLS options of commands that listen, and checks that no option of TLS is left without effect.

An option that protects a connection is refused where it cannot: on a URL without TLS it would be
ignored, and the command would run in plain text.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import click

from polymux.core.token_exchange import MAX_TOKEN_BYTES, SharedToken
from polymux.live.errors import describe_os_error
from polymux.live.peer_identity import AllowedPeers
from polymux.record import tls_contexts as tls

Command = TypeVar("Command", bound=Callable[..., object])

SECURE_SCHEMES = ("tls:", "wss:")
LISTENING_TOKEN_HELP = (
    "File with a token that clients have to prove to know, mode 0600; on tls://, wss://, unix:// "
    "or a loopback address."
)


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


def upstream_tls_options(
    insecure_help: str = "Do not verify the upstream's certificate.",
) -> Callable[[Command], Command]:
    """Return a decorator that adds --ca, --server-name, --client-cert, --client-key, --insecure."""

    def add_options(command: Command) -> Command:
        for add in (
            click.option("--insecure", is_flag=True, help=insecure_help),
            click.option("--client-key", help="Private key of --client-cert (PEM), mode 0600."),
            click.option(
                "--client-cert", help="Certificate chain (PEM) to present to the upstream."
            ),
            click.option(
                "--server-name",
                help="The name in the upstream's certificate, if it is not its host.",
            ),
            click.option("--ca", help="Authorities (PEM) that verify the upstream's certificate."),
        ):
            command = add(command)
        return command

    return add_options


def upstream_context(
    upstream: str,
    ca: str | None,
    server_name: str | None,
    client_cert: str | None,
    client_key: str | None,
    insecure: bool,
    *,
    quiet: bool = False,
) -> ssl.SSLContext:
    """Return the context for an upstream that `upstream_tls_options` describe.

    Warns if the upstream is not verified, unless `quiet`: another process has said so.

    Raises:
        click.UsageError: An option has no effect.
        BadCertificate: A file cannot be used.
    """
    check_effect(
        [upstream],
        {
            "--ca": ca,
            "--server-name": server_name,
            "--client-cert": client_cert,
            "--client-key": client_key,
            "--insecure": insecure,
        },
    )
    if insecure and not quiet:
        click.echo("warning: the upstream's certificate is not verified", err=True)
    return tls.client_context(ca, insecure=insecure, cert=client_cert, key=client_key)


def dialing_tls_options(command: Command) -> Command:
    """Add --ca, --server-name, --cert, --key and --insecure, of a command that connects."""
    for add in (
        click.option("--insecure", is_flag=True, help="Do not verify the peer's certificate."),
        click.option("--key", help="Private key of --cert (PEM), mode 0600."),
        click.option("--cert", help="Certificate chain (PEM) to present to the peer."),
        click.option(
            "--server-name",
            help="The name in the peer's certificate, if it is not the host of URL.",
        ),
        click.option("--ca", help="Authorities (PEM) that verify the peer's certificate."),
    ):
        command = add(command)
    return command


def dialing_context(
    url: str,
    ca: str | None,
    server_name: str | None,
    cert: str | None,
    key: str | None,
    insecure: bool,
) -> ssl.SSLContext:
    """Return the context for a peer that `dialing_tls_options` describe.

    Raises:
        click.UsageError: An option has no effect.
        BadCertificate: A file cannot be used.
    """
    check_effect(
        [url],
        {
            "--ca": ca,
            "--server-name": server_name,
            "--cert": cert,
            "--key": key,
            "--insecure": insecure,
        },
    )
    if insecure:
        click.echo("warning: the peer's certificate is not verified", err=True)
    return tls.client_context(ca, insecure=insecure, cert=cert, key=key)


def unverified_note(insecure: bool) -> str:
    """Return the comment for captures of sessions with a peer that was not verified; or ""."""
    return "the peer's certificate was not verified" if insecure else ""


# The library's remedies name its arguments: in commands that connect they are options.
OPTION_OF_ARGUMENT = {
    "give a context that trusts its issuer with tls=...": "name its authority with --ca",
    "server_hostname=...": "--server-name",
    "timeout=...": "--timeout",
    "token=...": "--token-file",
}


def with_options(text: str) -> str:
    """Return an error message of the library with the options of the command as remedies."""
    for argument, option in OPTION_OF_ARGUMENT.items():
        text = text.replace(argument, option)
    return text


def token_option(text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --token-file with this help text."""
    return click.option("--token-file", metavar="FILE", help=text)


def read_token(path: str | None) -> bytes | None:
    """Return the token in a file, without the line end after it; None without a file.

    Of a pipe, such as a shell's `<(command)`, the permissions are not checked.

    Raises:
        click.UsageError: The file cannot be read, other users have access to it, or its content is
            no token.
    """
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            token = file.read(MAX_TOKEN_BYTES + len("\r\n") + 1)
    except OSError as problem:
        raise click.UsageError(
            f"--token-file {path}: cannot be read: {describe_os_error(problem)}"
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISREG(found.st_mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise click.UsageError(
            f"--token-file {path}: other users have access to this token (mode {mode:04o}): chmod "
            "600 it, and replace the token if it may have been read"
        )
    token = token.removesuffix(b"\n").removesuffix(b"\r")
    try:
        SharedToken(token)
    except ValueError as problem:
        raise click.UsageError(f"--token-file {path}: {problem}") from None
    return token


def listening_context(
    urls: Iterable[str],
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
) -> ssl.SSLContext | None:
    """Return the context to listen with; None if all URLs are without TLS.

    Raises:
        click.UsageError: A URL with TLS has no certificate, or an option has no effect. --client-ca
            says who may connect, so it has to have an effect on every URL.
        BadCertificate: A file cannot be used.
    """
    urls = list(urls)
    check_effect(urls, {"--cert": cert, "--key": key, "--client-ca": client_ca, "--crl": crl})
    plain = [url for url in urls if not is_secure(url)]
    if client_ca is not None and plain:
        raise click.UsageError(
            f"--client-ca: {', '.join(plain)} has no TLS, so clients would connect there without a "
            "certificate: use tls:// or wss:// for all, or listen there with another command"
        )
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
