"""Sphinx configuration: `python -m sphinx -W -b html docs docs/_build`."""

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

# The interpreted source is documented: compiled functions have no annotations.
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

project = "polymux"
author = "The polymux developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "polymux"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_show_copyright = False
highlight_language = "text"
default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True


def convert_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Turn a docstring (Args, Returns and Raises sections, `code`) into reStructuredText.

    The napoleon extension would take the first line of a property such as `Bytes sent: ...` for a
    type and its description; as a method it stays text.
    """
    escaped = [escape_markup(line) for line in lines]
    kind: Any = "method" if what in ("attribute", "data", "property") else what
    # An "Attributes" section is a list of fields: members of their own would be described twice.
    config: Any = Config(napoleon_use_ivar=True)
    lines[:] = GoogleDocstring(escaped, config, app, kind, name, obj, options).lines()


def escape_markup(line: str) -> str:
    """Escape asterisks and bars outside of `code`, which reStructuredText takes for markup."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def show_plain_integers(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str, result: str
) -> tuple[str, str]:
    """Show the native integers of compiled modules as what a caller passes: int."""
    return plain_integers(signature), plain_integers(result)


def plain_integers(text: str) -> str:
    return re.sub(r"\bi64\b", "int", text) if text else text


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("autodoc-process-signature", show_plain_integers)
