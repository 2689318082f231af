"""`polymux follow` and `check` say what is missing from a capture: exit code 3, words, markers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import BROKEN, CLEAN, MS, START, Line, Ran

from polymux.capture import PcapngWriter, TcpConnectionWriter
from polymux.capture.synthesis.packet_builder import PacketBurst

Run = Callable[..., Ran]

OPEN = b"\x08\x04good"  # d1, by the dialer
SIZE = 100_000
STEP = 1_000


def frame(content: bytes) -> bytes:
    """A content frame of the dialer on d1."""
    length = len(content)
    varint = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return b"\x0a" + varint + content


def objects(ran: Ran) -> list[dict[str, object]]:
    return [json.loads(line) for line in ran.out.splitlines()]


def markers(ran: Ran) -> list[dict[str, object]]:
    return [row for row in objects(ran) if "missing" in row]


def places(ran: Ran) -> list[tuple[object, ...]]:
    return [
        (row["missing"], row["sender"], row["stream"], row["byte_offset"], row["size"])
        for row in markers(ran)
    ]


def upload() -> tuple[list[Line], bytes]:
    """100,000 bytes in frames of 1,000, each frame one packet, and a close."""
    content = random.Random(7).randbytes(SIZE)
    lines: list[Line] = [(0, OPEN, 1)]
    lines += [(0, frame(content[n : n + STEP]), 2 + n // STEP) for n in range(0, SIZE, STEP)]
    return [*lines, (0, b"\x0c\x00", 200), (1, b"\x0b\x00", 201)], content


def test_follow_says_which_packet_is_missing_and_goes_on_after_it(
    run: Run, lossy: Callable[..., str]
) -> None:
    lines, content = upload()
    path = lossy(lines, [47])  # the 47th frame
    ran = run("follow", path, "--stream", "d1")
    at = 6 + 46 * 1003
    assert ran.raw_bytes == content[:46_000] + content[47_000:]
    assert ran.code == 3
    (first,) = ran.err.splitlines()
    assert f"1003 bytes of the dialer were not captured (byte {at}, frame 47, 2023-" in first
    shown = run("follow", path, "--stream", "d1", "--json")
    assert shown.code == 3
    assert places(shown) == [
        ("not-captured", "dialer", None, at, 1003),
    ]


def test_follow_marks_zeros_that_stand_for_missing_content(
    run: Run, lossy: Callable[..., str]
) -> None:
    whole = frame(b"x" * 900)
    lines = [
        (0, OPEN + whole[:303], 1), (0, whole[303:603], 2), (0, whole[603:], 3),
        (0, frame(b"later") + b"\x0c\x00", 4), (1, b"\x09\x02ok\x0b\x00", 5),
    ]  # fmt: skip
    path = lossy(lines, [1])
    ran = run("follow", path, "--stream", "d1")
    assert ran.raw_bytes == b"x" * 300 + bytes(300) + b"x" * 300 + b"later" + b"ok"
    assert ran.code == 3
    [said] = ran.err.splitlines()
    assert "300 bytes of the dialer were not captured (stream d1, byte 309, frame 1, 2023" in said
    assert said.endswith("the content has zeros in their place")
    shown = objects(run("follow", path, "--stream", "d1", "--json"))
    assert ["missing" in row for row in shown] == [True, False, False, False]
    marker = shown[0]
    session = shown[1]["session_id"]
    assert marker == {
        "missing": "not-captured", "session_id": session, "sender": "dialer", "stream": "d1",
        "frame_index": 1, "byte_offset": 309, "size": 300, "zeros": True, "time": marker["time"],
    }  # fmt: skip
    assert str(marker["time"]).startswith("2023-11-14T22:13:20.00")


def test_a_marker_stands_between_the_content_before_and_after_it(
    run: Run, lossy: Callable[..., str]
) -> None:
    whole = frame(b"y" * 100)
    lines = [
        (0, OPEN + frame(b"before") + whole[:10], 1), (0, whole[10:20], 2), (0, whole[20:], 3),
        (1, b"\x09\x02ok", 4), (0, frame(b"after") + b"\x0c\x00", 5), (1, b"\x0b\x00", 6),
    ]  # fmt: skip
    shown = objects(run("follow", lossy(lines, [1]), "--stream", "d1", "--json"))
    assert [row.get("data", "missing") for row in shown] == [
        b"before".hex(), "missing", (b"y" * 8 + bytes(10) + b"y" * 82).hex(), b"ok".hex(),
        b"after".hex(),
    ]  # fmt: skip


def test_missing_content_of_another_stream_or_sender_is_not_mentioned(
    run: Run, lossy: Callable[..., str]
) -> None:
    other = b"\x1a\x64" + b"z" * 100  # on d3
    lines = [
        (0, OPEN + b"\x18\x05other" + frame(b"mine") + other[:50], 1), (0, other[50:60], 2),
        (0, other[60:] + b"\x0c\x00\x1c\x00", 3), (1, b"\x09\x02ok\x0b\x00\x1b\x00", 4),
    ]  # fmt: skip
    path = lossy(lines, [1])
    ran = run("follow", path, "--stream", "d1")
    assert (ran.code, ran.err, ran.raw_bytes) == (0, "", b"mineok")
    assert run("follow", path, "--stream", "d3").code == 3
    assert run("follow", path, "--stream", "d3", "--sender", "acceptor").code == 0
    assert "stream d3" in run("check", path).err


def test_follow_to_files_says_it_too(run: Run, lossy: Callable[..., str], tmp_path: Path) -> None:
    lines, _ = upload()
    ran = run("follow", lossy(lines, [47]), "--out", str(tmp_path / "out"))
    assert ran.code == 3
    assert "1003 bytes of the dialer were not captured" in ran.err


def test_check_says_what_is_missing_and_violations_come_first(
    run: Run, lossy: Callable[..., str]
) -> None:
    lines, _ = upload()
    ran = run("check", lossy(lines, [47]), "--json")
    assert ran.code == 3
    assert [row[:2] for row in places(ran)] == [("not-captured", "dialer")]
    assert "1003 bytes of the dialer were not captured" in ran.err
    broken = run("check", lossy(BROKEN, [2], name="broken.pcapng"), "--json")
    assert broken.code == 1
    assert places(broken) == [("not-captured", "acceptor", None, 0, 8)]
    table = run("check", lossy(lines, [47], name="b.pcapng"), "--format", "csv")
    assert (table.code, table.out) == (3, "")


def test_a_packet_missing_at_the_end_is_missing(run: Run, lossy: Callable[..., str]) -> None:
    lines = [(0, OPEN + frame(b"hello"), 1), (1, b"\x09\x02ok", 2), (0, frame(b"world"), 3)]
    ran = run("follow", lossy(lines, [2]), "--stream", "d1", "--json")
    assert ran.code == 3
    assert places(ran) == [("not-captured", "dialer", None, 13, 7)]


def test_a_capture_that_ends_inside_a_frame_lacks_its_rest(
    run: Run, lossy: Callable[..., str]
) -> None:
    lines = [(0, OPEN + frame(b"hello"), 1), (1, b"\x09\x02ok", 2), (0, b"\x0a\x05wo", 3)]
    path = lossy(lines, close=False)
    ran = run("follow", path, "--stream", "d1", "--json")
    assert ran.code == 3
    assert places(ran) == [
        ("not-captured", "dialer", "d1", 17, 3),
        ("not-decoded", "dialer", None, 13, 4),
    ]
    assert run("follow", path, "--stream", "d1", "--sender", "acceptor").code == 0


def test_a_sender_that_closes_inside_a_frame_has_left_nothing_uncaptured(
    run: Run, lossy: Callable[..., str]
) -> None:
    lines = [(0, OPEN + frame(b"hello"), 1), (1, b"\x09\x02ok", 2), (0, b"\x0a\x05wo", 3)]
    ran = run("follow", lossy(lines), "--stream", "d1")
    assert (ran.code, ran.err) == (0, "")


def test_a_capture_that_began_later_than_the_session_lacks_its_beginning(
    run: Run, lossy: Callable[..., str]
) -> None:
    lines = [
        (0, b"\x18\x05other", 1), (0, OPEN + frame(b"hello"), 2), (1, b"\x09\x02ok", 3),
        (0, frame(b"more") + b"\x0c\x00", 4), (1, b"\x0b\x00", 5),
    ]  # fmt: skip
    path = lossy(lines, [0], syn=False)
    for arguments in (["check", path], ["follow", path, "--stream", "d1"]):
        ran = run(*arguments, "--protocol", "mplex", "--json")
        assert ran.code == 3
        assert places(ran) == [
            ("not-captured", "dialer", None, 0, None),
            ("not-captured", "acceptor", None, 0, None),
        ]
        assert "bytes of the dialer were not captured, how many is not known (byte 0" in ran.err


def test_bytes_before_the_first_frame_that_was_found_are_not_decoded(
    run: Run, lossy: Callable[..., str], tmp_path: Path
) -> None:
    whole = frame(b"\xff" * 900)
    lines = [(0, OPEN + whole[:500], 1), (0, whole[500:], 2)]
    lines += [(0, frame(b"next %d" % n), 3 + n) for n in range(40)]
    path = lossy(lines, [0], syn=False)
    ran = run("follow", path, "--protocol", "mplex", "--out", str(tmp_path / "out"))
    assert ran.code == 3
    assert "403 bytes of the dialer were not decoded, as others are missing (byte 0" in ran.err


def test_a_stream_that_only_the_missing_part_can_have_is_no_wrong_usage(
    run: Run, lossy: Callable[..., str]
) -> None:
    lines = [
        (0, OPEN + frame(b"hello"), 1), (0, b"\x18\x05other", 2), (0, b"\x1a\x02hi", 3),
        (1, b"\x09\x02ok\x0b\x00", 4),
    ]  # fmt: skip
    ran = run("follow", lossy(lines, [1]), "--stream", "d3")
    assert ran.code == 3
    assert "7 bytes of the dialer were not captured" in ran.err
    assert "--stream d3: no session has it, as far as the sessions were captured" in ran.err


def test_a_session_of_no_known_protocol_has_missing_bytes_as_well(
    run: Run, lossy: Callable[..., str]
) -> None:
    lines = [(0, b"\xff" * 50, 1), (0, b"\xff" * 50, 2), (1, b"\xfe" * 50, 3), (0, b"\xff", 4)]
    ran = run("check", lossy(lines, [1]), "--json")
    assert ran.code == 3
    assert places(ran) == [("not-captured", "dialer", None, None, 50)]


def test_many_gaps_are_eight_sentences_and_a_count_and_all_markers(
    run: Run, lossy: Callable[..., str]
) -> None:
    whole = frame(b"x" * 900)
    lines = [(0, OPEN + whole[:103], 1)]
    lines += [(0, whole[n : n + 10], n) for n in range(103, 903, 10)]
    lines += [(0, b"\x0c\x00", 1000), (1, b"\x0b\x00", 1001)]
    ran = run("follow", lossy(lines, range(2, 42, 2)), "--stream", "d1", "--json")
    assert len(markers(ran)) == 20
    said = ran.err.splitlines()
    assert len(said) == 9
    assert (
        said[8] == "12 more ranges of 120 bytes in all are missing; --json lists each in its place"
    )


def test_complete_captures_say_nothing_reordered_and_retransmitted_or_not(
    run: Run, lossy: Callable[..., str], tmp_path: Path
) -> None:
    lines, content = upload()
    for n, (given, close) in enumerate([(lines, True), (lines, False), (CLEAN, True)]):
        path = lossy(given, close=close, name=f"whole{n}.pcapng")
        for arguments in (["follow", path, "--stream", "d1"], ["check", path]):
            ran = run(*arguments)
            assert (ran.code, ran.err) == (0, "")
    # Every packet of the dialer twice, and neighbours swapped.
    source = PcapngWriter(str(tmp_path / "again.pcapng"), sync="none")
    scribe = TcpConnectionWriter(
        Jumbling(source), ("192.0.2.1", 40000), ("198.51.100.2", 9000), START
    )
    for side, data, at in lines:
        scribe.data(side, data, START + at * MS)
    scribe.close(START + 300 * MS)
    source.close()
    for name in ("follow", "check"):
        more = ["--stream", "d1", "--sender", "dialer"] if name == "follow" else []
        ran = run(name, str(tmp_path / "again.pcapng"), *more)
        assert (ran.code, ran.err) == (0, "")
        assert name == "check" or ran.raw_bytes == content


class Jumbling:
    """Swaps neighbouring packets of the upload, and repeats each of them."""

    def __init__(self, writer: PcapngWriter) -> None:
        self.writer = writer
        self.held: PacketBurst | None = None

    @property
    def comment_epoch(self) -> int:
        return self.writer.comment_epoch

    def burst(self, burst: PacketBurst) -> None:
        if self.held is None and burst.payload_bytes > 500:
            self.held = burst
            return
        self.writer.burst(burst)
        if self.held is not None:
            self.writer.burst(self.held)
            self.writer.burst(burst)
            self.held = None
