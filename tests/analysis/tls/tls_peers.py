"""TLS peers in memory, and the bytes that passed between them."""

from __future__ import annotations

import functools
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from polymux.capture import StreamBatch
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.capture.synthesis.tcp_connection import TcpConnectionWriter
from polymux.capture.tcp.reassembly import FINISHED, GAP, PAYLOAD, TcpEvents

SERVER_NAME = "peer.example"
START_NS = 1_700_000_000_000_000_000
PACKET_BYTES = 1400
TLS12_SUITES = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-CCM",
    "ECDHE-ECDSA-AES256-CCM8",
)


@functools.cache
def certificate() -> tuple[trustme.CA, trustme.LeafCert]:
    """A certificate authority, and a certificate for `SERVER_NAME`."""
    authority = trustme.CA()
    return authority, authority.issue_cert(SERVER_NAME)


@dataclass
class Conversation:
    """What passed between two peers: flights as (side, bytes), what each sent, and the key log."""

    flights: list[tuple[int, bytes]] = field(default_factory=list)
    sent: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    key_log: bytes = b""

    def packets(self, size: int = PACKET_BYTES) -> list[tuple[int, bytes]]:
        """The flights cut into packets."""
        return [
            (side, data[start : start + size])
            for side, data in self.flights
            for start in range(0, len(data), size)
        ]


class TlsPeers:
    """A TLS client (side 0) and server (side 1), connected in memory.

    Args:
        version: Of TLS.
        ciphers: Suites of TLS 1.2 in OpenSSL's names.
        retry: The server asks for another key share first (HelloRetryRequest).
        resumed: A session to resume.
        directory: For the key log, which Python's `ssl` writes to a file.
    """

    def __init__(
        self,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        *,
        ciphers: str = "",
        retry: bool = False,
        resumed: ssl.SSLSession | None = None,
        contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    ) -> None:
        descriptor, self._key_log_path = tempfile.mkstemp()
        os.close(descriptor)
        client, server = contexts or make_contexts(version, ciphers, retry)
        client.keylog_filename = self._key_log_path
        self.contexts = client, server
        self.conversation = Conversation()
        self._incoming = (ssl.MemoryBIO(), ssl.MemoryBIO())
        self._outgoing = (ssl.MemoryBIO(), ssl.MemoryBIO())
        self.peers = (
            client.wrap_bio(
                self._incoming[0],
                self._outgoing[0],
                server_hostname=SERVER_NAME,
                session=resumed,
            ),
            server.wrap_bio(self._incoming[1], self._outgoing[1], server_side=True),
        )
        self._handshake()

    def _handshake(self) -> None:
        done = [False, False]
        while not all(done):
            for side in (0, 1):
                if not done[side]:
                    try:
                        self.peers[side].do_handshake()
                        done[side] = True
                    except ssl.SSLWantReadError:
                        pass
                self._transmit(side)
        self.receive(0)  # session tickets

    def _transmit(self, side: int) -> None:
        data = self._outgoing[side].read()
        if data:
            self.conversation.flights.append((side, data))
            self._incoming[1 - side].write(data)

    def receive(self, side: int) -> bytes:
        """Everything that has arrived at a side."""
        got = b""
        while True:
            try:
                part = self.peers[side].read(1 << 20)
            except ssl.SSLWantReadError:
                return got
            got += part

    def send(self, side: int, data: bytes) -> None:
        """Send application data; one call makes records of at most 16 KiB."""
        for start in range(0, len(data), 16384):
            self.peers[side].write(data[start : start + 16384])
        self.conversation.sent[side].extend(data)
        self._transmit(side)
        assert self.receive(1 - side) == data

    def finish(self) -> Conversation:
        """The conversation, with its key log."""
        self.conversation.key_log = Path(self._key_log_path).read_bytes()
        os.unlink(self._key_log_path)
        return self.conversation


def make_contexts(
    version: ssl.TLSVersion, ciphers: str = "", retry: bool = False
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of client and server."""
    authority, leaf = certificate()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(client)
    leaf.configure_cert(server)
    for context in (client, server):
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["polymux/1"])
        if ciphers:
            context.set_ciphers(ciphers)
    if retry:
        server.set_ecdh_curve("secp384r1")
    return client, server


def batches_of(
    packets: list[tuple[int, bytes]], lost: frozenset[int] = frozenset(), per_batch: int = 64
) -> list[StreamBatch]:
    """Batches as reassembly makes them; the packets with the numbers `lost` are gaps."""
    batches = []
    for first in range(0, len(packets), per_batch):
        part = packets[first : first + per_batch]
        events = TcpEvents(len(part) + 2)
        data = []
        for number, (side, payload) in enumerate(part, first):
            is_lost = number in lost
            kind = GAP if is_lost else PAYLOAD
            events.add(side, kind, START_NS + number * 1000, len(payload), 0, 0)
            if not is_lost:
                data.append(payload)
        if first + per_batch >= len(packets):
            for side in (0, 1):
                events.add(side, FINISHED, START_NS + len(packets) * 1000, 0, 0, 0)
        batches.append(StreamBatch(events, b"".join(data)))
    return batches


def write_capture(
    path: str | Path,
    conversation: Conversation,
    *,
    lost: frozenset[int] = frozenset(),
    client_port: int = 40000,
    secrets: dict[int, bytes] | None = None,
    packet_bytes: int = PACKET_BYTES,
) -> None:
    """Write a conversation as a pcapng file.

    Args:
        path: The new file.
        conversation: What is written, one packet after another.
        lost: Numbers of packets that are left out.
        client_port: The client's TCP port.
        secrets: Secrets blocks, by the number of the packet before which they stand.
        packet_bytes: Payload bytes of a packet.
    """
    writer = PcapngWriter(str(path))
    connection = TcpConnectionWriter(
        _SparseSink(writer, lost), ("192.0.2.1", client_port), ("192.0.2.2", 443), START_NS
    )
    packets = conversation.packets(packet_bytes)
    for number, (side, payload) in enumerate(packets):
        if secrets and number in secrets:
            writer.secrets(secrets[number])
        connection.data(side, payload, START_NS + (number + 1) * 1_000_000)
    connection.close(START_NS + (len(packets) + 1) * 1_000_000)
    if secrets and len(packets) in secrets:
        writer.secrets(secrets[len(packets)])
    writer.close()


class _SparseSink:
    """Passes packets on to a writer, except for payload packets with certain numbers."""

    def __init__(self, writer: PcapngWriter, lost: frozenset[int]) -> None:
        self._writer = writer
        self._lost = lost
        self._number = 0

    @property
    def comment_epoch(self) -> int:
        return self._writer.comment_epoch

    def burst(self, burst: object) -> None:
        size = burst.payload_bytes  # type: ignore[attr-defined]  # a PacketBurst
        if size:
            self._number += 1
            if self._number - 1 in self._lost:
                return
        self._writer.burst(burst)  # type: ignore[arg-type]  # a PacketBurst
