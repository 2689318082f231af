"""Hints: comments that state a capture's content, `polymux: protocol=mplex; vantage=middle`.

A comment can be on a packet, an interface or a section; the most specific one applies. Each line
that starts with `polymux:` is read; entries are separated by semicolons.
"""

from __future__ import annotations

import functools

PREFIX = "polymux:"
VANTAGES = ("dialer", "acceptor", "middle")


def hint_comment(protocol: str | None = None, vantage: str | None = None) -> str:
    """The comment for a protocol and a vantage point.

    Raises:
        ValueError: The protocol has a semicolon or a line end, or the vantage is not one of
            `VANTAGES`: `read_hint` could not read it back.
    """
    if protocol is not None and any(sign in protocol for sign in ";\r\n"):
        raise ValueError(f"protocol {protocol!r} has a semicolon or a line end")
    if vantage is not None and vantage not in VANTAGES:
        raise ValueError(f"vantage {vantage!r} is not one of {', '.join(VANTAGES)}")
    entries = [f"protocol={protocol}"] if protocol else []
    entries += [f"vantage={vantage}"] if vantage else []
    return f"{PREFIX} {'; '.join(entries)}"


@functools.lru_cache(maxsize=64)
def read_hint(text: str) -> tuple[str | None, str | None]:
    """(protocol, vantage) of a comment; None for an entry it does not have."""
    entries: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(PREFIX):
            for entry in line.removeprefix(PREFIX).split(";"):
                name, equals, value = entry.strip().partition("=")
                if equals:
                    entries.setdefault(name.strip(), value.strip())
    vantage = entries.get("vantage")
    return entries.get("protocol") or None, vantage if vantage in VANTAGES else None
