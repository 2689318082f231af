"""No output of a test that uses TLS has one of its secrets.

For every module of tests, this collects the secrets of its TLS sessions and all it put out, and
compares them when the module is over.

Secrets are those of every TLS session of this process, which is made to write a key log, and those
of key logs and secrets blocks in the folders of the tests, which other programs wrote.

Outputs are the files in the folders of the tests (`tmp_path`, `tmp_path_factory`), compressed ones
opened and Parquet decoded; what the tests and the programs they started printed; log records; and
pytest's own reports. Only two kinds of files may have secrets, and are told by their form: a key
log, which has nothing else, and pcapng, in blocks for secrets.
"""

from __future__ import annotations

import functools
import gzip
import io
import logging
import os
import re
import ssl
import struct
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

KEY_LOG_LINE = re.compile(rb"[A-Z][A-Z0-9_]+ [0-9a-fA-F]{64} ([0-9a-fA-F]{64,96})")
SECTION_HEADER, SECRETS_BLOCK = 0x0A0D0D0A, 0x0000000A
MIN_DISTINCT_BYTES = 10  # fewer are no secret but an example
NEEDLE_BYTES = 12  # of a secret, that are looked for in each of its forms
MAX_KEY_LOG_BYTES = 64 << 20


class Needles:
    """Secrets in the forms in which they can be put out: bytes, hexadecimal and base64."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        import numpy as np  # here, because few modules of tests have secrets

        self._forms: dict[bytes, list[tuple[bytes, str]]] = {}
        # Which values the first three bytes of a needle have, and the three after them.
        self._starts, self._next = (np.zeros(1 << 24, dtype=bool) for _ in range(2))
        for secret in secrets:
            part = secret[:NEEDLE_BYTES]
            self._add(part, "bytes")
            self._add(part.hex().encode(), "hexadecimal")
            self._add(part.hex().upper().encode(), "hexadecimal")
            literal = repr(b'"' + part)[3:-1]  # between single quotes, escaped or not
            self._add(literal.encode(), "a literal of Python")
            self._add(literal.replace("\\'", "'").encode(), "a literal of Python")
            for shift in range(3):  # base64 of a longer text may begin anywhere in it
                self._add(b64encode(secret[shift : shift + NEEDLE_BYTES]), "base64")

    def _add(self, needle: bytes, form: str) -> None:
        start = needle[:3]
        self._forms.setdefault(start, []).append((needle, form))
        self._starts[int.from_bytes(start, "little")] = True
        self._next[int.from_bytes(needle[3:6], "little")] = True

    def find(self, data: bytes) -> str:
        """The form in which a secret is in `data`; "" if none is."""
        import numpy as np

        if len(data) < NEEDLE_BYTES:
            return ""
        for begin in range(0, len(data) - NEEDLE_BYTES + 1, 1 << 22):
            piece = np.frombuffer(data[begin : begin + (1 << 22) + 64], dtype=np.uint8)
            piece = piece.astype(np.uint32)
            starts = piece[:-2] | (piece[1:-1] << 8) | (piece[2:] << 16)
            fits = self._starts[starts[:-3]] & self._next[starts[3:]]
            for at in (np.flatnonzero(fits) + begin).tolist():
                for needle, form in self._forms.get(data[at : at + 3], ()):
                    if data.startswith(needle, at):
                        return form
        return ""


def secrets_in(text: bytes) -> set[bytes]:
    """The secrets of the key log lines in a text."""
    found = {bytes.fromhex(match[1].decode()) for match in KEY_LOG_LINE.finditer(text)}
    return {secret for secret in found if len(set(secret)) >= MIN_DISTINCT_BYTES}


def is_key_log(data: bytes) -> bool:
    """Whether a file is a key log and nothing else; its last line may be torn."""
    if len(data) > MAX_KEY_LOG_BYTES:
        return False
    lines = [line.rstrip(b"\r") for line in data.split(b"\n")]
    whole = [line for line in lines[:-1] if line and not line.startswith(b"#")]
    shaped = [KEY_LOG_LINE.fullmatch(line) is not None for line in (*whole, lines[-1])]
    return any(shaped) and all(shaped[:-1])


def split_pcapng(data: bytes) -> tuple[bytes, bytes]:
    """The secrets of a pcapng file, and everything else in it."""
    secrets, rest, pos, order = io.BytesIO(), io.BytesIO(), 0, "<"
    while len(data) - pos >= 12:
        (kind,) = struct.unpack_from(order + "I", data, pos)
        if kind == SECTION_HEADER:
            order = "<" if data[pos + 8 : pos + 12] == b"\x4d\x3c\x2b\x1a" else ">"
        (size,) = struct.unpack_from(order + "I", data, pos + 4)
        if size < 12 or size > len(data) - pos:
            break
        (secrets if kind == SECRETS_BLOCK else rest).write(data[pos : pos + size])
        pos += size
    rest.write(data[pos:])
    return secrets.getvalue(), rest.getvalue()


def opened(path: Path) -> bytes:
    """The content of a file, decompressed if it is compressed; what cannot be read is empty."""
    import zstandard

    try:
        data = path.read_bytes()
    except OSError:
        return b""
    try:
        if data[:2] == b"\x1f\x8b":
            return gzip.decompress(data)
        if data[:4] == b"\x28\xb5\x2f\xfd":
            return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    except (OSError, EOFError, zstandard.ZstdError):
        pass  # a test has cut or damaged it
    return data


def decoded_parquet(data: bytes) -> Iterator[bytes]:
    """The values of all columns of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError):
        return  # a test has cut or damaged it
    for column in table.columns:
        for chunk in column.chunks:
            parts = [chunk]
            if isinstance(chunk, pa.DictionaryArray):
                parts = [chunk.indices, chunk.dictionary]
            for part in parts:
                yield from (buffer.to_pybytes() for buffer in part.buffers() if buffer)


