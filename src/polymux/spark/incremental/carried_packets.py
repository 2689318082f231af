"""Packets of sessions that had not ended, kept by a lake from one run to the next.

The captures of a run may be gone when the next one begins, so the packets themselves are carried:
an analyze task writes those of its open sessions to two state files, which the next run reads as if
they were a capture. The rows of a session depend on all of its packets (the width of a timeline's
buckets on its length, the causes of stalls on its round-trip time), so a session is analyzed again
from its first packet when it goes on. The cost of a session that goes on for days is that it is
stored once and analyzed once in each run.

    NAME.refs      references, a file of the shuffle (`reference_shuffle`)
    NAME.payload   the bytes they point to, behind a few that are no capture's

A row of carried packets names its capture with a mark (`capture_of` removes it), so that it sorts
like the capture and is read from the payload file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import FlowRefs, TcpSession
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.paths import PRIVATE_FILE
from polymux.capture.packets.flows import FlowName, flow_name
from polymux.capture.packets.packet_refs import CAPTURED_BITS, CAPTURED_MASK, REF_BYTES
from polymux.capture.tcp.sessions import capture_of
from polymux.spark.batch.reference_shuffle import (
    INDEX_FOLDER,
    INDEX_SUFFIX,
    MIN_BUCKETS,
    ReferenceWriter,
    read_part,
)

PAYLOAD_SUFFIX = ".payload"
PAYLOAD_MAGIC = b"polymux carried\n"  # so that no payload looks like a compressed file
MARK = "\0"  # between the path of a capture and the name of the file with its packets
CLIENT_HELLO_BYTES = 43  # until behind the client random
_SHIFT = int(CAPTURED_BITS)
_WORDS = struct.Struct("<qqqq")


class CarriedWriter:
    """Writes the packets of open sessions of one task to files below `folder`.

    Use as a context manager; nothing is written without a session. `keys` are the secrets of TLS
    sessions: `secrets` has those of the carried ones when the context ends.
    """

    def __init__(self, folder: Path, keys: KeyLog | None = None) -> None:
        self._folder = folder
        self._refs = ReferenceWriter(str(folder), MIN_BUCKETS)
        self._name = self._refs.result.name
        self._keys = keys
        self._randoms: set[bytes] = set()
        self._payload: BinaryIO | None = None
        self._position = 0

    @property
    def files(self) -> list[Path]:
        """The files that were written: references and payload, or none."""
        if not self._refs.result.name or self._payload is None:
            return []
        refs = self._folder / INDEX_FOLDER / (self._refs.result.name + INDEX_SUFFIX)
        return [refs, self._folder / (self._name + PAYLOAD_SUFFIX)]

    @property
    def secrets(self) -> bytes:
        """A key log with the secrets of the carried sessions; empty if there are none."""
        return self._keys.only(self._randoms).to_text() if self._keys and self._randoms else b""

    def add(self, sessions: Sequence[TcpSession], files: UrlFilePool) -> None:
        """Add sessions of one flow.

        Raises:
            LostInput: Their capture cannot be read.
        """
        ranges: dict[tuple[str, int], list[FlowRefs]] = {}
        for session in sessions:
            self._note_client_random(session, files)
            for row in session.packet_rows():
                rows = ranges.setdefault((row.file, row.start), [])
                # Of several sessions in one range of a file, their rows become one.
                same = next((n for n, r in enumerate(rows) if r.direction == row.direction), -1)
                if same < 0:
                    rows.append(row)
                else:
                    rows[same] = _joined(rows[same], row)
        for (file, _), rows in sorted(ranges.items()):
            carried = f"{capture_of(file)}{MARK}{self._name}"
            self._refs.add(self._moved(rows, carried, files.reader(file)))
            self._refs.add_copy(carried, self._name + PAYLOAD_SUFFIX)

    def _moved(
        self, rows: list[FlowRefs], file: str, read: Callable[[int, int], bytes]
    ) -> list[FlowRefs]:
        """Copy the payload of a range's rows, and return them with references to the copy.

        A packet without payload takes a byte: offsets are the order of packets.
        """
        if self._payload is None:
            path = self._folder / (self._name + PAYLOAD_SUFFIX)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._payload = os.fdopen(os.open(path, flags, PRIVATE_FILE), "wb")
            self._position = self._payload.write(PAYLOAD_MAGIC)
        start = self._position  # of the range: ranges are ordered by it
        words = [list(_WORDS.iter_unpack(row.refs)) for row in rows]
        order = sorted(
            (reference[0] >> _SHIFT, rows[n].direction, n, number)
            for n, references in enumerate(words)
            for number, reference in enumerate(references)
        )
        moved = [bytearray(row.refs) for row in rows]
        for offset, _, n, number in order:
            size = words[n][number][0] & int(CAPTURED_MASK)
            new = (self._position << _SHIFT) | size
            moved[n][number * REF_BYTES : number * REF_BYTES + 8] = new.to_bytes(8, "little")
            self._position += self._payload.write(read(offset, size) if size else b"\0")
        return [
            row._replace(file=file, start=start, refs=bytes(refs))
            for row, refs in zip(rows, moved, strict=True)
        ]

    def _note_client_random(self, session: TcpSession, files: UrlFilePool) -> None:
        """Note the client random of a session that begins with the ClientHello of TLS."""
        if not self._keys:
            return
        head = b""
        for batch in session.unshared_batches(CLIENT_HELLO_BYTES):
            start = 0
            for n in range(batch.count):
                if batch.kind[n] == 0:
                    end = start + batch.size[n]
                    head += batch.data[start:end] if batch.side[n] == 0 else b""
                    start = end
            if len(head) >= CLIENT_HELLO_BYTES:
                break
        if head[:1] == b"\x16" and head[5:6] == b"\x01":
            self._randoms.add(head[11:CLIENT_HELLO_BYTES])

    def __enter__(self) -> CarriedWriter:
        self._refs.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._payload is not None:
            self._payload.close()
        self._refs.__exit__(kind, *rest)


def _joined(one: FlowRefs, two: FlowRefs) -> FlowRefs:
    """The row of two sessions in one direction of a range, which may be there at the same time."""
    refs = one.refs + two.refs
    records = (refs[at : at + REF_BYTES] for at in range(0, len(refs), REF_BYTES))
    in_order = sorted(records, key=lambda record: _WORDS.unpack(record)[0] >> _SHIFT)
    return one._replace(
        first_at=min(one.first_at, two.first_at),
        last_at=max(one.last_at, two.last_at),
        refs=b"".join(in_order),
    )


def load_carried(
    refs: Sequence[str],
    payload: Sequence[str],
    staging: str,
    buckets: int,
    gone: frozenset[str],
    gone_of_flows: frozenset[tuple[FlowName, str]],
) -> bytes:
    """Copy carried references to the shuffle of a run; runs in a task.

    Args:
        refs: The files of references.
        payload: The path or URL of the payload of each.
        staging: The folder of the shuffle.
        buckets: Into how many buckets its flows are hashed.
        gone: Captures that are read again: their carried packets are left out.
        gone_of_flows: Flows, each with a capture that is read again for it.

    Returns:
        A packed `IndexResult`.
    """
    with ReferenceWriter(staging, buckets) as writer:
        for path, copy in zip(refs, payload, strict=True):
            for rows in _stored_ranges(path):
                row = rows[0]
                capture = capture_of(row.file)
                if capture in gone or (
                    gone_of_flows and (flow_name(row.flow), capture) in gone_of_flows
                ):
                    continue
                writer.add(rows)
                writer.add_copy(row.file, copy)
    return writer.result.pack()


def _stored_ranges(path: str) -> Iterator[list[FlowRefs]]:
    """Yield the rows of a file of references, those of one range of a file together."""
    part = read_part(path, range(MIN_BUCKETS))
    ranges: dict[tuple[bytes, str, int], list[tuple[FlowRefs, int, int]]] = {}
    for position, flow, _ in part.positions():
        stored = part.row(position)
        ranges.setdefault((flow, stored[0].file, stored[0].start), []).append(stored)
    with open(path, "rb") as file:
        for rows in ranges.values():
            yield [row._replace(refs=_read(file, start, size)) for row, start, size in rows]


def _read(file: BinaryIO, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)
