"""History and completion of the prompts."""

from __future__ import annotations

import os
import readline
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MAX_HISTORY_LINES: Final = 1000


@contextmanager
def line_editing(
    words: Callable[[], list[str]], history_name: str, delimiters: str
) -> Iterator[None]:
    """Complete words on Tab, and keep the history in a file of the user.

    Args:
        words: Called for each completion; returns all words that can be completed.
        history_name: Of the file.
        delimiters: The characters that end a word.
    """

    def complete(text: str, state: int) -> str | None:
        matches = [word for word in words() if word.lower().startswith(text.lower())]
        return matches[state] if state < len(matches) else None

    readline.set_completer(complete)
    readline.set_completer_delims(delimiters)
    readline.parse_and_bind("tab: complete")
    readline.clear_history()
    readline.set_history_length(MAX_HISTORY_LINES)
    history = history_path(history_name)
    with suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        with suppress(OSError):  # a prompt without a place for its history still works
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(history, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.write_history_file(history)


def history_path(name: str) -> Path:
    """Where a history is kept: below XDG_STATE_HOME, by default ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "polymux" / name
