"""A peer that disappears silently is detected in time (ATK-25, R17)."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.attacks.runner import SLACK, SOAK
from tests.attacks.target import ROOT, Zygote

import polymux
from polymux import StreamuxSession

INTERVAL = 15 if SOAK else 1


def can_isolate() -> bool:
    """Whether this user may create a network namespace."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    return (
        subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.timeout(200)
@pytest.mark.skipif(not can_isolate(), reason="no network namespaces here")
def test_every_waiter_hears_of_a_link_that_went_down() -> None:
    command = ["unshare", "-rn", sys.executable, "-m", "tests.attacks.link_down", str(INTERVAL)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert len(figures) == 14, figures  # seven protocols, both sides
    for who, seconds in figures.items():
        assert 0 < seconds <= 2 * INTERVAL + 1 + SLACK, (who, seconds)
    print(f"R17: link down noticed within {max(figures.values()):.1f} s, keepalive {INTERVAL} s")


@pytest.mark.timeout(200)
def test_a_stopped_peer_is_noticed_in_streamux(tmp_path: Path) -> None:
    protocol = "streamux:timeout=1"
    order = {"protocol": protocol, "url": "tcp://127.0.0.1:0", "mode": "echo", "limits": {},
             "timeouts": {}}  # fmt: skip

    async def run() -> float:
        async with Zygote(tmp_path) as zygote, await zygote.fork(order) as target:
            url = f"tcp://127.0.0.1:{target.port}"
            timeouts = polymux.Timeouts(keepalive_interval=1)
            session = await polymux.connect(url, protocol=protocol, timeouts=timeouts)
            assert isinstance(session, StreamuxSession)
            assert await session.request(b"hello") == b"hello"
            target.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            try:
                with pytest.raises(polymux.SessionClosed, match="sent nothing for"):
                    await session.request(b"anybody?", timeout=0)
            finally:
                target.process.send_signal(signal.SIGCONT)
            taken = time.monotonic() - began
            await session.wait_closed()
            return taken

    taken = asyncio.run(run())
    print(f"R17: a stopped Streamux peer noticed after {taken:.1f} s")
    assert taken <= 5 + SLACK
