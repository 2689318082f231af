"""Packets from files: formats, byte orders, link types, IP and TCP headers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ALICE, ALICE6, BOB, BOB6, Packet
from tests.capture.conftest import streams

from polymux.capture import CaptureReader, read_sessions
from polymux.capture.packets.indexer import index_file
from polymux.capture.packets.packet_refs import REF_BYTES
from polymux.capture.pcapng.scanner import Scanner

LINES = ((0, b"hello"), (1, b"welcome"), (0, b"bye"))


def only(reading: CaptureReader) -> tuple[bytes, bytes]:
    (session,) = reading
    return streams(session)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("nano", [False, True])
def test_classic_pcap_is_read_in_both_orders_and_resolutions(
    read: Callable[..., CaptureReader], big: bool, nano: bool
) -> None:
    reading = read(build.pcap(build.talk(*LINES), nano=nano, big=big))
    assert only(reading) == (b"hellobye", b"welcome")
    assert next(iter(reading)).started_at == build.START
    assert reading.files[0].format == "pcap"
    assert reading.files[0].status == "whole"


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_is_read_in_both_orders(read: Callable[..., CaptureReader], order: str) -> None:
    blocks = [build.enhanced(packet, order) for packet in build.talk(*LINES)]
    data = b"".join([build.section(order=order), build.interface(order=order), *blocks])
    assert only(read(data)) == (b"hellobye", b"welcome")


def test_sections_of_different_orders_follow_one_another(
    read: Callable[..., CaptureReader],
) -> None:
    packets = build.talk(*LINES)
    data = b""
    for n, packet in enumerate(packets):
        order = "<>"[n % 2]
        data += build.section(order=order) + build.interface(order=order)
        data += build.enhanced(packet, order)
    assert only(read(data)) == (b"hellobye", b"welcome")


@pytest.mark.parametrize(
    ("resolution", "ticks", "offset", "expected"),
    [
        (None, 1_700_000_000_000_001, None, 1_700_000_000_000_001_000),
        (0, 1_700_000_000, None, 1_700_000_000_000_000_000),
        (3, 1_700_000_000_123, None, 1_700_000_000_123_000_000),
        (9, 1_700_000_000_123_456_789, None, 1_700_000_000_123_456_789),
        (12, 1_700_000_000_123_456_789, None, 1_700_000_000_123_456),
        (0x80 | 10, 1024 * 5 + 512, None, 5_500_000_000),
        (0x80 | 32, 7 << 32 | 1 << 31, None, 7_500_000_000),
        (6, 1_000_000, 1_700_000_000, 1_700_000_001_000_000_000),
        (6, 1_000_000, -5, -4_000_000_000),
        (9, 2**64 - 1, None, 2**62 - 1),
        (0, 2**64 - 1, 2**63 - 1, 2**62 - 1),
        (9, 2**62, None, 2**62 - 1),
        (9, 0, -(2**63), -(2**62)),
        (127, 5, None, 0),
        (0xFF, 2**63, None, 0),
    ],
)
def test_every_resolution_of_time_becomes_nanoseconds(
    write: Callable[..., str], resolution: int | None, ticks: int, offset: int | None, expected: int
) -> None:
    packet = Packet(0, build.frame(ALICE, BOB, 1, payload=b"x"))
    data = build.section() + build.interface(resolution=resolution, offset=offset)
    (row,) = index_file(write(data + build.enhanced(packet, ticks=ticks))).rows
    assert row.first_at == expected


def test_simple_and_obsolete_packet_blocks_are_read(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk(*LINES)
    blocks = [(build.simple, build.obsolete)[n % 2](packet) for n, packet in enumerate(packets)]
    assert only(read(build.section() + build.interface() + b"".join(blocks))) == (
        b"hellobye",
        b"welcome",
    )


def test_simple_packets_are_cut_at_the_snap_length(read: Callable[..., CaptureReader]) -> None:
    data = build.frame(ALICE, BOB, 1, payload=b"0123456789")
    cut = Packet(0, data[:-4], wire=len(data))
    capture = build.section() + build.interface(snap=len(data) - 4) + build.simple(cut)
    assert only(read(capture)) == (b"012345????", b"")


def test_unknown_blocks_are_skipped(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk(*LINES)
    data = build.section() + build.interface()
    for packet in packets:
        data += build.block(0x0BAD, b"whatever") + build.enhanced(packet) + build.block(5, b"")
    assert only(read(data)) == (b"hellobye", b"welcome")


def test_a_packet_belongs_to_its_own_interface(read: Callable[..., CaptureReader]) -> None:
    ends = (ALICE, BOB)
    first, *rest = build.talk(*LINES)
    data = build.section() + build.interface(resolution=6) + build.interface(build.RAW)
    data += build.enhanced(first, ticks=first.at // 1000)
    for packet in rest:
        raw = Packet(packet.at, packet.data[14:], interface=1)
        data += build.enhanced(raw)
    (session,) = read(data)
    assert session.dialer == str(ends[0])
    assert session.started_at == build.START
    assert streams(session) == (b"hellobye", b"welcome")


def cooked(packet: bytes) -> bytes:
    return bytes(14) + packet[12:]


def cooked2(packet: bytes) -> bytes:
    return packet[12:14] + bytes(18) + packet[14:]


@pytest.mark.parametrize(
    ("link", "wrap"),
    [
        (build.ETHERNET, lambda f: f),
        (build.ETHERNET, lambda f: build.ethernet(f[14:], 0x8100)),
        (build.ETHERNET, lambda f: build.ethernet(f[14:], 0x88A8, 0x8100)),
        (build.COOKED, cooked),
        (build.COOKED2, cooked2),
        (build.RAW, lambda f: f[14:]),
        (build.NULL, lambda f: b"\x02\0\0\0" + f[14:]),
        (build.LOOP, lambda f: b"\0\0\0\x18" + f[14:]),
    ],
    ids=["ethernet", "vlan", "vlan-twice", "cooked", "cooked2", "raw", "null", "loop"],
)
@pytest.mark.parametrize("ends", [(ALICE, BOB), (ALICE6, BOB6)], ids=["ipv4", "ipv6"])
def test_every_link_type_leads_to_the_same_bytes(
    read: Callable[..., CaptureReader],
    link: int,
    wrap: Callable[[bytes], bytes],
    ends: tuple[build.End, build.End],
) -> None:
    packets = [Packet(p.at, wrap(p.data)) for p in build.talk(*LINES, ends=ends)]
    for data in (build.pcapng(packets, link=link), build.pcap(packets, link=link)):
        (session,) = read(data)
        assert (session.dialer, session.acceptor) == (ends[0].text, ends[1].text)
        assert streams(session) == (b"hellobye", b"welcome")


def test_ip_and_tcp_options_and_ethernet_padding_are_not_payload(
    read: Callable[..., CaptureReader],
) -> None:
    segment = build.tcp(ALICE, BOB, 1, payload=b"abc", options=b"\x01\x01\x08\x0a" + bytes(8))
    packet = build.ethernet(build.ipv4(ALICE, BOB, segment, options=b"\x94\x04\0\0"))
    assert only(read(build.pcap([Packet(0, packet + b"padding")]))) == (b"abc", b"")


def test_ipv6_extension_headers_are_skipped(read: Callable[..., CaptureReader]) -> None:
    segment = build.tcp(ALICE6, BOB6, 1, payload=b"abc")
    hop = bytes([60, 0]) + bytes(6)
    destination = bytes([43, 1]) + bytes(14)
    routing = bytes([51, 0]) + bytes(6)
    authentication = bytes([44, 4]) + bytes(22)
    atomic_fragment = bytes([6, 0, 0, 0]) + bytes(4)
    body = hop + destination + routing + authentication + atomic_fragment + segment
    packet = build.ethernet(build.ipv6(ALICE6, BOB6, body, first=0))
    assert only(read(build.pcap([Packet(0, packet)]))) == (b"abc", b"")


def test_fragments_and_other_packets_are_counted(read: Callable[..., CaptureReader]) -> None:
    segment = build.tcp(ALICE, BOB, 1, payload=b"abc")
    fragment6 = bytes([6, 0, 0, 1]) + bytes(4) + build.tcp(ALICE6, BOB6, 1)
    packets = [
        build.ethernet(build.ipv4(ALICE, BOB, segment, fragment=0x2000)),
        build.ethernet(build.ipv4(ALICE, BOB, segment, fragment=3)),
        build.ethernet(build.ipv6(ALICE6, BOB6, fragment6, first=44)),
        build.ethernet(build.ipv4(ALICE, BOB, segment, protocol=17)),
        bytes(12) + b"\x08\x06" + bytes(28),
        b"",
        b"short",
        build.ethernet(build.ipv4(ALICE, BOB, segment)),
    ]
    summary = read(build.pcap([Packet(n, data) for n, data in enumerate(packets)])).files[0]
    assert (summary.packets, summary.tcp_packets, summary.other_packets) == (8, 1, 7)
    assert summary.fragments == 3


def test_a_total_length_left_to_the_network_card_is_taken_from_the_frame(
    read: Callable[..., CaptureReader],
) -> None:
    segment = build.tcp(ALICE, BOB, 1, payload=bytes(70000))
    packet = build.ethernet(build.ipv4(ALICE, BOB, segment, total=0))
    assert only(read(build.pcap([Packet(0, packet)]))) == (bytes(70000), b"")


def test_bytes_cut_by_the_snap_length_are_a_gap(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk((0, b"0123456789"), (0, b"abcdefghij"))
    for packet in packets:
        packet.wire = len(packet.data)
        packet.data = packet.data[: 54 + 6]
    assert only(read(build.pcap(packets))) == (b"012345????abcdef????", b"")


def test_a_cut_inside_the_tcp_options_leaves_only_a_gap(read: Callable[..., CaptureReader]) -> None:
    segment = build.tcp(ALICE, BOB, 1, payload=b"abc", options=bytes(12))
    data = build.ethernet(build.ipv4(ALICE, BOB, segment))
    assert only(read(build.pcap([Packet(0, data[: 14 + 20 + 24], wire=len(data))]))) == (
        b"???",
        b"",
    )


def test_references_say_what_the_header_said(write: Callable[..., str]) -> None:
    data = build.frame(ALICE, BOB, 0xFFFFFFF0, 0x80000001, build.PSH | build.ACK, b"xyz", 777)
    capture = build.pcapng([Packet(build.START + 5, data, wire=len(data) + 9)])
    (row,) = index_file(write(capture)).rows
    place, at, both, header = struct.unpack("<qqQQ", row.refs)
    assert len(row.refs) == REF_BYTES
    assert capture[place >> 20 :].startswith(b"xyz")
    assert place & 0xFFFFF == 3
    assert at == build.START + 5
    assert (both >> 32, both & 0xFFFFFFFF) == (0xFFFFFFF0, 0x80000001)
    assert (header >> 16 & 0xFF, header & 0xFFFF) == (build.PSH | build.ACK, 777)
    # the IP header claims no more than was captured, so nothing is missing
    assert header >> 32 == 0


@pytest.mark.parametrize(
    ("section", "interface", "packet", "expected"),
    [
        ("protocol=mplex", "", "", ("mplex", None)),
        ("protocol=mplex", "protocol=minmux", "", ("minmux", None)),
        ("protocol=mplex", "protocol=minmux", "protocol=nerdbank:version=2; vantage=dialer",
         ("nerdbank:version=2", "dialer")),
        ("", "", "vantage=middle", (None, "middle")),
        ("", "", "vantage=mars", (None, None)),
    ],
)  # fmt: skip
def test_the_nearest_comment_names_protocol_and_vantage(
    read: Callable[..., CaptureReader],
    section: str,
    interface: str,
    packet: str,
    expected: tuple[str | None, str | None],
) -> None:
    def said(text: str) -> str:
        return f"polymux: {text}" if text else ""

    packets = build.talk(*LINES)
    packets[0].comment = said(packet)
    data = build.section(said(section)) + build.interface(comment=said(interface))
    (session,) = read(data + b"".join(build.enhanced(p) for p in packets))
    assert (session.protocol_hint, session.vantage_hint) == expected


def test_comments_without_the_prefix_are_ignored(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk(*LINES)
    packets[0].comment = "looks like polymux: protocol=mplex"
    (session,) = read(build.pcapng(packets, comment="captured at noon"))
    assert session.protocol_hint is None


def test_flows_are_chosen_by_port_and_filter(write: Callable[..., str]) -> None:
    other = build.End("203.0.113.9", 22)
    packets = build.talk(*LINES) + build.talk(*LINES, ends=(ALICE, other))
    path = write(build.pcapng(packets))

    def found(**keywords: object) -> list[str]:
        return [s.acceptor for s in read_sessions([path], **keywords)]  # type: ignore[arg-type]

    assert found() == ["198.51.100.2:9000", "203.0.113.9:22"]
    assert found(ports=[9000]) == ["198.51.100.2:9000"]
    assert found(filters=["203.0.113.9:22"]) == ["203.0.113.9:22"]
    assert found(filters=["203.0.113.9"]) == ["203.0.113.9:22"]
    assert found(filters=[":22"]) == ["203.0.113.9:22"]
    assert found(filters=["203.0.113.9:23"]) == []


@pytest.mark.parametrize("text", ["", "nowhere:1", "1.2.3.4:99999", "[::1", "*"])
def test_an_invalid_filter_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="filter"):
        read_sessions([str(tmp_path)], filters=[text])


def blocks_of(
    order: str, packets: list[tuple[int, int, int, bytes]], said: bytes
) -> tuple[bytes, list[int]]:
    """Two sections with three interfaces each, and the offset of each packet."""
    out, places = b"", []
    for half in (packets[: len(packets) // 2], packets[len(packets) // 2 :]):
        out += build.section(order=order)
        for resolution in (9, 6, 0x80 | 20):
            out += build.interface(resolution=resolution, order=order)
        for which, ticks, cut, payload in half:
            data = build.frame(ALICE, BOB, 1, payload=payload)[: -cut or None]
            head = struct.pack(
                order + "IIIII", which, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data) + cut
            )
            places.append(len(out) + 28)
            out += build.block(6, head + data + bytes(-len(data) % 4) + said, order)
    return out, places


@settings(deadline=None)
@given(
    st.sampled_from("<>"),
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, 0, 1, 2, 3]),
            st.integers(0, 2**64 - 1) | st.integers(0, 2**32),
            st.integers(0, 70),
            st.binary(max_size=9),
        ),
        max_size=12,
    ),
)
def test_a_packet_with_options_is_read_like_one_without(
    order: str, packets: list[tuple[int, int, int, bytes]]
) -> None:
    """A block without options takes the fast path."""
    found = []
    for said in (b"", build.options((2, bytes(4)), order=order)):
        data, places = blocks_of(order, packets, said)
        scanner = Scanner(1 << 20, 1 << 18, 100, 100)
        assert scanner.scan(data, 0) == len(data)
        rows = []
        for refs in scanner.table.pack():
            for word, at, both, header in struct.iter_unpack("<4q", refs):
                place = max(each for each in places if each <= word >> 20)
                rows.append((places.index(place), (word >> 20) - place, word & 0xFFFFF, at, both,
                             header))  # fmt: skip
        found.append((rows, scanner.table.packets, scanner.error_count, scanner.first_error))
    assert found[0] == found[1]
