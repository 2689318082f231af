"""Captures of any size for the pipeline: mplex sessions, written in blocks of packets.

Every data packet has the same size, so a block of them is an array with a few columns to fill in:
a gigabyte takes about a second. Written without polymux's own code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from bench.byte_traffic import mplex_frame
from bench.capture_writer import ACK, FIN, PCAP_HEADER, SYN

BLOCK_PACKETS = 16384  # per write
STREAMS = 8
HEADER_BYTES = 16 + 14 + 20 + 20  # pcap record, Ethernet, IPv4, TCP
PACKET_INTERVAL_NS = 2000  # nanoseconds between packets
START_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000
PCAP_NS_HEADER = struct.pack("<I", 0xA1B23C4D) + PCAP_HEADER[4:]

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]


class Conversations:
    """`flows` concurrent mplex sessions; the dialer sends three packets out of four.

    A data packet carries `payload` bytes, frames of `frame` bytes each. `weights` are the
    relative rates of the flows. Another `number` gives other sessions, a minute later. Files
    written one after another continue the same sessions.
    """

    def __init__(
        self,
        flows: int,
        payload: int = 500,
        frame: int = 100,
        weights: Sequence[float] = (),
        number: int = 0,
    ) -> None:
        assert payload % frame == 0
        self.flows, self.payload, self.frame = flows, payload, frame
        self.size = HEADER_BYTES + payload
        self._rng = np.random.default_rng(7)
        chances = np.array(weights or [1.0] * flows)
        self._chances = chances / chances.sum()
        self._at = START_NS + number * MINUTE_NS
        self._first = 0x0A000000 + number * 0x100  # the first dialer's address
        self._next: IntArray = np.ones((flows, 2), np.int64)  # sequence number, by flow and side
        self._begun = False
        self._templates = [self._packet_template(side) for side in (0, 1)]
        self.frames = 0

    def write(self, path: Path, size: int, last: bool = True) -> None:
        """Write about `size` bytes of packets; `last` ends the sessions."""
        with path.open("wb") as file:
            file.write(PCAP_NS_HEADER)
            if not self._begun:
                self._begun = True
                for flow in range(self.flows):
                    file.write(self._opening(flow))
            left = max(0, size - file.tell()) // self.size
            while left > 0:
                file.write(self._block(min(left, BLOCK_PACKETS)).tobytes())
                left -= BLOCK_PACKETS
            if last:
                for flow in range(self.flows):
                    for side in (0, 1):
                        file.write(self._packet(flow, side, ACK | FIN, b""))

    def _packet_template(self, side: int) -> ByteArray:
        """A data packet of one side, with the variable fields empty."""
        flag = 2 if side == 0 else 1  # MessageInitiator, MessageReceiver
        frames = b""
        for n in range(self.payload // self.frame):
            number = 2 * (n % STREAMS) + 1
            body = self.frame - 2 if self.frame < 130 else self.frame - 3
            frames += mplex_frame(number, flag, bytes(body))
        assert len(frames) == self.payload
        return np.frombuffer(self._headers(0, side, 0, 0, ACK, frames, 0), np.uint8)

    def _block(self, count: int) -> ByteArray:
        flow: IntArray = self._rng.choice(self.flows, count, p=self._chances)
        side: IntArray = (self._rng.random(count) < 0.25).astype(np.int64)
        out = np.empty((count, self.size), np.uint8)
        for which in (0, 1):
            out[side == which] = self._templates[which]
        # For each packet, the number of earlier packets of its direction within the block.
        direction = flow * 2 + side
        order = np.argsort(direction, kind="stable")
        sizes = np.bincount(direction, minlength=2 * self.flows)
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        rank = np.empty(count, np.int64)
        rank[order] = np.arange(count) - starts[direction[order]]
        seq = self._next.reshape(-1)[direction] + rank * self.payload
        ack = self._next[flow, 1 - side]
        self._next += sizes.reshape(self.flows, 2) * self.payload
        at = self._at + PACKET_INTERVAL_NS * np.arange(1, count + 1)
        self._at = int(at[-1])
        self._put(out, 0, at // 10**9, "<u4")
        self._put(out, 4, at % 10**9, "<u4")
        client = 16 + 14 + 12  # offset of the dialer's address in its own packets
        for which, address, port in (
            (0, client, HEADER_BYTES - 20),
            (1, client + 4, HEADER_BYTES - 18),
        ):
            rows = np.flatnonzero(side == which)
            self._put(out, address, self._first + flow[rows], ">u4", rows)
            self._put(out, port, 10000 + flow[rows], ">u2", rows)
        self._put(out, HEADER_BYTES - 16, seq & 0xFFFFFFFF, ">u4")
        self._put(out, HEADER_BYTES - 12, ack & 0xFFFFFFFF, ">u4")
        self.frames += count * (self.payload // self.frame)
        return out

    def _put(
        self, out: ByteArray, column: int, values: IntArray, form: str, rows: IntArray | None = None
    ) -> None:
        size = np.dtype(form).itemsize
        chunks = values.astype(form).view(np.uint8).reshape(len(values), size)
        where = slice(None) if rows is None else rows
        out[where, column : column + size] = chunks

    def _opening(self, flow: int) -> bytes:
        names = b"".join(mplex_frame(2 * n + 1, 0, b"s%d" % n) for n in range(STREAMS))
        self.frames += STREAMS
        self._next[flow] = 0
        hello = self._packet(flow, 0, SYN, b"")
        answer = self._packet(flow, 1, SYN | ACK, b"")
        return hello + answer + self._packet(flow, 0, ACK, names)

    def _packet(self, flow: int, side: int, flags: int, payload: bytes) -> bytes:
        self._at += PACKET_INTERVAL_NS
        seq, ack = int(self._next[flow, side]), int(self._next[flow, 1 - side])
        self._next[flow, side] += len(payload) + (1 if flags & (SYN | FIN) else 0)
        return self._headers(flow, side, seq, ack, flags, payload, self._at)

    def _headers(
        self, flow: int, side: int, seq: int, ack: int, flags: int, payload: bytes, at: int
    ) -> bytes:
        size = 40 + len(payload)
        ip = struct.pack(">BBHHHBBH", 0x45, 0, size, 1, 0x4000, 64, 6, 0)
        ends = [(self._first + flow, 10000 + flow), (0x0A800001, 9000)]
        (source, port), (target, other) = ends[side], ends[1 - side]
        tcp = struct.pack(
            ">HHIIBBHHH", port, other, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 80, flags, 512, 0, 0
        )
        data = bytes(12) + b"\x08\x00" + ip + struct.pack(">II", source, target) + tcp + payload
        return struct.pack("<IIII", at // 10**9, at % 10**9, len(data), len(data)) + data
