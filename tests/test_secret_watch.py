"""The watch over secrets finds one wherever a test of TLS puts it out, and only there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from base64 import b64encode
from pathlib import Path

import pytest
from tests.secret_watch import Needles, is_key_log, secrets_in, split_pcapng

from polymux.capture import PcapngWriter

SECRET = bytes(range(100, 148))
LINE = b"CLIENT_RANDOM " + b"11" * 32 + b" " + SECRET.hex().encode() + b"\n"

# Each module has a TLS session whose secrets nothing but its key log has, and puts one out.
MODULE = """
import gzip, logging, subprocess, sys
import pyarrow as pa, pyarrow.parquet as pq
from tests.analysis.tls.tls_peers import TlsPeers

def secret():
    peers = TlsPeers()
    line = peers.finish().key_log.splitlines()[-1]
    return line.split()[2]

def test_a_run(tmp_path, request):
    text = secret()
    text, raw = text.decode(), bytes.fromhex(text.decode())
    (tmp_path / "keys.log").write_text(f"CLIENT_TRAFFIC_SECRET_0 {'ab' * 32} {text}\\n")
    {PLANTED}
"""
PLANTED = {
    "honest": "print('nothing')",
    "printed": "print(text)",
    "late": "request.getfixturevalue('capfd'); print(text)",
    "read": "capfd = request.getfixturevalue('capfd'); print(text); capfd.readouterr()",
    "error": "print(text[4:].upper(), text.upper(), file=sys.stderr)",
    "logged": "logging.getLogger('polymux').warning('key %s', text)",
    "literal": "logging.getLogger('polymux').warning('key %r', raw)",
    "program": "subprocess.run([sys.executable, '-c', 'print(%r)' % text], capture_output=True)",
    "file": "(tmp_path / 'deep').mkdir(); (tmp_path / 'deep' / 'x').write_bytes(b'..' + raw)",
    "gz": "(tmp_path / 'events.gz').write_bytes(gzip.compress(text.encode()))",
    "parquet": "pq.write_table(pa.table({'a': [text] * 9}), tmp_path / 't', compression='zstd')",
    "failure": "assert text == ''",
}


def test_a_planted_secret_fails_its_module_and_no_key_log_is_left(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from tests.secret_watch import no_output_has_a_secret, note_report\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_makereport(item, call):\n"
        "    report = yield\n"
        "    note_report(report)\n"
        "    return report\n"
    )
    for name, planted in PLANTED.items():
        (tmp_path / f"test_{name}.py").write_text(MODULE.replace("{PLANTED}", planted))
    with tempfile.TemporaryDirectory() as temporary:  # not `tmp_path`, which is searched
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rE", "-p", "no:cacheprovider", "--rootdir",
             str(tmp_path), "--show-capture=no", "--tb=line", "-c", os.devnull, str(tmp_path)],
            stdout=subprocess.PIPE, text=True, timeout=100,
            env={**os.environ, "TMPDIR": temporary, "PYTHONPATH": os.pathsep.join(filter(None, [
                str(root), os.environ.get("PYTHONPATH", "")]))},
        )  # fmt: skip
        left = list(Path(temporary).glob("watched-keys-*"))
    failed = set(re.findall(r"^ERROR .*test_(\w+)\.py::", done.stdout, re.MULTILINE))
    assert failed == PLANTED.keys() - {"honest"}, done.stdout
    assert done.stdout.count("has a secret as") >= len(failed)
    assert left == []


@pytest.mark.parametrize("before", range(4))
def test_a_secret_is_found_in_every_form(before: int) -> None:
    needles = Needles([SECRET, os.urandom(48), os.urandom(32)])
    text = b"x" * before + SECRET + b"y"
    for form in (
        text, text.hex().encode(), text.hex().upper().encode(), b64encode(text),
        repr(text).encode(),
        bytes(5 << 20) + text, text + bytes(5 << 20), bytes((4 << 20) - 20) + text,
    ):  # fmt: skip
        assert needles.find(form)
    for harmless in (
        b"",
        b"x",
        bytes(100),
        os.urandom(1 << 20),
        os.urandom(1 << 20).hex().encode(),
    ):
        assert not needles.find(harmless)


@pytest.mark.parametrize("quotes", [b"", b"'", b'"', b"'\"", b"\"'\\"])
@pytest.mark.parametrize("after", [b"", b"'", b'"', b"'\""])
def test_a_literal_is_found_however_its_quotes_are_written(quotes: bytes, after: bytes) -> None:
    secret = b"\x01\x02" + quotes + SECRET[len(quotes) + 2 :]
    assert Needles([secret]).find(repr(secret + after).encode()) == "a literal of Python"


def test_only_a_file_of_nothing_but_key_log_lines_is_a_key_log() -> None:
    assert is_key_log(b"# by curl\r\n" + LINE + LINE.replace(b"\n", b"\r\n") + LINE[:70])
    assert secrets_in(LINE) == {SECRET}
    assert not is_key_log(b"")
    assert not is_key_log(b"# nothing\n")
    assert not is_key_log(LINE + b"ls: no such file\n" + LINE)
    assert not is_key_log(b'{"keys": "' + LINE + b'"}\n')


def test_secrets_may_stand_in_no_block_of_pcapng_but_their_own(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with PcapngWriter(path) as sink:
        sink.secrets(LINE)
    inside, rest = split_pcapng(path.read_bytes())
    assert secrets_in(inside) == {SECRET}
    assert not Needles([SECRET]).find(rest)
    inside, rest = split_pcapng(path.read_bytes() + SECRET)
    assert Needles([SECRET]).find(rest)
