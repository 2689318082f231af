"""`polymux keys`: the TLS secrets in captures: extract, strip or add them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from polymux.cli.support.output import plural, warn
from polymux.core.errors import CaptureError

if TYPE_CHECKING:
    from polymux.analysis.tls.key_log import KeyLog

MAX_HELLO_BYTES = 16 * 1024  # of a session, in which its ClientHello is looked for


@click.command(
    epilog="Example: polymux keys talk.pcapng --inject keys.log -o talk-with-keys.pcapng",
    no_args_is_help=True,
)
@click.argument("capture")
@click.option(
    "-o", "--out", help="Write the secrets to this new key log; with --inject, a capture."
)
@click.option("--strip", "stripped", help="Write the capture without its secrets to this new file.")
@click.option(
    "--inject", "key_files", multiple=True, metavar="FILE|DIR|GLOB",
    help="Add the secrets of the capture's sessions from these key logs, in the new capture --out.",
)  # fmt: skip
def keys(capture: str, out: str | None, stripped: str | None, key_files: tuple[str, ...]) -> None:
    """Count, extract, strip or add the TLS secrets of CAPTURE, a pcapng file.

    CAPTURE is never changed, and a file that exists is never replaced. New files have mode 0600:
    secrets open the sessions for every reader. Without an option the secrets are only counted.
    """
    if stripped is not None and (out is not None or key_files):
        raise click.UsageError("--strip: writes one file; -o and --inject are for another run")
    if key_files and out is None:
        raise click.UsageError("--inject: name the new capture with -o")
    if stripped is not None:
        from polymux.capture.pcapng.secrets_file import strip_secrets

        count = strip_secrets(capture, stripped)
        warn(f"{stripped}: written, {plural(count, 'secrets block')} left out")
    elif key_files and out is not None:
        inject(capture, key_files, out)
    else:
        extract(capture, out)


def extract(capture: str, out: str | None) -> None:
    """Count the secrets of a capture and, with `out`, write them to a new key log.

    Raises:
        CaptureError: The capture cannot be read, or `out` cannot be written.
    """
    from polymux.analysis.tls.key_log import KeyLog
    from polymux.capture import index_file
    from polymux.capture.packets.file_summary import UNREADABLE

    index = index_file(capture)
    if index.summary.status == UNREADABLE:
        raise CaptureError(index.summary.error or "cannot be read", capture)
    found = KeyLog().merged(index.secrets)
    sessions = len(found.client_randoms())
    warn(f"{capture}: {plural(len(found), 'secret')} of {plural(sessions, 'session')}")
    if out is not None:
        write_private(out, found.to_text())
        warn(f"{out}: written")


def inject(capture: str, key_files: tuple[str, ...], out: str) -> None:
    """Write a copy of a capture with the secrets of its sessions.

    Raises:
        click.UsageError: The key logs have no secret of any of its sessions.
        CaptureError: The capture cannot be read, or `out` cannot be written.
        BadKeyLog: A key log cannot be used.
    """
    from polymux.analysis.tls.key_log import read_key_logs
    from polymux.capture.pcapng.secrets_file import inject_secrets

    own = secrets_of_sessions(capture, read_key_logs(key_files))
    sessions = len(own.client_randoms())
    if not sessions:
        raise click.UsageError(
            "--inject: these key logs have no secret of any TLS session in the capture"
        )
    inject_secrets(capture, own.to_text(), out)
    warn(f"{out}: written, with the secrets of {plural(sessions, 'session')}")


def secrets_of_sessions(capture: str, keys: KeyLog) -> KeyLog:
    """Those secrets that belong to sessions of the capture."""
    from polymux.analysis.detection.sample import take_sample
    from polymux.analysis.tls.session import read_client_hello
    from polymux.capture import read_sessions

    randoms = set()
    with read_sessions([capture]) as reader:
        for session in reader:
            hello = read_client_hello(take_sample(session, MAX_HELLO_BYTES).head(0))
            if hello is not None:
                randoms.add(hello.random)
    return keys.only(randoms)


def write_private(path: str, data: bytes) -> None:
    """Write a new file with mode 0600. Raise CaptureError if it exists or cannot be written."""
    from polymux.capture.io.paths import PRIVATE_FILE

    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    except FileExistsError:
        raise CaptureError("exists already; choose another name", path) from None
    except OSError as problem:
        raise CaptureError(f"cannot be written: {problem.strerror}", path) from None
    with os.fdopen(fd, "wb") as file:
        file.write(data)
