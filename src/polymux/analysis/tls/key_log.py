"""Key logs: the secrets of TLS sessions, read from files, folders and capture files."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator

from polymux.analysis.tls.secret_table import (
    LABEL_NAMES,
    MAX_SECRETS,
    SecretTable,
    TooManySecrets,
)
from polymux.core.errors import PolymuxError

_CHUNK_BYTES = 1 << 18
_MAX_KEPT_BYTES = 4096  # of a line that is not complete; a longer one is no key log line
MAX_KEY_FILES = 100_000

Secrets = dict[int, bytes]
"""Secrets of one session by label (`secret_table`)."""


class BadKeyLog(PolymuxError):
    """A key log cannot be used; the message says which and why, and never quotes it."""


class KeyLog:
    """The secrets of any number of TLS sessions.

    It can be pickled, to be sent to the tasks of a cluster. Neither `repr` nor an error shows a
    secret.
    """

    def __init__(self, table: SecretTable | None = None) -> None:
        self._table = table or SecretTable()

    def __repr__(self) -> str:
        return f"<polymux key log of {len(self)} secrets>"

    def __len__(self) -> int:
        return int(self._table.count)

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return _from_entries, (bytes(self._table.entries),)

    @property
    def bad_lines(self) -> int:
        """Lines that are neither a key log line nor a comment."""
        return self._table.bad_lines

    def find(self, client_random: bytes) -> Secrets:
        """The secrets of the session with this client random; empty if there are none."""
        return self._table.find(client_random)

    def add_text(self, text: bytes, name: str = "the secrets block") -> int:
        """Add the lines of a key log; return how many of them are key log lines.

        Raises:
            BadKeyLog: There are more secrets than `MAX_SECRETS`.
        """
        return self._add_chunks(iter((text,)), name)

    def copy(self) -> KeyLog:
        """A key log with the same secrets."""
        return KeyLog(SecretTable(bytes(self._table.entries)))

    def merged(self, texts: Iterable[bytes]) -> KeyLog:
        """This key log with the secrets blocks of captures added; itself if there are none."""
        blocks = list(texts)
        if not blocks:
            return self
        together = self.copy()
        for text in blocks:
            together.add_text(text)
        return together

    def client_randoms(self) -> set[bytes]:
        """The client randoms of all sessions that have a secret here."""
        return {random for random, _, _ in self._table.all()}

    def only(self, client_randoms: Iterable[bytes]) -> KeyLog:
        """A key log with the secrets of these sessions."""
        chosen = KeyLog()
        for random in client_randoms:
            for label, secret in self.find(random).items():
                chosen._table.add(random, label, secret)
        return chosen

    def to_text(self) -> bytes:
        """The lines of a key log file, sorted."""
        return b"".join(
            sorted(
                b"%s %s %s\n" % (LABEL_NAMES[label], random.hex().encode(), secret.hex().encode())
                for random, label, secret in self._table.all()
            )
        )

    def add_file(self, path: str) -> int:
        """Add a file; return how many of its lines are key log lines.

        Raises:
            BadKeyLog: It cannot be read, or has more secrets than `MAX_SECRETS`.
        """
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise BadKeyLog(f"{path}: not a regular file; a key log is a text file")
            with open(path, "rb") as file:
                return self._add_chunks(iter(lambda: file.read(_CHUNK_BYTES), b""), path)
        except OSError as problem:
            raise BadKeyLog(f"{path}: {problem.strerror or problem}") from None

    def _add_chunks(self, chunks: Iterator[bytes], name: str) -> int:
        known, rest = 0, b""
        overlong = False  # `rest` begins a line that is too long to be one
        try:
            for chunk in chunks:
                text = rest + chunk
                if overlong:
                    start = text.find(b"\n")
                    if start < 0:
                        continue
                    text, overlong = text[start:], False
                end = text.rfind(b"\n") + 1
                known += self._table.add_lines(text[:end])
                rest = text[end:]
                if len(rest) > _MAX_KEPT_BYTES:
                    self._table.bad_lines += 1
                    rest, overlong = b"", True
            known += self._table.add_lines(rest)
        except TooManySecrets:
            raise BadKeyLog(
                f"{name}: more secrets than the limit of {MAX_SECRETS}; give only the key logs of "
                "these captures"
            ) from None
        return known


def _from_entries(entries: bytes) -> KeyLog:
    return KeyLog(SecretTable(entries))


def read_key_logs(names: Iterable[str]) -> KeyLog:
    """Read key logs: each name is a file, a folder of files, or a glob.

    In a folder, and of a glob, files without any key log line are skipped. Folders are not searched
    recursively, and hidden files in them are skipped.

    Raises:
        BadKeyLog: A name matches nothing, a file cannot be read, or a file that was named itself
            has text and no key log line.
    """
    keys = KeyLog()
    for name in names:
        if os.path.isdir(name):
            for path in _folder(name):
                keys.add_file(path)
        elif not os.path.exists(name) and glob.has_magic(name):
            matches = [path for path in sorted(glob.glob(name)) if os.path.isfile(path)]
            if not matches:
                raise BadKeyLog(f"{name}: no file matches")
            for path in matches[:MAX_KEY_FILES]:
                keys.add_file(path)
        elif not keys.add_file(name) and os.path.getsize(name):
            raise BadKeyLog(
                f"{name}: no line of it is one of a key log; it has lines such as "
                "'CLIENT_RANDOM <client random> <secret>', written by SSLKEYLOGFILE"
            )
    return keys


def _folder(name: str) -> list[str]:
    try:
        entries = [
            entry.path
            for entry in os.scandir(name)
            if entry.is_file() and not entry.name.startswith(".")
        ]
    except OSError as problem:
        raise BadKeyLog(f"{name}: {problem.strerror or problem}") from None
    if len(entries) > MAX_KEY_FILES:
        raise BadKeyLog(f"{name}: more than the limit of {MAX_KEY_FILES} files")
    return sorted(entries)
