"""Fixtures of the capture tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from polymux.capture import CaptureReader, TcpSession, read_sessions
from polymux.capture.packets.packet_refs import REF_BYTES
from polymux.capture.tcp.flow_order import StoredRefs


@pytest.fixture
def tshark() -> Callable[..., str]:
    """Runs tshark on a file and returns its output. Without tshark the test is skipped, or fails if
    POLYMUX_NO_SKIP=1 is set."""
    if shutil.which("tshark") is None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail("tshark is not installed and POLYMUX_NO_SKIP=1")
        pytest.skip("tshark is not installed")

    def run(path: Path, *arguments: str) -> str:
        command = ["tshark", "-n", "-r", str(path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes bytes to a file of the given name and returns its path."""

    def put(data: bytes, name: str = "capture.pcapng") -> str:
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return put


@pytest.fixture
def read(write: Callable[..., str]) -> Iterator[Callable[..., CaptureReader]]:
    """Writes bytes to a file and reads its sessions; the reader is closed after the test."""
    with ExitStack() as readers:

        def make(data: bytes, **keywords: object) -> CaptureReader:
            reader = read_sessions([write(data)], **keywords)  # type: ignore[arg-type]  # passed on
            return readers.enter_context(reader)

        yield make


def streams(session: TcpSession) -> tuple[bytes, bytes]:
    """The bytes each side sent; a gap is shown as `?` for each byte."""
    sent = [bytearray(), bytearray()]
    for piece in session.pieces():
        sent[piece.side] += b"?" * piece.size if piece.is_gap else piece.data
    return bytes(sent[0]), bytes(sent[1])


def in_memory(refs: bytes) -> StoredRefs:
    """Packed references as `FlowOrder.add_file` takes them."""
    return refs, None, len(refs) // REF_BYTES
