"""Key logs as users name them: files, folders and globs."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.analysis.tls.ciphers import tag_error
from polymux.analysis.tls.key_log import KeyLog, read_key_logs


def read_key_option(names: str | Sequence[str]) -> KeyLog:
    """Read the key logs of an option: one name or several, each a file, a folder or a glob.

    Raises:
        BadKeyLog: One of them cannot be used.
        MissingExtra: There are some, and what opens TLS is not installed.
    """
    if isinstance(names, str):
        names = [names]
    if names:
        tag_error()
    return read_key_logs(names)
