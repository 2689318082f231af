"""Opening a session that is still being captured: its secrets may come later than its handshake."""

from __future__ import annotations

from polymux.analysis.detection.sample import may_begin_client_hello
from polymux.analysis.tls.key_log import KeyLog
from polymux.analysis.tls.layer import TlsLayer
from polymux.analysis.tls.records import OffsetMap
from polymux.analysis.tls.session import read_client_hello
from polymux.analysis.tracking.session_tracker import unfinished_frame_offset
from polymux.capture import StreamBatch
from polymux.capture.tcp.reassembly import PAYLOAD
from polymux.core.observer import Observer

MAX_WAITING_BYTES = 256 * 1024  # held until the secrets of a session are known

Row = dict[str, object]


class LiveOpening:
    """Passes the batches of one session on: opened if it is inside TLS, else as they are.

    It holds them while the session may be TLS and its secrets are not known.
    """

    def __init__(self, keys: KeyLog) -> None:
        self.waiting = True
        self.held_bytes = 0
        self._keys = keys
        self._layer: TlsLayer | None = None
        self._held: list[StreamBatch] = []

    @property
    def is_tls(self) -> bool:
        """Whether the session begins with the ClientHello of TLS."""
        return self._layer is not None

    @property
    def offsets(self) -> tuple[OffsetMap, OffsetMap] | None:
        """From the offsets of opened bytes to those on the wire, of each side; None without TLS."""
        return (self._layer.offsets[0], self._layer.offsets[1]) if self._layer else None

    @property
    def failure(self) -> str:
        """Why a session inside TLS is not opened; "" if it is, or is not TLS."""
        return self._layer.failure if self._layer is not None else ""

    def open(self, batches: list[StreamBatch]) -> list[StreamBatch]:
        """The batches that can be read now."""
        if not self.waiting:
            return self._opened(batches)
        self._held += batches
        self.held_bytes += sum(len(batch.data) for batch in batches)
        dialer = _payload_of(self._held, 0)
        if not dialer:
            return self.decide() if self.held_bytes else []
        hello = read_client_hello(dialer)
        if hello is None:
            may_become = may_begin_client_hello(dialer) and self.held_bytes < MAX_WAITING_BYTES
            return [] if may_become else self.decide()
        if self._keys.find(hello.random) or self.held_bytes >= MAX_WAITING_BYTES:
            return self.decide()
        return []

    def decide(self) -> list[StreamBatch]:
        """Wait no longer: return what was held, opened if it is TLS."""
        self.waiting = False
        if read_client_hello(_payload_of(self._held, 0)) is not None:
            self._layer = TlsLayer(self._keys)
        held, self._held = self._held, []
        self.held_bytes = 0
        return self._opened(held)

    def finish(self, timestamp: int) -> list[StreamBatch]:
        """No more batches follow: the last opened bytes."""
        return [] if self._layer is None else [self._layer.finish(timestamp)]

    def with_wire_offsets(self, rows: list[Row], observer: Observer) -> list[Row]:
        """Change the offsets of these rows to those on the wire."""
        if self._layer is None:
            return rows
        for row in rows:
            offsets = self._layer.offsets[0 if row["sender"] == "dialer" else 1]
            offset = row["byte_offset"]
            assert isinstance(offset, int)  # the column's type
            row["byte_offset"] = int(offsets.to_wire(offset))
        for side, offsets in enumerate(self._layer.offsets):
            direction = observer.connection.direction(side)
            start = unfinished_frame_offset(observer, direction)
            offsets.forget_before(start, direction.offset)
        return rows

    def _opened(self, batches: list[StreamBatch]) -> list[StreamBatch]:
        layer = self._layer
        return batches if layer is None else [layer.open(batch) for batch in batches]


def _payload_of(batches: list[StreamBatch], side: int) -> bytes:
    """The first bytes of one side, up to the limit of what is held."""
    parts: list[bytes] = []
    for batch in batches:
        start = 0
        for n in range(batch.count):
            if batch.kind[n] == PAYLOAD:
                stop = start + int(batch.size[n])
                if batch.side[n] == side:
                    parts.append(batch.data[start:stop])
                start = stop
    return b"".join(parts)
