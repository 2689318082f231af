"""Runs the selected attacks in parallel, once, and passes each test its own result."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.runner import SOAK, Attack, Outcome, run
from tests.attacks.target import Zygote

AT_ONCE = 6 if SOAK else 4  # the long forms mostly wait
FIGURES = os.environ.get("POLYMUX_FIGURES", "")  # a file to add one line an attack to


async def run_all(attacks: list[Attack], folder: Path) -> dict[str, Outcome]:
    """Run every attack against a new server, a few at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async with Zygote(folder) as zygote:

        async def one(attack: Attack) -> Outcome:
            async with turns:
                return await run(attack, zygote)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(attack)) for attack in attacks]
        outcomes = {str(task.result().attack): task.result() for task in running}
    errors = (folder / "errors").read_text()
    assert not errors, errors
    return outcomes


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """The results of the attacks that were selected for this run."""
    chosen: list[Any] = [getattr(item, "callspec", None) for item in request.session.items]
    found = [spec.params["attack"] for spec in chosen if spec and "attack" in spec.params]
    attacks = [attack for attack in found if isinstance(attack, Attack)]
    result = asyncio.run(run_all(attacks, tmp_path_factory.mktemp("attacks")))
    if FIGURES:
        with open(FIGURES, "a") as out:
            out.writelines(outcome.line() + "\n" for outcome in result.values())
    return result
