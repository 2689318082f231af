"""Comparison with dpkt and scapy, which read and make the same packets."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable

import dpkt
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting
from scapy.layers.l2 import CookedLinux, Dot1AD, Dot1Q, Ether, Loopback
from scapy.packet import Packet as ScapyPacket
from scapy.packet import Raw
from tests.capture import capture_builder as build
from tests.capture.capture_builder import Packet
from tests.capture.conftest import streams
from tests.capture.packet_headers import headers

from polymux.capture import index_file, read_sessions
from polymux.capture.packets.flows import flow_endpoints
from polymux.capture.synthesis.packet_builder import HeaderTemplate

Row = tuple[int, str, int, str, int, int, int, int, int, bytes]


def ours(path: str) -> list[Row]:
    """(ns, source, port, target, port, seq, ack, flags, window, payload) of every reference."""
    with open(path, "rb") as file:
        data = file.read()
    rows = []
    for row in index_file(path).rows:
        ends = flow_endpoints(row.flow)
        source, target = ends[row.direction], ends[1 - row.direction]
        for place, at, both, header in struct.iter_unpack("<qqQQ", row.refs):
            start = place >> 20
            payload = data[start : start + (place & 0xFFFFF)]
            seen = (both >> 32, both & 0xFFFFFFFF, header >> 16 & 255, header & 65535, payload)
            rows.append((start, (at, *source, *target, *seen)))
    return [row for _, row in sorted(rows)]


def theirs(path: str) -> list[Row]:
    rows = []
    with open(path, "rb") as file:
        for at, data in dpkt.pcap.Reader(file):
            packet = dpkt.ethernet.Ethernet(data).data
            segment = packet.data
            inet = dpkt.utils.inet_to_str
            rows.append(
                (
                    int(at * 10**6) * 1000,
                    inet(packet.src),
                    segment.sport,
                    inet(packet.dst),
                    segment.dport,
                    segment.seq,
                    segment.ack,
                    segment.flags,
                    segment.win,
                    bytes(segment.data),
                )
            )
    return rows


def test_dpkt_sees_the_same_in_random_packets(write: Callable[..., str]) -> None:
    chance = random.Random(8)
    packets = []
    for n in range(300):
        family = chance.choice([(build.ALICE, build.BOB), (build.ALICE6, build.BOB6)])
        ends = [build.End(end.address, chance.randrange(1, 4) * 20000) for end in family]
        chance.shuffle(ends)
        body = build.tcp(
            ends[0],
            ends[1],
            chance.randrange(2**32),
            chance.randrange(2**32),
            chance.randrange(1, 64),
            chance.randbytes(chance.choice([0, 1, 5, 100])),
            chance.randrange(2**16),
            options=b"\x01" * chance.randrange(0, 41),
        )
        packets.append(
            Packet(build.START + n * 1000, build.ethernet(build.ip(ends[0], ends[1], body)))
        )
    path = write(build.pcap(packets))
    assert ours(path) == theirs(path)


def ether() -> ScapyPacket:
    """With addresses: otherwise scapy resolves the next hop on the network."""
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


def layers() -> list[tuple[int, Callable[[ScapyPacket], ScapyPacket]]]:
    return [
        (1, lambda p: ether() / p),
        (1, lambda p: ether() / Dot1Q(vlan=3) / p),
        (1, lambda p: ether() / Dot1AD(vlan=3) / Dot1Q(vlan=4) / p),
        (101, lambda p: p),
        (113, lambda p: CookedLinux(proto=0x86DD if IPv6 in p else 0x800) / p),
        (0, lambda p: Loopback(type=30 if IPv6 in p else 2) / p),
    ]


@pytest.mark.parametrize(("link", "wrap"), layers())
def test_packets_scapy_makes_are_understood(
    write: Callable[..., str], link: int, wrap: Callable[[ScapyPacket], ScapyPacket]
) -> None:
    chance = random.Random(9)
    sent = chance.randbytes(1000)
    for ip in (
        IP(src="192.0.2.1", dst="192.0.2.2", options=b"\x01\x01\x01\x00"),
        IPv6(src="2001:db8::1", dst="2001:db8::2"),
        IPv6(src="2001:db8::1", dst="2001:db8::2")
        / IPv6ExtHdrHopByHop()
        / IPv6ExtHdrRouting()
        / IPv6ExtHdrDestOpt(),
    ):
        packets = []
        for n in range(10):
            tcp = TCP(sport=40000, dport=9000, seq=n * 100, flags="PA", options=[("NOP", None)] * 4)
            whole = wrap(ip / tcp / Raw(sent[n * 100 : n * 100 + 100]))
            packets.append(Packet(build.START + n, bytes(whole)))
        path = write(build.pcap(packets, link=link))
        with read_sessions([path], verify=True) as reading:
            assert reading.files[0].status == "whole"
            (session,) = reading
            assert streams(session)[0] == sent


@pytest.mark.parametrize("version", [4, 6])
def test_scapy_computes_the_checksums_we_write(version: int) -> None:
    chance = random.Random(10)
    ends = [("192.0.2.1", 40000), ("198.51.100.2", 9000)]
    if version == 6:
        ends = [("2001:db8::1", 40000), ("2001:db8::2", 9000)]
    for size in (0, 1, 2, 63, 64, 65, 1448, 65495):
        payload = chance.randbytes(size)
        maker = HeaderTemplate(ends[0], ends[1], 0)
        seq, ack = chance.randrange(2**32), chance.randrange(2**32)
        parsed = Ether(headers(maker, seq, ack, 24, payload) + payload)
        said = parsed[TCP].chksum
        del parsed[TCP].chksum
        if version == 4:
            ip_said = parsed[IP].chksum
            del parsed[IP].chksum
            assert Ether(bytes(parsed))[IP].chksum == ip_said
        assert Ether(bytes(parsed))[TCP].chksum == said


@pytest.mark.parametrize("ends", [(build.ALICE, build.BOB), (build.ALICE6, build.BOB6)])
def test_a_flipped_bit_is_found_by_the_checksum(
    write: Callable[..., str], ends: tuple[build.End, build.End]
) -> None:
    packets = build.talk((0, b"one"), (0, b"two"), (0, b"three"), ends=ends)
    good = write(build.pcapng(packets), "good")
    with read_sessions([good], verify=True) as reading:
        assert reading.files[0].status == "whole"
        assert streams(next(iter(reading)))[0] == b"onetwothree"
    flipped = bytearray(packets[4].data)
    flipped[-1] ^= 1
    again = Packet(packets[4].at + 5, packets[4].data)
    bad = [*packets[:4], Packet(packets[4].at, bytes(flipped)), again, *packets[5:]]
    with read_sessions([write(build.pcapng(bad), "bad")], verify=True) as reading:
        assert reading.files[0].status == "damaged"
        assert "wrong checksum" in (reading.files[0].error or "")
        assert reading.files[0].packets == len(bad)
        assert streams(next(iter(reading)))[0] == b"onetwothree"
    with read_sessions([write(build.pcapng(bad), "bad")]) as reading:
        assert streams(next(iter(reading)))[0] == b"onetwnthree"


def test_a_wrong_ip_header_is_found_too(write: Callable[..., str]) -> None:
    packets = build.talk((0, b"one"))
    packets[3].data = packets[3].data[:22] + b"\x11" + packets[3].data[23:]
    summary = index_file(write(build.pcap(packets)), verify=True).summary
    assert (summary.status, summary.tcp_packets) == ("damaged", len(packets) - 1)


@pytest.mark.parametrize("said", ["nothing", "pseudo", "pseudo without length"])
def test_checksums_left_to_the_network_card_are_accepted(
    write: Callable[..., str], said: str
) -> None:
    data = build.frame(build.ALICE, build.BOB, 1, payload=b"offload")
    addresses = data[26:34]
    length = len(data) - 34 if said == "pseudo" else 0
    pseudo = addresses + struct.pack(">BBH", 0, 6, length)
    value = 0 if said == "nothing" else 0xFFFF - build.checksum(pseudo)
    partial = data[:50] + struct.pack(">H", value) + data[52:]
    assert partial != data
    summary = index_file(write(build.pcap([Packet(0, partial)])), verify=True).summary
    assert (summary.status, summary.tcp_packets) == ("whole", 1)


def test_dpkt_reads_what_we_write(tmp_path_factory: pytest.TempPathFactory) -> None:
    from polymux.capture import PcapngWriter, TcpConnectionWriter

    path = str(tmp_path_factory.mktemp("dpkt") / "written.pcapng")
    with PcapngWriter(path) as writer:
        TcpConnectionWriter(writer, ("192.0.2.1", 1), ("192.0.2.2", 2), build.START).data(
            0, b"hello", 0
        )
    with open(path, "rb") as file:
        frames = [data for _, data in dpkt.pcapng.Reader(io.BytesIO(file.read()))]
    assert len(frames) == 4
    assert bytes(dpkt.ethernet.Ethernet(frames[3]).data.data.data) == b"hello"
