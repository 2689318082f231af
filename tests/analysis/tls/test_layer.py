"""The TLS layer: what peers sent is opened, byte for byte, and survives loss and forgery."""

from __future__ import annotations

import json
import random
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.analysis.tls.tls_peers import (
    SERVER_NAME,
    START_NS,
    TLS12_SUITES,
    Conversation,
    TlsPeers,
    batches_of,
)

from polymux.analysis.tls.key_log import KeyLog
from polymux.analysis.tls.layer import TlsLayer
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, UNDECODABLE

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
LOST = 0x3F


@dataclass
class Opened:
    """What a layer made of a conversation; lost bytes are `LOST`."""

    layer: TlsLayer
    received: tuple[bytearray, bytearray]
    stopped: list[int]

    @property
    def content(self) -> tuple[bytes, bytes]:
        return bytes(self.received[0]), bytes(self.received[1])


def open_conversation(
    packets: list[tuple[int, bytes]],
    key_log: bytes,
    lost: frozenset[int] = frozenset(),
    per_batch: int = 64,
) -> Opened:
    """Open packets, and check that every byte is accounted for."""
    keys = KeyLog()
    keys.add_text(key_log)
    layer = TlsLayer(keys)
    found = Opened(layer, (bytearray(), bytearray()), [])
    batches = [layer.open(batch) for batch in batches_of(packets, lost, per_batch)]
    batches.append(layer.finish(START_NS + 10**9))
    for batch in batches:
        start = 0
        for n in range(batch.count):
            side, size = int(batch.side[n]), int(batch.size[n])
            if batch.kind[n] == PAYLOAD:
                found.received[side].extend(batch.data[start : start + size])
                start += size
            elif batch.kind[n] == GAP:
                found.received[side].extend(bytes([LOST]) * size)
            elif batch.kind[n] == UNDECODABLE:
                found.stopped.append(side)
        assert start == len(batch.data)
    for side in (0, 1):
        wire = sum(len(data) for sender, data in packets if sender == side)
        assert wire == (
            len(found.received[side])
            + layer.overhead_bytes[side]
            + layer.undecoded_bytes[side]
            + layer.missing_bytes[side]
        )
    return found


def exchange(peers: TlsPeers, rounds: int = 8) -> Conversation:
    """Both sides send messages of several sizes, the largest over several records."""
    generator = random.Random(rounds)
    for number in range(rounds):
        peers.send(0, generator.randbytes(5000 * number + 7))
        peers.send(1, generator.randbytes(300 * number + 1))
    return peers.finish()


@pytest.fixture(scope="module")
def talk() -> Conversation:
    return exchange(TlsPeers())


@pytest.mark.parametrize(
    ("version", "suite"), [(TLS13, ""), *((TLS12, suite) for suite in TLS12_SUITES)]
)
def test_what_was_sent_is_opened(version: ssl.TLSVersion, suite: str) -> None:
    conversation = exchange(TlsPeers(version, ciphers=suite))
    for per_batch in (1, 1000):
        found = open_conversation(conversation.packets(), conversation.key_log, per_batch=per_batch)
        assert found.received == conversation.sent
        facts = found.layer.facts
        assert facts.server_name == SERVER_NAME
        assert facts.alpn == "polymux/1"
        assert facts.unopened == 0
        assert facts.handshake_ns is not None
        assert facts.version == ("1.3" if version == TLS13 else "1.2")


def test_recorded_conversations_are_opened() -> None:
    path = Path(__file__).parents[2] / "vectors" / "tls" / "conversations.json"
    for vector in json.loads(path.read_text()):
        packets = [("da".index(side), bytes.fromhex(data)) for side, data in vector["steps"]]
        found = open_conversation(packets, "\n".join(vector["keys"]).encode())
        assert [received.hex() for received in found.received] == vector["sent"], vector["name"]


def test_cutting_the_packets_differently_changes_nothing(talk: Conversation) -> None:
    for size in (1, 3, 4, 5, 6, 17, 1000, 70_000):
        packets = talk.packets(size) if size > 10 else Conversation(talk.flights[:12]).packets(size)
        found = open_conversation(packets, talk.key_log, per_batch=500)
        for side in (0, 1):
            assert talk.sent[side].startswith(found.received[side])
            assert found.received[side]


def test_a_hello_retry_request_and_a_resumed_session_are_followed() -> None:
    peers = TlsPeers(retry=True)
    conversation = exchange(peers)
    assert open_conversation(conversation.packets(), conversation.key_log).received == (
        conversation.sent
    )
    for version in (TLS12, TLS13):
        first = TlsPeers(version)
        first.send(1, b"ticket")
        first.finish()
        second = TlsPeers(contexts=first.contexts, resumed=first.peers[0].session)
        assert second.peers[0].session_reused
        conversation = exchange(second)
        found = open_conversation(conversation.packets(), conversation.key_log)
        assert found.received == conversation.sent


def test_offsets_lead_back_to_the_wire(talk: Conversation) -> None:
    keys = KeyLog()
    keys.add_text(talk.key_log)
    layer = TlsLayer(keys)
    for batch in batches_of(talk.packets()):
        layer.open(batch)
    for side in (0, 1):
        wire = b"".join(data for sender, data in talk.flights if sender == side)
        starts, position = [], 0
        while position < len(wire):
            size = int.from_bytes(wire[position + 3 : position + 5], "big")
            starts.append((position, size - 17))  # content type and tag
            position += 5 + size
        plain = len(talk.sent[side])
        for start, content in reversed(starts):
            plain -= content
            if plain < 0:
                break
            assert layer.offsets[side].to_wire(plain) == start + 5
            assert layer.offsets[side].to_wire(plain + content - 1) == start + 5 + content - 1
        assert plain <= 0


