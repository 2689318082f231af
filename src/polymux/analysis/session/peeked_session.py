"""A session whose first batch is read for protocol detection and reused for decoding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from polymux.analysis.detection.sample import (
    FULL_SAMPLE_BYTES,
    SamplePiece,
    SessionSample,
    add_pieces,
    take_sample,
)
from polymux.capture import StreamBatch, TcpSession
from polymux.core.errors import CaptureError


class PeekedSession:
    """The batches of a scanned session, about `batch_bytes` each; the first is already read."""

    def __init__(self, session: TcpSession, batch_bytes: int) -> None:
        self._session = session
        self._rest = session.batches(batch_bytes)
        self._first: list[StreamBatch] = []
        try:
            self._first += itertools.islice(self._rest, 1)
        except CaptureError:
            self._rest = session.batches(batch_bytes)  # raises again when the batches are read

    def sample(self) -> SessionSample:
        """The first bytes of the session; CaptureError if they cannot be read."""
        pieces: list[SamplePiece] = []
        left = FULL_SAMPLE_BYTES
        for batch in self._first:
            left = add_pieces(pieces, batch, left)
        if left > 0 and sum(self._session.reassembled_bytes) > sum(
            len(batch.data) for batch in self._first
        ):
            return take_sample(
                self._session
            )  # read again: a batch of many small packets is too short
        return SessionSample(tuple(pieces), self._session.saw_syn)

    def batches(self) -> Iterator[StreamBatch]:
        """All batches, once; none is kept."""
        while self._first:
            yield self._first.pop()
        yield from self._rest
