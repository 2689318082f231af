"""The notation of frames in the scripts of cases: words, payloads and streams."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

WORD = re.compile(r'"[^"]*"|\S+')


class BadScript(ValueError):
    """A script of a case cannot be understood; the text names the line."""


@dataclass(frozen=True)
class FrameWords:
    """One frame of a script: `KIND STREAM PAYLOAD key=value`."""

    kind: str
    stream: str = ""
    payload: bytes | None = None
    values: dict[str, int] = field(default_factory=dict)

    def value(self, name: str, default: int = 0) -> int:
        return self.values.get(name, default)


def parse_frame(text: str) -> FrameWords:
    """Parse the words after `>`, `<` or `!`.

    Raises:
        BadScript: a word is neither a payload nor `key=value`.
    """
    words = WORD.findall(text)
    if not words:
        raise BadScript(f"no frame: {text!r}")
    stream, payload = "", None
    values: dict[str, int] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if equals and not word.startswith('"'):
            values[key] = int(value, 0)
        elif word.startswith(('"', "x")) or (word.startswith("*") and len(word) > 1):
            payload = (payload or b"") + parse_payload(word)
        elif not stream and payload is None:
            stream = word
        else:
            raise BadScript(f"{word!r} is neither a payload nor key=value: {text!r}")
    return FrameWords(words[0], stream, payload, values)


def parse_payload(word: str) -> bytes:
    """Bytes of `"text"`, `x00ff` or `*20`."""
    if word.startswith('"'):
        return word[1:-1].encode()
    if word.startswith("*"):
        return b"z" * int(word[1:])
    try:
        return bytes.fromhex(word[1:])
    except ValueError:
        raise BadScript(f"{word!r} is not x and hex digits") from None


def stream_number(word: str) -> int:
    """The number in `3`, `p3` or `#3`."""
    try:
        return int(word.lstrip("p#"), 0)
    except ValueError:
        raise BadScript(f"{word!r} is not a stream") from None
