"""Peers with one rule removed are found out, and nothing else is reported about them.

`python -m tools.faulty_peers` examines all of them; here, some of each protocol.
"""

from __future__ import annotations

import json

from tests.interpreted_source import run_interpreted

SOME_RULES = (
    "mplex.bad-flag", "mplex.id-reused", "nerdbank.wrong-source", "nerdbank.window-exceeded",
    "omnistreams.credit-exceeded", "streamux.bad-bit-counts", "minmux.credit-exceeded",
    "minmux.limit-raised", "yamux.id-parity", "yamux.window-overflow",
)  # fmt: skip


def test_faulty_peers_are_found_out_and_nothing_else_is_reported() -> None:
    done = run_interpreted("-m", "tools.faulty_peers", *SOME_RULES)
    assert done.returncode == 0, (done.stdout, done.stderr)
    *peers, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [peer["rule"] for peer in peers] == list(SOME_RULES)
    assert [peer["rule"] for peer in peers if peer["wrong"]] == []
    assert summary["found"] == len(SOME_RULES)


def test_the_faulty_peers_are_all_rules_whose_removal_can_be_seen_and_that_are_required() -> None:
    code = """
import json
from tools import faulty_peers as f
kinds = {rule: f.kind_of(rule)[0] for rule in f.all_rules()}
print(json.dumps([kinds, f.chosen_rules(5, 7), f.chosen_rules(5, 7), f.chosen_rules(5, 8)]))
"""
    done = run_interpreted("-c", code)
    kinds, chosen, again, other = json.loads(done.stdout)
    assert len(kinds) == 120
    assert sum(kind == "faulty" for kind in kinds.values()) >= 30
    assert set(SOME_RULES) <= {rule for rule, kind in kinds.items() if kind == "faulty"}
    assert kinds["mplex.id-parity"] == "conforms"  # a note
    assert kinds["mplex.unknown-stream"] == "unseen"  # what is sent there is dropped all the same
    assert chosen == again
    assert chosen != other
