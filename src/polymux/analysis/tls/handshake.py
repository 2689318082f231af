"""Handshake messages of TLS, as far as they decide how records are opened.

All lengths are checked: a message that does not add up raises `MalformedHandshake`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

CLIENT_HELLO, SERVER_HELLO, NEW_SESSION_TICKET, END_OF_EARLY_DATA = 1, 2, 4, 5
ENCRYPTED_EXTENSIONS, FINISHED, KEY_UPDATE = 8, 20, 24
HELLO_RETRY_REQUEST_RANDOM = hashlib.sha256(b"HelloRetryRequest").digest()  # RFC 8446, 4.1.3
RANDOM_BYTES = 32
MAX_MESSAGE_BYTES = 65_536  # of hellos and extensions; larger messages are skipped unread
MAX_NAME_BYTES = 255
_SERVER_NAME, _ALPN, _EARLY_DATA, _SUPPORTED_VERSIONS = 0, 16, 42, 43


class MalformedHandshake(ValueError):
    """A handshake message whose lengths do not add up."""


class ClientHello(NamedTuple):
    """A ClientHello. `server_name` is "" if it has none."""

    random: bytes
    server_name: str
    early_data: bool


class ServerHello(NamedTuple):
    """A ServerHello or HelloRetryRequest. `alpn` is "" if it has none, as always in TLS 1.3."""

    random: bytes
    version: int
    suite: int
    alpn: str
    retry: bool


class EncryptedExtensions(NamedTuple):
    """The extensions of a TLS 1.3 server that are not in its hello."""

    alpn: str
    early_data: bool


class _Fields:
    """Reads the fields of a message in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > len(self._data) - self._pos:
            raise MalformedHandshake("a length reaches beyond the message")
        self._pos += size
        return self._data[self._pos - size : self._pos]

    def number(self, size: int) -> int:
        """The next number of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_bytes: int) -> bytes:
        """The next bytes with a length before them."""
        return self.take(self.number(length_bytes))

    @property
    def at_end(self) -> bool:
        """Whether everything was read."""
        return self._pos == len(self._data)


def parse_client_hello(body: bytes) -> ClientHello:
    """Parse the body of a ClientHello. May raise MalformedHandshake."""
    fields = _Fields(body)
    fields.number(2)
    random = fields.take(RANDOM_BYTES)
    fields.vector(1)
    fields.vector(2)
    fields.vector(1)
    extensions = _extensions(fields)
    name = extensions.get(_SERVER_NAME, b"")
    return ClientHello(random, _server_name(name) if name else "", _EARLY_DATA in extensions)


def parse_server_hello(body: bytes) -> ServerHello:
    """Parse the body of a ServerHello. May raise MalformedHandshake."""
    fields = _Fields(body)
    version = fields.number(2)
    random = fields.take(RANDOM_BYTES)
    fields.vector(1)
    suite = fields.number(2)
    fields.number(1)
    extensions = _extensions(fields)
    selected = extensions.get(_SUPPORTED_VERSIONS, b"")
    if len(selected) == 2:
        version = int.from_bytes(selected, "big")
    return ServerHello(
        random, version, suite, _alpn(extensions), random == HELLO_RETRY_REQUEST_RANDOM
    )


def parse_encrypted_extensions(body: bytes) -> EncryptedExtensions:
    """Parse the body of EncryptedExtensions. May raise MalformedHandshake."""
    extensions = _extensions(_Fields(body))
    return EncryptedExtensions(_alpn(extensions), _EARLY_DATA in extensions)


def _extensions(fields: _Fields) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    if fields.at_end:
        return found
    block = _Fields(fields.vector(2))
    while not block.at_end:
        number = block.number(2)
        found[number] = block.vector(2)
    return found


def _server_name(extension: bytes) -> str:
    names = _Fields(_Fields(extension).vector(2))
    while not names.at_end:
        kind, name = names.number(1), names.vector(2)
        if kind == 0:
            return _text(name)
    return ""


def _alpn(extensions: dict[int, bytes]) -> str:
    if _ALPN not in extensions:
        return ""
    return _text(_Fields(_Fields(extensions[_ALPN]).vector(2)).vector(1))


def _text(name: bytes) -> str:
    return name[:MAX_NAME_BYTES].decode("utf-8", "replace")


class MessageReader:
    """Splits the handshake content of one direction into messages, over records."""

    def __init__(self) -> None:
        self._data = b""
        self._skip = 0  # bytes left of a message that is not read

    def read(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that `content` completes: type and body, b"" if it is too long."""
        if self._skip:
            skipped = min(self._skip, len(content))
            self._skip -= skipped
            content = content[skipped:]
        data = self._data + content
        pos = 0
        while len(data) - pos >= 4:
            kind, size = data[pos], int.from_bytes(data[pos + 1 : pos + 4], "big")
            if size > MAX_MESSAGE_BYTES:
                self._skip = max(0, size - (len(data) - pos - 4))
                pos = min(len(data), pos + 4 + size)
                yield kind, b""
            elif size > len(data) - pos - 4:
                break
            else:
                yield kind, data[pos + 4 : pos + 4 + size]
                pos += 4 + size
        self._data = data[pos:]

    def reset(self) -> None:
        """Drop what is incomplete: bytes after it are missing."""
        self._data = b""
        self._skip = 0
