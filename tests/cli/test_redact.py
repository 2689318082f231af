"""`polymux redact`: the same tables, and not a byte of content anywhere in the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ACK, PSH, Packet
from tests.capture.pcap_files import as_classic_pcap
from tests.capture.tcp.test_reassembly import accepted, dialled, timed
from tests.cli.conftest import Ran
from tests.cli.test_annotate import tshark_fields

from polymux.capture import read_sessions

SECRET = b"the-planted-secret-"
OPEN, CLOSE = b"\x08\x08accounts", b"\x0c\x00"


def content(number: int, size: int = 60) -> bytes:
    """A content frame of mplex with planted bytes."""
    body = (SECRET + b"%d." % number).ljust(size, b"*")
    return bytes([0x0A, size]) + body


def tables(run: Callable[..., Ran], path: str, *options: str) -> list[list[dict[str, object]]]:
    """The rows of frames, streams, stalls and violations, without the capture's name."""
    found = []
    for name in ("frames", "check", "ls"):
        ran = run(name, path, "--json", *options)
        rows = [json.loads(line) for line in ran.out.splitlines()]
        for row in rows:
            for volatile in ("capture", "evidence", "file"):
                row.pop(volatile, None)
        found.append([row for row in rows if row.get("table") != "captures"])
    return found


@pytest.fixture
def redacted(run: Callable[..., Ran], tmp_path: Path) -> Callable[..., tuple[str, Ran]]:
    def make(source: str, *options: str) -> tuple[str, Ran]:
        out = str(tmp_path / f"out{len(list(tmp_path.iterdir()))}.pcapng")
        return out, run("redact", source, "-o", out, *options)

    return make


HOST_HINTS = (
    b"polymux: sensor=inner-host; protocol=omnistreams:profile=/inner-host; vantage=acceptor\n"
    b"polymux: recording=0f1e2d3c4b5a6978; file=3; hardware=inner-host"
)


def write(tmp_path: Path, data: bytes, name: str = "source.pcapng") -> str:
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)


def disordered_packets() -> list[Packet]:
    """A talk with reordering, retransmissions, a conflicting copy and a pause."""
    frames = [content(n) for n in range(6)]
    at = [101 + len(OPEN) + 62 * n for n in range(7)]
    reply = bytes([0x09, 40]) + SECRET.ljust(40, b"+")
    return timed(
        dialled(101, flags=ACK | PSH, payload=OPEN),
        dialled(at[1], flags=ACK | PSH, payload=frames[1]),  # too early
        dialled(at[0], flags=ACK | PSH, payload=frames[0]),
        dialled(at[0], flags=ACK | PSH, payload=frames[0] + frames[1][:30]),  # again
        accepted(901, flags=ACK | PSH, payload=reply),
        dialled(at[2], flags=ACK | PSH, payload=frames[2] + frames[3]),
        dialled(at[3], flags=ACK | PSH, payload=frames[3][:20] + b"ANOTHER-planted-secret-copy"),
        (900, dialled(at[4], flags=ACK | PSH, payload=frames[4])),
        (901, dialled(at[5], flags=ACK | PSH, payload=frames[5] + b"\x80" * 10 + SECRET)),
    )


def test_disorder_copies_and_damage_leave_the_same_tables_and_no_content(
    redacted: Callable[..., tuple[str, Ran]], run: Callable[..., Ran], tmp_path: Path
) -> None:
    source = write(tmp_path, build.pcapng(disordered_packets()))
    expected = tables(run, source)
    assert any(row.get("rule") == "mplex.varint-too-long" for row in expected[1])
    for options in ((), ("--payload", "hash"), ("--payload", "head:0")):
        out, ran = redacted(source, "--names", "keep", *options)
        assert ran.code == 0, ran.err
        assert tables(run, out) == expected
        data = Path(out).read_bytes()
        assert b"planted" not in data
        assert b"accounts" in data
        assert b"redacted by polymux: payload" in data
        assert oct(Path(out).stat().st_mode & 0o777) == "0o600"
    fields = ("frame.time_epoch", "frame.len", "tcp.seq_raw", "tcp.ack_raw", "tcp.len")
    assert tshark_fields(out, *fields) == tshark_fields(source, *fields)


def test_checksums_are_right_where_they_were_and_wrong_where_they_were(
    redacted: Callable[..., tuple[str, Ran]], tmp_path: Path
) -> None:
    packets = build.talk((0, OPEN), (0, content(1)), (0, content(2)))
    bad = bytearray(packets[4].data)
    bad[-1] ^= 1  # no longer what the checksum says
    packets[4] = Packet(packets[4].at, bytes(bad))
    out, _ = redacted(write(tmp_path, build.pcapng(packets)), "--protocol", "mplex")
    with read_sessions([out], verify=True) as reading:
        (session,) = list(reading)
        assert sum(piece.size for piece in session.pieces() if not piece.is_gap) == 72
        assert session.missing_bytes == (62, 0)


