"""The beginning of a session that is about to be walked: read once, looked at twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from polymux.analysis.detection.sample import LOOK, Piece, Sample, add_pieces, take_sample
from polymux.capture import Batch, TcpSession
from polymux.core.errors import CaptureError


class Opening:
    """The batches, about `octets` each, of a session that was surveyed; the first is at hand."""

    def __init__(self, session: TcpSession, octets: int) -> None:
        self._session = session
        self._rest = session.batches(octets)
        self._first: list[Batch] = []
        try:
            self._first += itertools.islice(self._rest, 1)
        except CaptureError:
            self._rest = session.batches(octets)  # fails again, for who wants them

    def sample(self) -> Sample:
        """The first octets; CaptureError if they cannot be read."""
        pieces: list[Piece] = []
        left = LOOK
        for batch in self._first:
            left = add_pieces(pieces, batch, left)
        if left > 0 and sum(self._session.octets) > sum(len(each.data) for each in self._first):
            return take_sample(self._session)  # again: of many small packets a batch has too few
        return Sample(tuple(pieces), self._session.saw_syn)

    def batches(self) -> Iterator[Batch]:
        """All of them, once; none is kept."""
        while self._first:
            yield self._first.pop()
        yield from self._rest
