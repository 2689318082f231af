"""A captured session inside TLS: its opened bytes, as detection and decoding read them."""

from __future__ import annotations

from collections.abc import Iterator

from polymux.analysis.detection.sample import (
    FULL_SAMPLE_BYTES,
    SamplePiece,
    SessionSample,
    add_pieces,
)
from polymux.analysis.tls.handshake import (
    CLIENT_HELLO,
    ClientHello,
    MalformedHandshake,
    MessageReader,
    parse_client_hello,
)
from polymux.analysis.tls.key_log import KeyLog
from polymux.analysis.tls.layer import TlsLayer
from polymux.analysis.tls.records import HANDSHAKE, HEADER_BYTES, is_header
from polymux.capture import StreamBatch
from polymux.core.errors import CaptureError

MAX_SAMPLED_BATCHES = 8  # read for the sample, if TLS leaves little of the first ones
_CLIENT_HELLO_START = 6  # bytes of record header and message type


def read_client_hello(head: bytes) -> ClientHello | None:
    """The ClientHello with which the dialer's bytes begin; None if there is no complete one."""
    messages = MessageReader()
    position = 0
    if len(head) < _CLIENT_HELLO_START or head[HEADER_BYTES] != CLIENT_HELLO:
        return None
    while len(head) - position > HEADER_BYTES:
        if not is_header(head, position) or head[position] != HANDSHAKE:
            return None
        end = position + HEADER_BYTES + int.from_bytes(head[position + 3 : position + 5], "big")
        if end > len(head):
            return None
        for kind, body in messages.read(head[position + HEADER_BYTES : end]):
            if kind != CLIENT_HELLO:
                return None
            try:
                return parse_client_hello(body)
            except MalformedHandshake:
                return None
        position = end
    return None


class OpenedSession:
    """The batches of a session inside TLS, opened.

    Args:
        wire: The captured batches; all of them, once.
        keys: The key log.
    """

    def __init__(self, wire: Iterator[StreamBatch], keys: KeyLog) -> None:
        self.layer = TlsLayer(keys)
        self._wire = wire
        self._first: list[StreamBatch] = []
        self._error: CaptureError | None = None

    def sample(self) -> SessionSample:
        """The first opened bytes up to the first gap; few if the session cannot be opened."""
        pieces: list[SamplePiece] = []
        left = FULL_SAMPLE_BYTES
        while left > 0 and len(self._first) < MAX_SAMPLED_BATCHES and not self.layer.failure:
            try:
                batch = next(self._wire, None)
            except CaptureError as problem:
                self._error = problem
                break
            if batch is None:
                break
            opened = self.layer.open(batch)
            self._first.append(opened)
            left = add_pieces(pieces, opened, left)
        return SessionSample(tuple(pieces))  # a ClientHello is the beginning

    def batches(self, ended_at: int) -> Iterator[StreamBatch]:
        """All opened batches, once; the last one after `TlsLayer.finish` at this time.

        Raises:
            CaptureError: The payload cannot be read; what was read before has been yielded.
        """
        self._first.reverse()
        while self._first:
            yield self._first.pop()
        if self._error is None:
            try:
                for batch in self._wire:
                    yield self.layer.open(batch)
            except CaptureError as problem:
                self._error = problem
        yield self.layer.finish(ended_at)
        if self._error is not None:
            raise self._error
