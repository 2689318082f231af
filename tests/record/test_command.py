"""What `polymux record` and `polymux recover` say when they are asked wrongly, or too late."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.capture import capture_builder as build
from tests.record.record_process import polymux

DATA = build.pcapng(build.talk((0, b"hello"), (1, b"welcome")))
BETWEEN = ("tcp://127.0.0.1:0", "tcp://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((*BETWEEN, "-o", "FOLDER/taken.pcapng"), "exists already"),
        ((*BETWEEN, "-o", "FOLDER/left.pcapng"), "was left"),
        ((*BETWEEN, "-o", "FOLDER/x", "--rotate-size", "many"), "is no size"),
        ((*BETWEEN, "-o", "FOLDER/x", "--sync", "-1"), "neither none"),
        ((BETWEEN[0], "stdio:", "-o", "FOLDER/x"), "a recording proxy takes"),
        (("tls://127.0.0.1:0", BETWEEN[1], "-o", "FOLDER/x"), "needs a certificate"),
    ],
    ids=["taken", "left", "size", "sync", "url", "tls"],
)
async def test_a_wrong_request_is_exit_code_2_and_leaves_nothing(
    tmp_path: Path, arguments: tuple[str, ...], word: str
) -> None:
    (tmp_path / "taken.pcapng").write_bytes(DATA)
    (tmp_path / "left.pcapng.part").write_bytes(DATA)
    words = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    code, _, said = await polymux("record", *words)
    assert code == 2
    assert word in said
    assert "Traceback" not in said
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["left.pcapng.part", "taken.pcapng"]


async def test_a_place_that_cannot_be_written_is_exit_code_5(tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "x.pcapng"
    code, _, said = await polymux("record", *BETWEEN, "-o", str(out))
    assert (code, said) == (5, f"polymux: {out}: cannot be written: No such file or directory\n")


async def test_recover_publishes_what_was_left_and_repairs_what_is_damaged(
    tmp_path: Path,
) -> None:
    part = tmp_path / "tap.pcapng.part"
    part.write_bytes(DATA[:-3])
    code, out, _ = await polymux("recover", str(part))
    assert code == 0
    assert out.startswith(f"{tmp_path}/tap.pcapng: published, ")
    code, _, said = await polymux("recover", str(tmp_path / "tap.pcapng"))
    assert code == 3
    assert "not a recording left behind" in said
    bad = tmp_path / "bad.pcapng"
    bad.write_bytes(DATA + bytes(100))
    code, out, _ = await polymux("recover", str(bad), "--out", str(tmp_path / "good.pcapng"))
    assert code == 0
    assert "100 bytes left out" in out
    assert (tmp_path / "good.pcapng").read_bytes() == DATA