def test_nothing_else_of_the_file_is_carried_over(
    redacted: Callable[..., tuple[str, Ran]], run: Callable[..., Ran], tmp_path: Path
) -> None:
    udp = build.ethernet(build.ipv4(build.ALICE, build.BOB, bytes(8) + SECRET, protocol=17))
    arp = b"\xff" * 12 + b"\x08\x06" + SECRET * 2
    talk = build.talk((0, OPEN), (0, content(1)))
    trailing = Packet(talk[4].at, talk[4].data + SECRET)
    other = build.talk((0, SECRET * 4), ends=(build.End("192.0.2.9", 41000), build.BOB))
    order = "<"
    blocks = [
        build.block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
                    + build.options((1, HOST_HINTS + b"\n" + SECRET), (2, SECRET), (4, SECRET))),
        build.block(1, struct.pack("<HHI", 1, 0, 0) + build.options((2, SECRET), (1, SECRET))),
        build.block(4, struct.pack("<HH", 1, 16) + bytes(4) + SECRET[:12] + bytes(4)),
        build.block(10, struct.pack("<II", 0x544C534B, 20) + SECRET.ljust(20)),
        build.block(0xBAD, SECRET.ljust(20)),
    ]  # fmt: skip
    packets = [*talk[:4], trailing, *talk[5:], *other, Packet(talk[0].at, udp)]
    data = b"".join(blocks)
    for packet in [*packets, Packet(talk[0].at, arp)]:
        block = build.enhanced(packet, order)
        body = block[8:-4] + build.options((1, SECRET), (2988, SECRET + b"."))
        data += build.block(6, body)
    source = write(tmp_path, data)
    assert source
    out, ran = redacted(source, "--port", "9000=mplex", "--protocol", "mplex")
    assert ran.code == 0
    assert "2 packets that are not TCP: left out" in ran.err
    copied = Path(out).read_bytes()
    assert b"planted" not in copied
    assert SECRET[:10] not in copied
    assert b"inner-host" not in copied
    assert b"polymux: vantage=acceptor; recording=0f1e2d3c4b5a6978; file=3" in copied
    options = ("--port", "9000=mplex", "--sensor", "here")
    assert tables(run, out, *options)[0] == tables(run, source, *options)[0]


def test_a_session_that_is_not_decoded_is_blank_as_a_whole_and_said(
    redacted: Callable[..., tuple[str, Ran]], run: Callable[..., Ran], tmp_path: Path
) -> None:
    hello = bytes.fromhex("16030100") + b"\x2f\x01\x00\x00\x2b\x03\x03" + bytes(32)
    hello += b"\x00\x00\x02\x13\x01\x01\x00\x00\x00"
    for lines, words in (
        ([(0, SECRET * 5), (1, SECRET * 7)], "of no known protocol"),
        ([(0, hello), (1, SECRET * 5)], "inside TLS: nothing of the payload is left"),
    ):
        source = write(tmp_path, build.pcapng(build.talk(*lines)))
        out, ran = redacted(source)
        assert words in ran.err
        assert ran.code == 0
        assert b"planted" not in Path(out).read_bytes()
        sessions = [row for row in tables(run, out)[2] if row["table"] == "sessions"]
        assert [(row["protocol"], row["bytes_dialer"]) for row in sessions] == [
            (None, len(lines[0][1]))
        ]


def test_a_capture_that_begins_later_and_has_gaps_has_the_same_frames(
    lossy: Callable[..., str], redacted: Callable[..., tuple[str, Ran]], run: Callable[..., Ran]
) -> None:
    lines = [(0, OPEN, 0)] + [(0, content(n, 100), 5 * n + 1) for n in range(60)]
    lines += [(0, CLOSE, 400)]
    for syn, lost in ((True, (20, 21)), (False, (0, 1)), (False, (5, 30))):
        source = lossy(lines, lost, syn=syn, name=f"lossy{syn}{lost[0]}.pcapng")
        expected = tables(run, source, "--protocol", "mplex")
        assert len(expected[0]) > 50
        out, ran = redacted(source, "--protocol", "mplex", "--names", "keep")
        assert "--strict leaves these headers out" in ran.err
        found = tables(run, out, "--protocol", "mplex")
        if not syn:  # a name where the start was searched for may be content
            for row in (*found[2], *expected[2]):
                row.pop("name", None)
        assert found == expected
        assert b"planted" not in Path(out).read_bytes()
        strict, _ = redacted(source, "--protocol", "mplex", "--strict")
        assert len(tables(run, strict, "--protocol", "mplex")[0]) < len(expected[0])


