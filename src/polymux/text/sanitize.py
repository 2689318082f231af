"""Escaping of text from captures and peers, for terminals and pages.

A name may contain control characters, marks that reverse the writing direction, and invisible
characters. Those that are invisible, or change how their neighbours are displayed, are escaped.
HTML is not escaped: the report's page inserts text as text nodes only.
"""

import unicodedata
from typing import Final

# Controls, formats (bidi marks are among them), surrogates, private use, unassigned, separators.
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK_CHARACTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters without ink
_MAX_COMBINING_MARKS: Final = 2  # in a row; more would overlap the lines above
ELLIPSIS: Final = "…"


def escape_hidden(text: str, limit: int = 0) -> str:
    r"""`text` with every hidden character as `\u202e` or `\U000e0001`.

    With a `limit`, the result has at most that many characters, followed by an ellipsis if it was
    truncated; an escape is never split.
    """
    pieces: list[str] = []
    length = 0
    # At the maximum from the start: a leading mark would combine with the text before.
    marks = _MAX_COMBINING_MARKS
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) else 0
        piece = (
            character
            if _is_visible(character) and marks <= _MAX_COMBINING_MARKS
            else _escape(character)
        )
        if limit and length + len(piece) > limit:
            pieces.append(ELLIPSIS)
            break
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)


def _is_visible(character: str) -> bool:
    if " " <= character <= "~":
        return True
    if unicodedata.category(character) in _HIDDEN_CATEGORIES or character in _BLANK_CHARACTERS:
        return False
    return not character.isspace()  # other spaces look like the plain one


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
