"""What observers report about conversations of model peers, which have their own encoders.

100 honest and 100 faulty conversations per protocol; 2,500 of each under `make soak`.
"""

import os

import pytest

from polymux.testing import MODELS, faulty_conversations, honest_conversations

COUNT = 2500 if os.environ.get("POLYMUX_SOAK") else 100
PROTOCOLS = sorted(MODELS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_honest_conversations_are_reported_correctly(protocol: str) -> None:
    tally = honest_conversations(protocol, range(COUNT))
    print(f"R23 {protocol}: {tally.conversations} honest conversations, {tally.frames} frames, "
          f"{len(tally.wrong)} told wrongly")  # fmt: skip
    assert tally.conversations == COUNT
    assert tally.wrong == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_planted_fault_is_reported_and_nothing_else(protocol: str) -> None:
    tally = faulty_conversations(protocol, range(COUNT))
    print(f"R23 {protocol}: {tally.conversations} faulty conversations, {tally.found} found, "
          f"{len(tally.wrong)} with other reports")  # fmt: skip
    assert tally.wrong == []
    assert tally.found >= 0.99 * COUNT, tally.missed[:5]
    planted = {rule.partition(".")[2] for rule in tally.rules}
    assert len(planted) >= 0.8 * len(MODELS[protocol].faults), sorted(planted)