@pytest.mark.parametrize("order", ["<", ">"])
def test_classic_pcap_is_redacted_too(
    order: str, redacted: Callable[..., tuple[str, Ran]], run: Callable[..., Ran], tmp_path: Path
) -> None:
    data = build.pcapng(disordered_packets())
    whole = write(tmp_path, data)
    source = write(tmp_path, as_classic_pcap(data, order), "source.pcap")
    out, ran = redacted(source)
    assert ran.code == 0
    assert b"planted" not in Path(out).read_bytes()
    assert b"accounts" not in Path(out).read_bytes()
    frames = tables(run, out)[0]
    assert frames == tables(run, whole)[0]


def test_what_cannot_be_meant_is_refused_and_nothing_is_replaced(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    source = write(tmp_path, build.pcapng(build.talk((0, OPEN))))
    taken = tmp_path / "taken.pcapng"
    taken.write_bytes(b"mine")
    for options, words in (
        (("-o", str(taken)), "exists already"),
        (("-o", str(tmp_path / "no" / "x")), "cannot be written"),
        (("-o", str(tmp_path / "x"), "--payload", "some"), "none of full, head:N"),
        (("-o", str(tmp_path / "x"), "--payload", "full", "--names", "keep"), "changes nothing"),
    ):
        ran = run("redact", source, *options)
        assert ran.code in (2, 3)
        assert words in ran.err
    assert taken.read_bytes() == b"mine"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["source.pcapng", "taken.pcapng"]


HTTP_TALK = (
    (0, b"POST /login HTTP/1.1\r\nHost: shop.example\r\nCookie: the-planted-secret-cookie\r\n"
        b"Content-Length: 26\r\n\r\nuser=alice&password=planted"),
    (1, b"HTTP/1.1 200 OK\r\nSet-Cookie: id=the-planted-secret\r\n\r\nplanted body"),
)  # fmt: skip


@pytest.mark.parametrize("names", ["hash", "keep"])
def test_a_session_of_another_protocol_than_the_named_one_is_blank_as_a_whole(
    names: str, redacted: Callable[..., tuple[str, Ran]], run: Callable[..., Ran], tmp_path: Path
) -> None:
    other = build.talk(*HTTP_TALK, ends=(build.End("192.0.2.9", 41000), build.BOB))
    talk = build.talk((0, OPEN), (0, content(1)))
    source = write(tmp_path, build.pcapng([*talk, *other]))
    out, ran = redacted(source, "--protocol", "mplex", "--names", names)
    assert ran.code == 0
    assert "1 session decoded" in ran.out
    assert "1 session of another protocol than the one that is named: nothing of" in ran.err
    copied = Path(out).read_bytes()
    for words in (b"planted", b"shop", b"HTTP", b"user=", b"Cookie", b"POST"):
        assert words not in copied
    assert (b"accounts" in copied) == (names == "keep")


@pytest.mark.parametrize(
    ("hint", "kept"),
    [
        (b"protocol=mplex; vantage=dialer", b"protocol=mplex; vantage=dialer"),
        (b"protocol=yamux:profile=/home/inner-host/x", b""),
        (b"protocol=inner-host; vantage=inner-host", b""),
        (b"recording=inner-host; file=1", b""),
        (b"recording=0f1e2d3c4b5a6978; file=inner-host", b""),
        (b"sensor=inner-host", b""),
        (b"hardware=inner-host", b""),
    ],
)
def test_hints_keep_only_words_that_polymux_knows(
    hint: bytes,
    kept: bytes,
    redacted: Callable[..., tuple[str, Ran]],
    tmp_path: Path,
) -> None:
    head = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    data = build.block(
        0x0A0D0D0A, head + build.options((1, b"polymux: " + hint), (2, b"inner-host"))
    )
    data += build.block(1, struct.pack("<HHI", 1, 0, 0) + build.options((1, b"polymux: " + hint)))
    for packet in build.talk((0, OPEN), (0, content(1))):
        data += build.enhanced(packet, "<")
    out, ran = redacted(write(tmp_path, data), "--protocol", "mplex")
    assert ran.code == 0
    copied = Path(out).read_bytes()
    assert b"inner-host" not in copied
    if kept:
        assert copied.count(b"polymux: " + kept) == 2
    else:
        assert copied.count(b"polymux: ") == 2  # what was done, and the protocol
        assert b"polymux: protocol=mplex" in copied
