"""Two npm `multiplex` peers that use ids again and again, recorded: neither is accused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import analyse
from tests.interop.node_peer import Peer

from polymux.capture.pcapng.writer import PcapngWriter
from polymux.record import RecordingProxy

pytestmark = pytest.mark.usefixtures("node_peers")

RUNS = int(os.environ.get("POLYMUX_NPM_RUNS", "100" if "POLYMUX_SOAK" in os.environ else "4"))
STEPS = 400


async def recorded(path: Path, half_open: str, seed: int) -> tuple[int, int]:
    """Both peers churn on one connection through a tap; streams opened by each."""
    mode = ("--half-open", half_open)
    with PcapngWriter(str(path)) as sink:
        async with (
            Peer.listen("multiplex", *mode) as acceptor,
            RecordingProxy("tcp://127.0.0.1:0", f"tcp://127.0.0.1:{acceptor.port}", sink) as tap,
            Peer.connect("multiplex", tap.address.port, *mode) as dialer,
        ):
            await acceptor.event("session")
            await dialer.event("session")
            turns = [
                peer.begin("churn", seed=seed * 2 + side, steps=STEPS)
                for side, peer in enumerate((dialer, acceptor))
            ]
            opened = [(await dialer.result(turn, timeout=30))["opened"] for turn in turns]
            await dialer.call("disconnect")
            await asyncio.sleep(0.05)
    return opened[0], opened[1]


@pytest.mark.parametrize("half_open", ["true", "false"])
async def test_npm_peers_that_use_ids_again_are_never_accused(
    half_open: str, tmp_path: Path
) -> None:
    again = 0
    for seed in range(RUNS // 2):
        path = tmp_path / f"{seed}.pcapng"
        opened = await recorded(path, half_open, seed)
        found = analyse(str(path))
        said = [row for row in found.rows("violations") if row["severity"] != "note"]
        assert said == [], f"seed {seed}: {said[:3]}"
        streams = found.rows("streams")
        assert len(streams) == sum(opened)
        again += sum(row["incarnation"] != 1 for row in streams)
        path.unlink()
    assert again > RUNS * 10
