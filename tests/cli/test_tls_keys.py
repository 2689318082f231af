"""Commands on captures inside TLS: --keys, secrets in the capture, `polymux keys`, and no leaks."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import save
from tests.analysis.tls.protocols_inside import inside_tls, talk_of
from tests.analysis.tls.tls_peers import Conversation, TlsPeers, write_capture
from tests.cli.conftest import Ran

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.live_analyzer import LiveAnalyzer
from polymux.capture.io.pipes import CapturePipe
from polymux.capture.live_reader import LiveCapture

Run = Callable[..., Ran]


class Talk:
    """An mplex conversation as three files: without TLS, inside TLS, and its key log."""

    def __init__(self, folder: Path) -> None:
        self.record = talk_of("mplex", 3)
        self.conversation: Conversation = inside_tls(self.record)
        self.plain = save(folder / "plain.pcapng", self.record, self.record[-1][2] + 1)
        self.capture = str(folder / "tls.pcapng")
        write_capture(self.capture, self.conversation)
        self.keys = str(folder / "keys.log")
        Path(self.keys).write_bytes(self.conversation.key_log)
        self.with_secrets = str(folder / "both.pcapng")
        last = len(self.conversation.packets())
        write_capture(
            self.with_secrets, self.conversation, secrets={last: self.conversation.key_log}
        )

    def secret_texts(self) -> list[str]:
        """Every secret as it could appear in an output: a part of its hexadecimal form."""
        lines = self.conversation.key_log.decode().splitlines()
        return [line.split()[2][:24] for line in lines if not line.startswith("#")]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Talk:
    return Talk(tmp_path_factory.mktemp("tls"))


def json_rows(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def kinds(out: str) -> list[tuple[object, ...]]:
    rows = json_rows(out)
    names = ("sender", "frame_index", "size", "kind", "stream", "payload_bytes", "verdict")
    return [tuple(row[name] for name in names) for row in rows]


def test_every_command_reads_inside_tls(talk: Talk, run: Run, tmp_path: Path) -> None:
    plain = run("frames", talk.plain)
    for arguments in ((talk.capture, "--keys", talk.keys), (talk.with_secrets,)):
        opened = run("frames", *arguments)
        assert kinds(opened.out) == kinds(plain.out)
        listed = run("ls", *arguments)
        (session,) = [row for row in map(json.loads, listed.out.splitlines()) if "protocol" in row]
        assert (session["protocol"], session["tls_unopened"]) == ("mplex", 0)
        assert session["tls"].startswith("1.3 TLS_")
        assert run("check", *arguments).code == 0
        contents = []
        for number, source in enumerate(((talk.plain,), arguments)):
            target = tmp_path / f"{len(arguments)}-{number}"
            assert run("follow", *source, "--stream", "d1", "--out", str(target)).code == 0
            contents.append([path.read_bytes() for path in sorted(target.glob("*.bin"))])
        assert contents[0] == contents[1]
        assert contents[0]


def test_decode_opens_bytes(talk: Talk, run: Run) -> None:
    pieces = [f"{'da'[side]}: {data.hex()}" for side, data in talk.conversation.flights[:12]]
    opened = run("decode", "--protocol", "mplex", "--keys", talk.keys, *pieces)
    rows = [json.loads(line) for line in opened.out.splitlines()]
    assert rows[0]["kind"] == "NewStream"
    wire = b"".join(data for side, data in talk.conversation.flights if side == 0)
    assert wire[rows[0]["byte_offset"] - 5 : rows[0]["byte_offset"] - 2] == b"\x17\x03\x03"
    failed = run("decode", "--protocol", "mplex", *pieces)
    assert failed.code == 2
    assert "no secret for this session" in failed.err


def test_a_pipe_is_opened_as_it_is_read(talk: Talk, run: Run) -> None:
    whole = run("frames", talk.with_secrets).out.splitlines()
    places = {
        (row["sender"], row["frame_index"]): row["byte_offset"] for row in map(json.loads, whole)
    }
    expected = None
    for path, more in ((talk.capture, ("--keys", talk.keys)), (talk.with_secrets, ())):
        with open(path, "rb") as capture:
            data = capture.read()
        done = subprocess.run(
            [sys.executable, "-m", "polymux", "frames", "-", *more],
            input=data, capture_output=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for row in map(json.loads, done.stdout.splitlines()):
            assert row["byte_offset"] == places[row["sender"], row["frame_index"]]
        rows = kinds(done.stdout.decode())
        expected = expected or rows
        assert rows == expected
    assert expected is not None
    assert len(expected) > 10


class InTwo(CapturePipe):
    """Returns a capture in two pieces: the first is as long as another capture."""

    def __init__(self, path: str, beginning: str) -> None:
        super().__init__(path, -1)
        data, size = Path(path).read_bytes(), os.path.getsize(beginning)
        self._pieces = [data[:size], data[size:]]

    def read_raw(self) -> bytes | None:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize("late", [True, False])
def test_secrets_that_come_after_a_session_has_ended_open_it(
    talk: Talk, run: Run, late: bool
) -> None:
    rows: list[dict[str, object]] = []
    warnings: list[str] = []
    frames = LiveAnalyzer(
        AnalysisOptions(),
        lambda _, batch: rows.extend(batch.to_pylist()),
        on_warning=lambda _, note: warnings.append(note),
    )
    ended_unopened = False
    capture = LiveCapture(InTwo(talk.with_secrets if late else talk.capture, talk.capture))
    for session in capture:
        frames.add_secrets(capture.take_secrets())
        frames.receive(session)
        ended_unopened |= session is not None and session.over and not rows
    assert ended_unopened
    frames.add_secrets(capture.take_secrets())
    frames.finish()
    expected = json_rows(run("frames", talk.with_secrets).out) if late else []
    assert [row["byte_offset"] for row in rows] == [row["byte_offset"] for row in expected]
    assert bool(warnings) == (not late)


def test_a_pipe_without_the_secret_says_so(talk: Talk) -> None:
    with open(talk.capture, "rb") as capture:
        data = capture.read()
    done = subprocess.run(
        [sys.executable, "-m", "polymux", "frames", "-"],
        input=data, capture_output=True, timeout=60,
    )  # fmt: skip
    assert b"no secret for this session" in done.stderr


def test_secrets_are_extracted_stripped_and_added(talk: Talk, run: Run, tmp_path: Path) -> None:
    keys, bare, full = (str(tmp_path / name) for name in ("k.log", "bare.pcapng", "full.pcapng"))
    assert run("keys", talk.with_secrets, "-o", keys).code == 0
    own = {
        line
        for line in talk.conversation.key_log.decode().splitlines()
        if not line.startswith(("#", "EXPORTER"))
    }
    assert set(Path(keys).read_text().splitlines()) == own
    assert run("keys", talk.with_secrets, "--strip", bare).code == 0
    assert Path(bare).read_bytes() == Path(talk.capture).read_bytes()
    other = TlsPeers().finish().key_log
    (tmp_path / "other.log").write_bytes(other)
    both = ("--inject", keys, "--inject", str(tmp_path / "other.log"))
    assert run("keys", bare, *both, "-o", full).code == 0
    assert other.splitlines()[1].split()[2] not in Path(full).read_bytes()
    assert kinds(run("frames", full).out) == kinds(run("frames", talk.plain).out)
    for path in (keys, bare, full):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert "1 session" in run("keys", full).err


def test_keys_refuses_what_it_cannot_do(talk: Talk, run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.log").write_bytes(TlsPeers().finish().key_log)
    there = tmp_path / "there"
    there.write_text("kept")
    for arguments, word in (
        ((talk.capture, "--strip", str(there)), "exists already"),
        ((talk.capture, "-o", str(there)), "exists already"),
        ((talk.capture, "--inject", str(tmp_path / "other.log"), "-o", "x"), "no secret of any"),
        ((talk.capture, "--inject", talk.keys), "-o"),
        ((str(there), "--strip", str(tmp_path / "new")), "not a pcapng file"),
        ((str(there),), "neither pcapng nor pcap"),
    ):
        ran = run("keys", *arguments)
        assert ran.code in (2, 3), arguments
        assert word in ran.err
    assert there.read_text() == "kept"
    assert not (tmp_path / "new").exists()


def test_keeping_secrets_needs_tls_and_a_recording(run: Run, tmp_path: Path) -> None:
    out = str(tmp_path / "out.pcapng")
    tcp, tls = "tcp://127.0.0.1:0", "tls://127.0.0.1:9"
    for arguments, word in (
        (("connect", tls, "--protocol", "mplex", "--keep-secrets"), "--record"),
        (("connect", "tcp://127.0.0.1:9", "--protocol", "mplex", "--record", out, "--keep-secrets"),
         "not inside TLS"),
        (("serve", tcp, "--protocol", "mplex", "--record", out, "--keep-secrets"),
         "not inside TLS"),
        (("record", tcp, "tcp://127.0.0.1:9", "-o", out, "--keep-secrets"), "neither LISTEN nor"),
    ):  # fmt: skip
        ran = run(*arguments)
        assert ran.code == 2, ran.err
        assert word in ran.err
    assert not Path(out).exists()


def test_bad_key_logs_are_named(talk: Talk, run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key log")
    for name in ("missing", "text"):
        ran = run("ls", talk.capture, "--keys", str(tmp_path / name))
        assert ran.code in (2, 3)
        assert name in ran.err
        assert "Traceback" not in ran.err


def test_without_cryptography_one_command_is_named(
    talk: Talk, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    ran = run("ls", talk.capture, "--keys", talk.keys)
    assert "pip install 'polymux[tls]'" in ran.err
    listed = run("ls", talk.with_secrets)
    assert listed.code == 0
    assert "pip install 'polymux[tls]'" in listed.out


def test_no_output_shows_a_secret(talk: Talk, run: Run) -> None:
    wrong = talk.conversation.key_log.replace(b"0", b"1")
    Path(talk.keys + ".wrong").write_bytes(talk.conversation.key_log + wrong + b"CLIENT_RANDOM")
    for arguments in (
        ("ls", talk.capture, "--keys", talk.keys),
        ("ls", talk.with_secrets, "--format", "table"),
        ("frames", talk.with_secrets),
        ("check", talk.with_secrets),
        ("ls", talk.capture, "--keys", talk.keys + ".wrong"),
        ("keys", talk.with_secrets),
        ("decode", "--keys", talk.keys, talk.conversation.flights[0][1].hex()),
    ):
        ran = run(*arguments)
        for secret in talk.secret_texts():
            assert secret not in ran.out + ran.err, arguments
