"""`polymux collect` as a command: its output and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.record.collector.command_process import POLYMUX, Command
from tests.record.collector.test_collector import landed
from tests.record.record_process import polymux as run
from tests.record.record_process import strace

import polymux


def listening(folder: Path, port: int, *more: str, before: list[str] | None = None) -> Command:
    url = f"tcp://127.0.0.1:{port}"
    return Command(
        "collect", "--listen", url, "--protocol", "mplex", "--out", str(folder), *more,
        ready=f"listening at {url} for mplex", before=before or [],
    )  # fmt: skip


async def push(port: int) -> None:
    async with polymux.connect(f"tcp://127.0.0.1:{port}", protocol="mplex") as session:
        stream = await session.open("bulk")
        await stream.send(bytes(100_000))
        await stream.end()
        assert await stream.receive() == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_in_good_order(number: signal.Signals, tmp_path: Path) -> None:
    [port] = free_ports(1)
    async with listening(tmp_path, port) as child:
        await push(port)
        child.process.send_signal(number)
        assert await child.ended() == 0
        assert "1 session, 1 stream, 0 rejected" in child.text
        assert re.search(r"rejected, \d+ bytes durable in 1 file\b", child.text), child.text
    assert [session.payload_bytes_dialer for session in landed(tmp_path)] == [100_000]


async def test_a_failed_sync_is_exit_code_5_and_is_reported(tmp_path: Path) -> None:
    [port] = free_ports(1)
    faults = strace("fsync:error=EIO")
    async with listening(tmp_path, port, before=faults) as child:
        with pytest.raises(polymux.PolymuxError):
            await push(port)
        assert await child.ended() == 5
        assert "a sync failed: Input/output error" in child.text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "tcp://127.0.0.1:0", "--protocol", "nosuch"], "nosuch"),
        (["--listen", "nowhere", "--protocol", "mplex"], "a URL begins with"),
        (["--listen", "tls://127.0.0.1:0", "--protocol", "mplex"], "certificate"),
        (["--listen", "ws://127.0.0.1:0", "--protocol", "mplex"], "does not run over WebSocket"),
        (
            ["--listen", "tcp://127.0.0.1:0", "--protocol", "mplex", "--protocol", "minmux"],
            "one for each --listen",
        ),
        (
            ["--listen", "tcp://127.0.0.1:0", "--protocol", "minmux", "--minmux-streams", "one"],
            "1,3,5",
        ),
    ],
)
async def test_what_makes_no_sense_is_one_line_and_exit_code_2(
    arguments: list[str], text: str, tmp_path: Path
) -> None:
    code, out, problems = await run("collect", *arguments, "--out", str(tmp_path / "captures"))
    assert code == 2
    assert out == ""
    assert text in problems
    assert "Traceback" not in problems
    assert not list(tmp_path.rglob("*.pcapng*"))


async def test_a_directory_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, _, problems = await run(
        "collect", "--listen", "tcp://127.0.0.1:0", "--protocol", "mplex", "--out",
        str(tmp_path / "file"),
    )  # fmt: skip
    assert code == 5
    assert "cannot be made" in problems


async def test_on_a_terminal_it_shows_bytes_and_lag(tmp_path: Path) -> None:
    [port] = free_ports(1)
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *POLYMUX, "collect", "--listen", f"tcp://127.0.0.1:{port}", "--protocol", "mplex", "--out",
        str(tmp_path), stderr=theirs, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = b""
    sent = False
    try:
        async with asyncio.timeout(30):
            while re.search(rb"0\.[1-9] MB, .* not durable yet, lag \d+ ms", shown) is None:
                if b"listening" in shown and not sent:
                    sent = True
                    await push(port)
                await asyncio.sleep(0.05)
                with contextlib.suppress(BlockingIOError):
                    shown += os.read(ours, 65536)
    finally:
        process.terminate()
        await process.wait()
        os.close(ours)
