"""Text from the wire, made safe to look at.

A name may hold anything a peer cared to send: control characters, marks that turn the writing
direction round, invisible joiners. What cannot be seen, or would change how its neighbours are
seen, is shown as an escape. HTML is not a concern here: the page only makes text nodes.
"""

import unicodedata
from typing import Final

# Controls, formats (bidi marks are among them), surrogates, private use, unassigned, separators.
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK_CHARACTERS: Final = frozenset(
    "\u115f\u1160\u2800\u3164\uffa0"
)  # letters and signs without ink
_MAX_COMBINING_MARKS: Final = 2  # combining marks in a row; more would climb over the lines above
ELLIPSIS: Final = "…"


def escape_hidden(text: str, limit: int = 0) -> str:
    r"""`text` with every hidden character as `\u202e` or `\U000e0001`.

    With a `limit`, the result has at most that many characters and then an ellipsis if it was cut;
    an escape is never cut in two.
    """
    pieces: list[str] = []
    length = 0
    marks = _MAX_COMBINING_MARKS  # as if full: a mark at the start would sit on whatever stands before the text
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
    return not character.isspace()  # any space but the plain one can pass for it


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
