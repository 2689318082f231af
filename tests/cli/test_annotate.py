"""`polymux annotate`: every finding once, on its packet; the packets as they were."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.capture.pcap_files import as_classic_pcap
from tests.cli.conftest import BROKEN, HOSTILE, Ran

from polymux.capture.pcapng.rewrite import CaptureEdit, rewrite

# The dialer writes after its close twice, the second time in a frame of three packets; then it
# pauses until the acceptor's answer is long overdue.
MPLEX = ("--protocol", "mplex")
SPLIT = [*BROKEN, (0, b"\x1a\x0ain", 5), (0, b" three", 6), (0, b" p", 7)]


def tshark_fields(path: str, *fields: str) -> list[list[str]]:
    """One row for each packet."""
    if shutil.which("tshark") is None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail("tshark is not installed and POLYMUX_NO_SKIP=1")
        pytest.skip("tshark is not installed")
    asked = [part for field in fields for part in ("-e", field)]
    command = ["tshark", "-n", "-r", path, "-T", "fields", "-E", "separator=/t", *asked]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return [line.split("\t") for line in out.splitlines()]


def test_every_finding_is_a_comment_once_on_the_packet_in_which_its_frame_ends(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    source, out = capture(SPLIT), str(tmp_path / "out.pcapng")
    assert run("annotate", source, "-o", out, *MPLEX).code == 0
    found = [json.loads(line) for line in run("check", source, "--json", *MPLEX).out.splitlines()]
    comments = {
        int(number): comment
        for number, comment in tshark_fields(out, "frame.number", "frame.comment")
        if comment and not comment.startswith("polymux:")
    }
    assert len(found) == 2
    pairs = zip(comments.values(), found, strict=True)
    assert [text.count(row["rule"]) for text, row in pairs] == [1, 1]
    payload_packets = [
        int(number) for number, size in tshark_fields(out, "frame.number", "tcp.len") if size != "0"
    ]
    assert list(comments) == [payload_packets[3], payload_packets[6]]


def test_packets_and_their_times_stay_as_they_were(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    source, out = capture(SPLIT), str(tmp_path / "out.pcapng")
    run("annotate", source, "-o", out, *MPLEX)
    fields = ("frame.time_epoch", "frame.len", "frame.cap_len", "tcp.payload", "tcp.seq_raw")
    assert tshark_fields(source, *fields) == tshark_fields(out, *fields)
    for name in ("frames", "check"):
        assert run(name, source, "--json", *MPLEX).out == run(name, out, "--json", *MPLEX).out


@pytest.mark.parametrize("form", ["pcap", "big-endian pcap", "gzip"])
def test_other_forms_of_captures_are_annotated_too(
    form: str, capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    data = Path(capture(SPLIT)).read_bytes()
    if form == "gzip":
        data = gzip.compress(data)
    else:
        data = as_classic_pcap(data, ">" if form.startswith("big") else "<")
    source = tmp_path / "source"
    source.write_bytes(data)
    out = str(tmp_path / "out.pcapng")
    assert run("annotate", str(source), "-o", out, *MPLEX).code == 0
    before = run("frames", str(source), *MPLEX, "--json").out
    assert before == run("frames", out, *MPLEX, "--json").out
    comments = "".join(row[0] for row in tshark_fields(out, "frame.comment"))
    assert comments.count("mplex.write-after-close") == 2


def test_a_name_cannot_forge_a_hint_or_hide_text(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    source, out = capture(BROKEN), str(tmp_path / "out.pcapng")
    run("annotate", source, "-o", out)
    data = Path(out).read_bytes()
    assert data.count(HOSTILE) == 1  # in the packet itself
    assert data.count(b"polymux: ") == Path(source).read_bytes().count(b"polymux: ")


def test_an_existing_file_is_not_replaced_and_nothing_is_left_behind(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    out = tmp_path / "out.pcapng"
    out.write_bytes(b"mine")
    ran = run("annotate", capture(BROKEN), "-o", str(out))
    assert ran.code != 0
    assert "exists already" in ran.err
    assert out.read_bytes() == b"mine"
    assert not list(tmp_path.glob("*.part"))


def test_a_truncated_capture_is_copied_as_far_as_it_goes(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    source = tmp_path / "cut.pcapng"
    data = Path(capture(SPLIT)).read_bytes()
    source.write_bytes(data[:-50])
    out = tmp_path / "out.pcapng"
    ran = run("annotate", str(source), "-o", str(out), *MPLEX)
    assert ran.code == 3
    assert "ends inside a block" in ran.err
    before = run("frames", str(source), "--json", *MPLEX).out
    assert run("frames", str(out), "--json", *MPLEX).out == before


def test_a_copy_without_changes_is_equal(capture: Callable[..., str], tmp_path: Path) -> None:
    source, out = capture(SPLIT), tmp_path / "out.pcapng"
    done = rewrite(source, out, CaptureEdit())
    assert out.read_bytes() == Path(source).read_bytes()
    assert done.packets == len(tshark_fields(source, "frame.number"))
    assert struct.unpack_from("<I", out.read_bytes())[0] == 0x0A0D0D0A
