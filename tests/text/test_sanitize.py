"""Any text from a peer is safe to display."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.hostile_texts import HOSTILE

from polymux.text.sanitize import ELLIPSIS, escape_hidden


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain text, 7 & <b>", "plain text, 7 & <b>"),
        ("größe 大きさ 🦀", "größe 大きさ 🦀"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("a\x00b\x1b[31m", "a\\u0000b\\u001b[31m"),
        ("\x7f\x9b", "\\u007f\\u009b"),
        ("one\ntwo\u2028three", "one\\u000atwo\\u2028three"),
        ("\U000e0041", "\\U000e0041"),
        ("no\u00a0break", "no\\u00a0break"),
        ("\u3164", "\\u3164"),
        ("e\u0301", "e\u0301"),
        ("\u0301e", "\\u0301e"),
        ("e\u0301\u0302\u0303", "e\u0301\u0302\\u0303"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_hidden_characters_are_shown_as_escapes(given_text: str, shown: str) -> None:
    assert escape_hidden(given_text) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    assert escape_hidden("x" * 10, 10) == "x" * 10
    assert escape_hidden("x" * 11, 10) == "x" * 10 + ELLIPSIS


def test_an_escape_is_never_cut_in_two() -> None:
    assert escape_hidden("ab\u202e", 7) == "ab" + ELLIPSIS
    assert escape_hidden("ab\u202e", 8) == "ab\\u202e"


@given(st.text() | st.sampled_from(HOSTILE), st.integers(min_value=0, max_value=60))
def test_nothing_hidden_is_ever_left(text: str, limit: int) -> None:
    shown = escape_hidden(text, limit)
    assert all(
        unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        for character in shown
    )
    assert not limit or len(shown) <= limit + len(ELLIPSIS)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_printable_ascii_is_never_changed(text: str) -> None:
    assert escape_hidden(text) == text
