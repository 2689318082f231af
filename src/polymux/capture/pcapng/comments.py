"""Comments by which a capture says what it holds: `polymux: protocol=mplex; vantage=middle`.

A comment stands on a packet, an interface or a section, the nearest counts. Each line that starts
with `polymux:` is read; entries are separated by semicolons.
"""

from __future__ import annotations

import functools

PREFIX = "polymux:"
VANTAGES = ("dialer", "acceptor", "middle")


def hint_comment(protocol: str | None = None, vantage: str | None = None) -> str:
    """The comment that says so. Raises ValueError for what could not be read back."""
    if protocol is not None and any(sign in protocol for sign in ";\r\n"):
        raise ValueError(f"protocol {protocol!r} has a semicolon or a line end")
    if vantage is not None and vantage not in VANTAGES:
        raise ValueError(f"vantage {vantage!r} is none of {', '.join(VANTAGES)}")
    entries = [f"protocol={protocol}"] if protocol else []
    entries += [f"vantage={vantage}"] if vantage else []
    return f"{PREFIX} {'; '.join(entries)}"


@functools.lru_cache(maxsize=64)
def read_hint(text: str) -> tuple[str | None, str | None]:
    """(protocol, vantage) as a comment says; None for what it does not say."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(PREFIX):
            for entry in line.removeprefix(PREFIX).split(";"):
                name, equals, value = entry.strip().partition("=")
                if equals:
                    said.setdefault(name.strip(), value.strip())
    vantage = said.get("vantage")
    return said.get("protocol") or None, vantage if vantage in VANTAGES else None
