"""Commands handle SIGINT and SIGTERM from the moment they print that they are running."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from polymux.cli.support.signals import stop_requested, stop_signals

HERE = "tcp://127.0.0.1:0"
COMMANDS = {
    "bridge": (
        HERE,
        "tcp://127.0.0.1:9",
        "--protocol-a",
        "mplex",
        "--protocol-b",
        "yamux",
    ),
    "collect": ("--listen", HERE, "--protocol", "mplex", "--out", "captures"),
    "record": (HERE, "tcp://127.0.0.1:9", "--out", "talk.pcapng"),
    "serve": (HERE, "--protocol", "mplex"),
}


@pytest.fixture
def unheard() -> Iterator[list[int]]:
    """The signals without a handler, each of which would have ended the process."""
    taken: list[int] = []

    def take(number: int, frame: object) -> None:
        taken.append(number)
        raise KeyboardInterrupt

    former = {number: signal.signal(number, take) for number in stop_signals()}
    yield taken
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", stop_signals())
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_that_comes_as_it_says_where_it_listens_ends_it_in_good_order(
    name: str,
    number: signal.Signals,
    run: Callable[..., Ran],
    unheard: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("listening"):
            signal.raise_signal(number)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_module(f"polymux.cli.commands.{name}"), "warn", say)
    assert run(name, *COMMANDS[name]).code == 0
    assert said[0].startswith("listening")
    assert unheard == []


@pytest.mark.parametrize("number", stop_signals())
def test_the_first_signal_is_only_noted_and_the_next_one_does_what_it_always_did(
    number: signal.Signals, unheard: list[int]
) -> None:
    with stop_requested() as is_told:
        assert not is_told()
        signal.raise_signal(number)
        assert is_told()
        assert unheard == []
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert unheard == [number]


def test_after_it_signals_do_what_they_always_did(unheard: list[int]) -> None:
    with stop_requested() as is_told:
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert unheard == [signal.SIGTERM]
    assert not is_told()
