"""Peers with one rule removed are found out, and nothing else is reported about them.

`python -m tools.faulty_peers` examines all of them; here, some of each protocol.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOME_RULES = (
    "mplex.id-reused", "nerdbank.bad-offer", "nerdbank.window-exceeded",
    "omnistreams.credit-exceeded", "minmux.credit-exceeded", "minmux.limit-raised",
    "yamux.id-parity", "yamux.window-overflow",
)  # fmt: skip


def run_interpreted(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the source instead of the compiled package, whose rules cannot be removed."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip


def test_faulty_peers_are_found_out_and_nothing_else_is_reported() -> None:
    done = run_interpreted("-m", "tools.faulty_peers", *SOME_RULES)
    assert done.returncode == 0, (done.stdout, done.stderr)
    *peers, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [peer["rule"] for peer in peers] == list(SOME_RULES)
    assert [peer["rule"] for peer in peers if peer["wrong"]] == []
    assert summary["found"] == len(SOME_RULES)


def test_every_rule_whose_removal_can_be_seen_makes_a_faulty_peer_or_says_why_not() -> None:
    code = "from tools import faulty_peers as f; print(len(f.RULES) + len(f.REPLIES)); "
    done = run_interpreted("-c", code + "print(f.unexplained_rules())")
    count, unexplained = done.stdout.splitlines()
    assert int(count) >= 30
    assert unexplained == "[]"
