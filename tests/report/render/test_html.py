"""The HTML file: one script, one style, both hashed, and nothing else is allowed."""

import base64
import builtins
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.hostile_texts import HOSTILE

from polymux.core.errors import MissingExtra
from polymux.report.render.html import html_safe_json, render

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Elements(HTMLParser):
    """Every start tag with its attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[-1] += data

    def all(self, wanted: str) -> list[tuple[dict[str, str | None], str]]:
        pairs = zip(self.tags, self.texts, strict=True)
        return [(attributes, text) for (tag, attributes), text in pairs if tag == wanted]


@pytest.fixture(scope="module")
def page() -> Elements:
    return Elements(render("A title", {"name": "</script>"}))


def sha256(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_the_policy_allows_exactly_the_script_and_the_style_of_the_page(page: Elements) -> None:
    (policy,) = [a["content"] for a, _ in page.all("meta") if "http-equiv" in a]
    assert policy is not None
    rules = dict(part.split(" ", 1) for part in policy.split("; "))
    (data, script), (style,) = page.all("script"), page.all("style")
    assert data[0] == {"type": "application/json", "id": "data"}
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == sha256(script[1])
    assert rules["style-src"] == sha256(style[1])
    assert rules["img-src"] == "data:"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy


def test_the_page_points_at_nothing_outside_itself(page: Elements) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "srcset", "poster", "data"):
            assert attributes.get(name, "data:,") == "data:,", (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_the_script_never_makes_markup_from_text(page: Elements) -> None:
    script = page.all("script")[1][1]
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    assert not re.search(forbidden, script)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|importScripts)\b", script)


def test_the_data_comes_back_as_it_went_in(page: Elements) -> None:
    assert json.loads(page.all("script")[0][1]) == {"name": "</script>"}


@given(JSON)
def test_html_safe_json_has_no_character_that_is_special_in_html(value: object) -> None:
    text = html_safe_json(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_title_stays_a_title(text: str) -> None:
    clean = text.replace("\x00", "")
    made = Elements(render(clean, {}))
    assert len(made.all("script")) == 2
    assert not [tag for tag, _ in made.tags if tag in ("img", "svg", "iframe", "base", "a")]


def test_the_chart_library_comes_with_its_licence() -> None:
    from importlib.resources import files

    assets = files("polymux.report.render") / "assets"
    assert "Leon Sorokin" in (assets / "uPlot-LICENSE").read_text()
    assert "uPlot" in (assets / "uPlot.iife.min.js").read_text()[:80]


def test_without_jinja2_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name == "jinja2":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"polymux\[report\]"):
        render("t", {})
