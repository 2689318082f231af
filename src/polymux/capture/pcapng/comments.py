"""Hints: comments that state a capture's content, `polymux: protocol=mplex; vantage=middle`.

A comment can be on a packet, an interface or a section; the most specific one applies. Each line
that starts with `polymux:` is read; entries are separated by semicolons.

The section of a rotated file also says which recording it belongs to, and which file of it it is:
`polymux: recording=0f1e2d3c4b5a6978; file=3`. Clocks may step; this number does not. It also names
the host where it was taken, `polymux: sensor=web-1`, or has the section's hardware instead.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

PREFIX = "polymux:"
VANTAGES = ("dialer", "acceptor", "middle")
MAX_FILE_DIGITS = 18  # of the number of a file in its recording: it fits 64 bits
_RECORDING_ID = re.compile(r"[0-9a-f]{16}")


def hint_comment(protocol: str | None = None, vantage: str | None = None) -> str:
    """The comment for a protocol and a vantage point, as the writers of captures take it.

    Args:
        protocol: A protocol name, such as "mplex"; omitted if None.
        vantage: Where the capture was taken, one of `VANTAGES`; omitted if None.

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


def recording_comment(recording: str, file: int) -> str:
    """The comment of a rotated file: the id of its recording, and its number in it from 1 on."""
    return f"{PREFIX} recording={recording}; file={file}"


def read_recording(text: str) -> tuple[str, int]:
    """(recording, file) of a section's comment; ("", 0) if it names none."""
    entries = _entries(text)
    recording, file = entries.get("recording", ""), entries.get("file", "")
    if recording and file.isascii() and file.isdecimal() and len(file) <= MAX_FILE_DIGITS:
        return recording, int(file)
    return "", 0


def sensor_comment(sensor: str) -> str:
    """The comment of a section whose packets were captured at this sensor."""
    return f"{PREFIX} sensor={sensor}"


def hardware_comment(hardware: str) -> str:
    """The section's hardware as a comment, as `read_sensor` reads it."""
    return f"{PREFIX} hardware={' '.join(hardware.replace(';', ',').split())}"


def read_sensor(text: str) -> str:
    """The sensor that a section's comment names, else its hardware; "" if it has neither."""
    entries = _entries(text)
    return entries.get("sensor") or entries.get("hardware") or ""


def anonymous_hints(text: str, is_protocol: Callable[[str], bool]) -> str:
    """A comment with no words of its author's own; "" if nothing is left of it.

    Kept are a protocol if `is_protocol`, a known vantage, and the place in a recording with an id
    as polymux writes it; not the sensor and the hardware, which name hosts.
    """
    entries = _entries(text)
    protocol, vantage = entries.get("protocol", ""), entries.get("vantage", "")
    recording, file = read_recording(text)
    kept = [f"protocol={protocol}"] if protocol and is_protocol(protocol) else []
    kept += [f"vantage={vantage}"] if vantage in VANTAGES else []
    if _RECORDING_ID.fullmatch(recording):
        kept += [f"recording={recording}", f"file={file}"]
    return f"{PREFIX} {'; '.join(kept)}" if kept else ""


@functools.lru_cache(maxsize=64)
def read_hint(text: str) -> tuple[str | None, str | None]:
    """(protocol, vantage) of a comment; None for an entry it does not have."""
    entries = _entries(text)
    vantage = entries.get("vantage")
    return entries.get("protocol") or None, vantage if vantage in VANTAGES else None


def _entries(text: str) -> dict[str, str]:
    """The entries of all lines that are hints; of several with the same name, the first."""
    entries: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(PREFIX):
            for entry in line.removeprefix(PREFIX).split(";"):
                name, equals, value = entry.strip().partition("=")
                if equals:
                    entries.setdefault(name.strip(), value.strip())
    return entries