class SecretWatch:
    """What one module of tests has put out, and its secrets."""

    def __init__(self) -> None:
        self.printed: list[tuple[str, bytes]] = []
        self.folders: set[Path] = set()
        descriptor, self.key_log = tempfile.mkstemp(prefix="watched-keys-")
        os.close(descriptor)
        self._read = 0

    def remove_key_log(self) -> None:
        """Remove the file to which the secrets of this process are written."""
        Path(self.key_log).unlink(missing_ok=True)

    def note(self, origin: str, text: object) -> None:
        """Something was printed."""
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogateescape")
        if isinstance(text, bytes) and text:
            self.printed.append((origin, text))

    def note_pair(self, origin: str, texts: Iterable[object]) -> None:
        """Something was printed to standard output, or to standard error."""
        for text in texts:
            self.note(origin, text)

    def own_secrets(self) -> set[bytes]:
        """The secrets of the TLS sessions of this process since the last call."""
        with open(self.key_log, "rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        return secrets_in(text)

    def leaks(self) -> list[str]:
        """Where a secret was put out since the last call; without the secret."""
        secrets = self.own_secrets()
        outputs: list[tuple[str, list[bytes]]] = []
        paths = {path for folder in self.folders for path in folder.rglob("*")}
        self.folders.clear()
        printed, self.printed = self.printed, []
        for path in sorted(paths):
            if path.is_symlink() or not path.is_file():
                continue
            data = opened(path)
            if is_key_log(data):
                secrets |= secrets_in(data)
                continue
            parts = [data]
            if data[:4] == b"\x0a\x0d\x0d\x0a":
                inside, rest = split_pcapng(data)
                secrets |= secrets_in(inside)
                parts = [rest]
            elif data[:4] == b"PAR1":
                parts += decoded_parquet(data)
            outputs.append((str(path), parts))
        if not secrets:
            return []
        outputs += [(origin, [text]) for origin, text in printed]
        needles = Needles(secrets)
        found = []
        for origin, parts in outputs:
            form = next(filter(None, map(needles.find, parts)), "")
            if form:
                found.append(f"{origin} has a secret as {form}")
        return found


class WatchedLog(logging.Handler):
    """Notes every log record, at whatever level loggers have."""

    def __init__(self, watch: SecretWatch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.note("a log record", self.format(record))


WATCH: SecretWatch | None = None  # of this process


def watch() -> SecretWatch:
    """The watch of this process; its hooks are set once."""
    global WATCH
    if WATCH is None:
        WATCH = SecretWatch()
        _set_hooks(WATCH)
    return WATCH


def _set_hooks(watch: SecretWatch) -> None:
    """Have every TLS session log its secrets, and note folders, outputs and log records."""

    def before_session(name: str) -> None:
        original = getattr(ssl.SSLContext, name)

        def wrap(context: ssl.SSLContext, *args: Any, **options: Any) -> Any:
            if context.keylog_filename is None:
                context.keylog_filename = watch.key_log
            return original(context, *args, **options)

        setattr(ssl.SSLContext, name, wrap)

    def after(owner: Any, name: str, note: Callable[[Any], None]) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            note(result)
            return result

        setattr(owner, name, call)

    before_session("wrap_bio")
    before_session("wrap_socket")
    after(pytest.TempPathFactory, "mktemp", watch.folders.add)
    after(
        pytest.CaptureFixture, "readouterr", functools.partial(watch.note_pair, "a test's output")
    )
    after(subprocess.Popen, "communicate", functools.partial(watch.note_pair, "a program's output"))
    logging.getLogger().addHandler(WatchedLog(watch))


@pytest.fixture(scope="module", autouse=True)
def no_output_has_a_secret(pytestconfig: pytest.Config) -> Iterator[None]:
    """Compare the outputs of the module with the secrets of its TLS sessions."""
    if WATCH is None:
        pytestconfig.add_cleanup(lambda: watch().remove_key_log())
    watching = watch()
    yield
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    if capture is not None and capture.is_globally_capturing():
        # Printed while the fixtures of the last test were torn down; put back for its report.
        printed = capture.read_global_capture()
        for text, stream in zip(printed, (sys.stdout, sys.stderr), strict=True):
            watching.note("a test's output", text)
            stream.write(text)
    found = watching.leaks()
    if found:
        pytest.fail("secrets of TLS were put out:\n" + "\n".join(found), pytrace=False)


def note_report(report: pytest.TestReport) -> None:
    """Note what a test printed and logged, and why it failed."""
    for name, text in report.sections:
        watch().note(name, text)
    if report.failed:
        watch().note("a failure", report.longreprtext)
