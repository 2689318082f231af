"""Every class of attack on every protocol it applies to, against a server in its own process."""

from __future__ import annotations

import pytest
from tests.attacks.families import ALL
from tests.attacks.runner import SOAK, Attack, Outcome


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("attack", ALL, ids=str)
def test_a_server_survives(attack: Attack, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[str(attack)]
    print(outcome.line())
    assert not outcome.problems, outcome.problems
