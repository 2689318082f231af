"""The HTML file: one page with one script, one style sheet and the data; no network access.

The content security policy lets the browser execute exactly the script whose hash it holds and
load nothing; where the browser supports trusted types, creating markup from text is an error. The
data is in an element that is never executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Final

from polymux.core.errors import MissingExtra

_SCRIPTS: Final = (
    "uPlot.iife.min.js", "dom.js", "data.js", "theme.js", "findings.js", "grid.js", "sessions.js",
    "paint.js", "lanes.js", "throughput.js", "sequence.js", "streams.js", "frames.js",
    "rules.js", "commands.js", "address.js", "main.js",
)  # fmt: skip
_STYLES: Final = (
    "uPlot.min.css",
    "colours.css",
    "layout.css",
    "parts.css",
    "sequence.css",
    "print.css",
)
_TEMPLATE: Final = "report.html.j2"
_ESCAPES: Final = str.maketrans(
    {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
)


def html_safe_json(value: object) -> str:
    """JSON without characters that are special in HTML."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def render(title: str, data: object) -> str:
    """The complete page. `title` and `data` may contain anything; nothing in them is executed."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("report", "writing a report") from None
    script = '"use strict";\n(() => {\n' + _join_assets(_SCRIPTS[1:]) + "\n})();\n"
    script = _asset(_SCRIPTS[0]) + "\n" + script
    style = _join_assets(_STYLES)
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        _asset(_TEMPLATE)
    )
    # Safe without escaping: files of this package, or JSON escaped by html_safe_json.
    return template.render(
        title=title,
        policy=content_security_policy(script, style),
        style=Markup(style),
        script=Markup(script),
        data=Markup(html_safe_json(data)),
    )


def content_security_policy(script: str, style: str) -> str:
    """The content security policy that allows this script and this style and nothing else."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_csp_hash(script)}'",
            f"style-src '{_csp_hash(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _join_assets(names: tuple[str, ...]) -> str:
    return "\n".join(_asset(name) for name in names)


def _asset(name: str) -> str:
    return (files("polymux.report.render") / "assets" / name).read_text(encoding="utf-8")