@pytest.mark.parametrize(
    ("version", "suite"), [(TLS13, ""), (TLS12, TLS12_SUITES[0]), (TLS12, TLS12_SUITES[2])]
)
def test_one_lost_packet_costs_only_the_records_it_touches(
    version: ssl.TLSVersion, suite: str
) -> None:
    peers = TlsPeers(version, ciphers=suite)
    handshake_flights = len(peers.conversation.flights)
    generator = random.Random(1)
    for number in range(40):
        peers.send(number % 2, generator.randbytes(generator.choice((40, 900, 9000, 40_000))))
    conversation = peers.finish()
    packets = conversation.packets()
    handshake = len(Conversation(conversation.flights[:handshake_flights]).packets())
    for _ in range(70):
        number = generator.randrange(handshake + 2, len(packets) - 60)
        found = open_conversation(packets, conversation.key_log, frozenset({number}))
        assert not found.stopped
        for side in (0, 1):
            received, sent = found.received[side], conversation.sent[side]
            assert len(received) == len(sent)
            lost = 0
            for start in range(0, len(sent), 512):
                part = received[start : start + 512]
                if part != sent[start : start + 512]:
                    pairs = zip(part, sent[start : start + 512], strict=True)
                    assert all(got in (LOST, byte) for got, byte in pairs)
                    lost += len(part)
            assert (lost > 0) == (side == packets[number][0])
            # The packet touches at most two records of 16 KiB, and many small ones at its size.
            assert lost <= (2 * 16384 + 1024 if side == packets[number][0] else 0)


def test_many_lost_packets_are_survived(talk: Conversation) -> None:
    packets = talk.packets()
    generator = random.Random(5)
    for _ in range(20):
        lost = frozenset(n for n in range(8, len(packets)) if generator.random() < 0.1)
        found = open_conversation(packets, talk.key_log, lost)
        for side in (0, 1):
            if side not in found.stopped:
                received, sent = found.received[side], talk.sent[side]
                assert all(a == b or a == LOST for a, b in zip(received, sent, strict=False))


def test_a_hole_in_the_handshake_names_the_missing_message(talk: Conversation) -> None:
    packets = talk.packets()
    assert "ClientHello" in open_conversation(packets, talk.key_log, frozenset({0})).layer.failure
    assert "ServerHello" in open_conversation(packets, talk.key_log, frozenset({1})).layer.failure


def test_a_lost_finished_or_ticket_loses_no_data() -> None:
    for version in (TLS12, TLS13):
        peers = TlsPeers(version)
        handshake = [side for side, _ in peers.conversation.flights]
        conversation = exchange(peers, 4)
        flights = conversation.flights
        for number in range(2, len(handshake)):
            found = open_conversation(flights, conversation.key_log, frozenset({number}))
            assert found.received == conversation.sent, (version, number, found.layer.notes)


def test_what_cannot_be_opened_has_a_reason(talk: Conversation) -> None:
    packets = talk.packets()
    other = exchange(TlsPeers(), 1).key_log
    lines = [line for line in talk.key_log.splitlines() if not line.startswith(b"#")]
    client_random = lines[0].split()[1]
    assert "no secret" in open_conversation(packets, b"").layer.failure
    assert "no secret" in open_conversation(packets, other).layer.failure
    some = b"\n".join(line for line in lines if b"HANDSHAKE" not in line)
    assert "only some" in open_conversation(packets, some).layer.failure
    wrong = b"\n".join(b" ".join((line.split()[0], client_random, b"ab" * 48)) for line in lines)
    assert "does not open" in open_conversation(packets, wrong).layer.failure
    cbc = exchange(TlsPeers(TLS12, ciphers="ECDHE-ECDSA-AES128-SHA"), 2)
    found = open_conversation(cbc.packets(), cbc.key_log)
    assert "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA" in found.layer.failure
    assert found.content == (b"", b"")


def test_forged_and_cut_records_end_in_no_error_and_no_wrong_byte(talk: Conversation) -> None:
    packets = talk.packets()
    generator = random.Random(3)
    for _ in range(60):
        number = generator.randrange(len(packets))
        side, data = packets[number]
        changed = bytearray(data)
        for _ in range(generator.choice((1, 5, 50))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        if generator.random() < 0.3:
            changed = changed[: generator.randrange(len(changed)) + 1]
        if generator.random() < 0.3:
            changed += generator.randbytes(60)
        forged = [*packets[:number], (side, bytes(changed)), *packets[number + 1 :]]
        found = open_conversation(forged, talk.key_log)
        kept = [received for received in found.received if LOST not in received]
        assert all(any(sent.startswith(part) for sent in talk.sent) for part in kept if part)


def test_a_stream_of_forged_headers_is_given_up(talk: Conversation) -> None:
    packets = talk.packets()
    forged = (0, b"\x17\x03\x03\x00\x20" * 4000)
    found = open_conversation([*packets, *[forged] * 40], talk.key_log)
    assert found.received[0].startswith(talk.sent[0][:1])
    assert sum(found.layer.undecoded_bytes) >= 20_000
