"""Key logs: format, folders, hostile files, and that they show no secret."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.analysis.tls.key_log import BadKeyLog, KeyLog, read_key_logs
from polymux.analysis.tls.secret_table import (
    CLIENT_TRAFFIC,
    LABELS,
    MASTER_SECRET,
    SERVER_TRAFFIC,
)

RANDOM, SECRET = "11" * 32, "ab" * 48
LINE = f"CLIENT_RANDOM {RANDOM} {SECRET}\n"


def test_lines_of_all_writers_are_read_in_any_order() -> None:
    keys = KeyLog()
    text = (
        "# a comment\r\n"
        f"SERVER_TRAFFIC_SECRET_0 {RANDOM} {'cd' * 32}\r\n"
        f"EXPORTER_SECRET {RANDOM} {'cd' * 32}\n"
        f"CLIENT_TRAFFIC_SECRET_0 {RANDOM.upper()} {'ef' * 48}\n"
        f"{LINE}\n\n"
        f"CLIENT_HANDSHAKE_TRAFFIC_SECRET {RANDOM} {'cd' * 7}"
    )
    assert keys.add_text(text.encode()) == 4
    assert keys.bad_lines == 1  # the last is incomplete
    assert keys.find(bytes.fromhex(RANDOM)) == {
        SERVER_TRAFFIC: b"\xcd" * 32,
        CLIENT_TRAFFIC: b"\xef" * 48,
        MASTER_SECRET: b"\xab" * 48,
    }
    assert keys.find(bytes(32)) == {}


def test_the_last_of_repeated_lines_counts() -> None:
    keys = KeyLog()
    for byte in ("01", "02", "03"):
        keys.add_text(f"CLIENT_RANDOM {RANDOM} {byte * 48}\n".encode())
    assert len(keys) == 1
    assert keys.find(bytes.fromhex(RANDOM)) == {MASTER_SECRET: b"\x03" * 48}


def test_many_sessions_are_found_after_pickling() -> None:
    keys = KeyLog()
    randoms = [os.urandom(32) for _ in range(5000)]
    keys.add_text(
        "".join(f"CLIENT_RANDOM {r.hex()} {(r + r[:16]).hex()}\n" for r in randoms).encode()
    )
    copied = pickle.loads(pickle.dumps(keys))
    assert len(copied) == 5000
    assert all(copied.find(r) == {MASTER_SECRET: r + r[:16]} for r in randoms)
    merged = keys.merged([LINE.encode()])
    assert (len(keys), len(merged)) == (5000, 5001)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_however_lines_are_written_they_say_the_same(generator: random.Random) -> None:
    """Spaces, line breaks, letter case and other lines between make no difference."""
    usual, unusual = KeyLog(), KeyLog()
    breaks, spaces = (b"\n", b"\r\n", b" \n", b"\n\n"), (b" ", b"  ", b"\t")
    between = (
        b"",
        b"",
        b"# comment\n",
        b"EXPORTER_SECRET a b\n",
        b"nonsense\n",
        b"CLIENT_RANDOM \n",
    )
    plain = strange = b""
    for _ in range(generator.randrange(1, 30)):
        words = [
            generator.choice(sorted(LABELS)),
            (b"%02x" % generator.randrange(4)) * 32,
            generator.randbytes(generator.choice((32, 48))).hex().encode(),
        ]
        plain += b" ".join(words) + b"\n"
        words[1:] = [generator.choice((word, word.upper())) for word in words[1:]]
        strange += generator.choice(between)
        strange += generator.choice(spaces).join(words) + generator.choice(breaks)
    usual.add_text(plain)
    unusual.add_text(strange)
    assert usual.to_text() == unusual.to_text()
    assert usual.bad_lines == 0
    for number in range(4):
        assert usual.find(bytes([number]) * 32) == unusual.find(bytes([number]) * 32)


@pytest.mark.parametrize(
    "line",
    [
        f"CLIENT_RANDOM {RANDOM} {SECRET}00",
        f"CLIENT_RANDOM {RANDOM} {SECRET[:-2]}zz",
        f"CLIENT_RANDOM {RANDOM[:-1]}x {SECRET}",
        f"CLIENT_RANDOM {RANDOM}{SECRET}00",
        f"CLIENT_RANDON {RANDOM} {SECRET}",
        f"CLIENT_RANDOM_{RANDOM} {SECRET}",
        f"CLIENT_RANDOM {RANDOM} {SECRET} {SECRET}",
        f"CLIENT_RANDOM {RANDOM} {SECRET[:40]}",
        "\0" * 200,
    ],
)
def test_a_line_that_is_nearly_one_is_bad_and_hides_no_other(line: str) -> None:
    keys = KeyLog()
    assert keys.add_text(f"{LINE}{line}\n{LINE.replace(RANDOM, '22' * 32)}".encode()) == 2
    assert (len(keys), keys.bad_lines) == (2, 1)


def test_lines_are_read_over_the_borders_of_chunks(tmp_path: Path) -> None:
    randoms = [os.urandom(32) for _ in range(5000)]  # 900 KB in chunks of 256 KiB
    lines = [f"CLIENT_RANDOM {r.hex()} {(r + r[:16]).hex()}\n" for r in randoms]
    (tmp_path / "keys").write_text("".join(lines).removesuffix("\n"))
    keys = read_key_logs([str(tmp_path / "keys")])
    assert (len(keys), keys.bad_lines) == (5000, 0)
    assert all(keys.find(r) == {MASTER_SECRET: r + r[:16]} for r in randoms)


def test_files_folders_and_globs_are_read(tmp_path: Path) -> None:
    for number in range(3):
        line = f"CLIENT_RANDOM {number:064x} {SECRET}\n"
        (tmp_path / f"{number}.keys").write_text(line)
    (tmp_path / "notes.md").write_text("no keys here")
    (tmp_path / ".hidden").write_text(LINE)
    assert len(read_key_logs([str(tmp_path)])) == 3
    assert len(read_key_logs([str(tmp_path / "*.keys")])) == 3
    assert len(read_key_logs([str(tmp_path / "0.keys"), str(tmp_path / "1.keys")])) == 2
    for name, word in (("notes.md", "no line"), ("missing", "No such file"), ("x*", "no file")):
        with pytest.raises(BadKeyLog, match=word):
            read_key_logs([str(tmp_path / name)])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadKeyLog, match="regular file"):
        read_key_logs([str(tmp_path / "pipe")])


def test_a_line_of_any_length_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.keys"
    path.write_bytes(b"CLIENT_RANDOM " + b"a" * (5 << 20) + b"\n" + LINE.encode())
    keys = read_key_logs([str(path)])
    assert (len(keys), keys.bad_lines) == (1, 1)


def test_nothing_shows_a_secret(tmp_path: Path) -> None:
    keys = KeyLog()
    keys.add_text(LINE.encode())
    assert SECRET[:16] not in f"{keys!r} {keys}"
    (tmp_path / "bad").write_text(f"CLIENT RANDOM {RANDOM} {SECRET}\n")
    with pytest.raises(BadKeyLog) as problem:
        read_key_logs([str(tmp_path / "bad")])
    assert SECRET[:16] not in str(problem.value)


@settings(max_examples=150)
@given(st.lists(st.binary(max_size=200)), st.integers(0, 400))
def test_arbitrary_bytes_are_no_error_and_hide_no_line(parts: list[bytes], cut: int) -> None:
    keys = KeyLog()
    keys.add_text(b"\n".join([*parts, LINE.encode()])[-cut - len(LINE) :])
    assert keys.find(bytes.fromhex(RANDOM))
