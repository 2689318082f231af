"""Sessions of one packet, of which a capture may have millions: each has its own numbers."""

import ssl
import struct
from pathlib import Path

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions

COLUMNS = ("bytes_dialer", "missing_bytes_dialer", "undecoded_bytes_dialer", "server_name", "note")
CONTENT = bytes(range(200, 230))  # no frame of any protocol


def packet(port: int, content: bytes, cut: int) -> tuple[bytes, int]:
    """An Ethernet frame, and its length on the wire: `cut` bytes of it were not captured."""
    tcp = struct.pack(">HHIIBBHHH", port, 443, 1000, 1, 5 << 4, 0x18, 65535, 0, 0) + content
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp) + cut, 1, 0, 64, 6, 0,
                     bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2]))  # fmt: skip
    frame = bytes(12) + b"\x08\x00" + ip + tcp
    return frame, len(frame) + cut


def summaries(path: Path, packets: list[tuple[bytes, int]]) -> list[tuple[object, ...]]:
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame, length in packets:
            file.write(struct.pack("<IIII", 1_700_000_000, 0, len(frame), length) + frame)
    found = {}
    with read_sessions([str(path)]) as sessions:
        for session in sessions:
            row = analyze_session(session, AnalysisOptions("yamux"), lambda _table, _batch: None)
            found[str(session.dialer)] = tuple(row.row()[name] for name in COLUMNS)
    return [found[name] for name in sorted(found)]


def alone(tmp_path: Path, packets: list[tuple[bytes, int]]) -> list[tuple[object, ...]]:
    return [
        summaries(tmp_path / f"{number}.pcap", [each])[0] for number, each in enumerate(packets)
    ]


def client_hello(name: str) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a peer")


def test_a_packet_that_was_cut_is_not_counted_as_a_whole_one_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    packets = [packet(2001, CONTENT, 0), packet(2002, CONTENT, 500), packet(2003, CONTENT, 0)]
    found = summaries(tmp_path / "all.pcap", packets)
    assert found == alone(tmp_path, packets)
    assert [row[1] for row in found] == [0, 500, 0]


def test_a_lone_client_hello_keeps_its_own_server_name(tmp_path: Path) -> None:
    packets = [
        packet(port, client_hello(f"{name}.example"), 0)
        for port, name in ((1001, "one"), (1002, "two"))
    ]
    found = summaries(tmp_path / "all.pcap", packets)
    assert found == alone(tmp_path, packets)
    assert [row[3] for row in found] == ["one.example", "two.example"]
