"""Conversations of protocols, and the same conversations inside TLS."""

from __future__ import annotations

import random
from base64 import b64encode
from hashlib import sha1

from tests.analysis.recorded_conversation import MS, START, Record, Stage
from tests.analysis.tls.tls_peers import Conversation, TlsPeers

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def talk_of(protocol: str, rounds: int = 4) -> Record:
    """A conversation of mplex or Nerdbank over several streams, or of omnistreams."""
    stage = Stage(protocol)
    generator = random.Random(rounds)
    one_way = protocol.startswith("omnistreams")
    for number in range(3):
        stream = stage.open(0, f"stream {number}".encode())
        stage.exchange()
        stage.accept(1)
        stage.exchange()
        peer = stage.peer_stream(0, stream)
        for size in range(rounds):
            stage.send(0, stream, generator.randbytes(9000 * size + 5))
            stage.exchange()
            stage.wait(MS)
            if not one_way:
                stage.send(1, peer, generator.randbytes(70 * size + 1))
                stage.exchange()
        stage.end(0, stream)
        stage.exchange()
    return stage.record


def websocket_talk() -> Record:
    """omnistreams over WebSocket, from the HTTP upgrade on."""
    key = b64encode(bytes(16)).decode()
    answer = b64encode(sha1(key.encode() + GUID).digest()).decode()
    request = (
        "GET /omnistreams HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    response = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {answer}\r\n\r\n"
    ).encode()

    def masked(message: bytes) -> bytes:
        return bytes([0x82, 0x80 | len(message)]) + bytes(4) + message

    def plain(message: bytes) -> bytes:
        return bytes([0x82, len(message)]) + message

    sent = [
        (0, request),
        (1, response),
        (0, masked(bytes.fromhex("01057b7d"))),
        (1, plain(bytes.fromhex("050502"))),
        (0, masked(bytes.fromhex("020568656c6c6f"))),
        (0, bytes([0x89, 0x80]) + bytes(4)),
        (1, bytes([0x8A, 0])),
        (0, masked(bytes.fromhex("0305"))),
    ]
    return [(side, data, START + number * MS) for number, (side, data) in enumerate(sent, 1)]


def inside_tls(record: Record, peers: TlsPeers | None = None) -> Conversation:
    """The same bytes, in the same order, sent by two TLS peers."""
    peers = peers or TlsPeers()
    for side, data, _ in record:
        peers.send(side, data)
    return peers.finish()
