"""The options that say what is left of content: --payload and --names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import click

from polymux.core.redaction import FULL, HASH, HEAD, KEY_BYTES, NONE, Redaction

Callback = Callable[..., object]
PAYLOAD_FORMS = "full|head:N|hash|none"


def parse_payload(context: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    """Parse --payload: the form, and the N of `head:N`."""
    match = re.fullmatch(r"head:(\d{1,9})", value)
    if match is not None:
        return HEAD, int(match[1])
    if value in (FULL, HASH, NONE):
        return value, 0
    raise click.BadParameter(f"{value!r} is none of {PAYLOAD_FORMS.replace('|', ', ')}")


def payload_option(default: str) -> Callable[[Callback], Callback]:
    """Add --payload; the command receives `payload: tuple[str, int]`."""
    return click.option(
        "--payload", callback=parse_payload, default=default, show_default=True,
        metavar=PAYLOAD_FORMS,
        help="What is written of content: all of it, the first N bytes of each frame, filler that "
        "is the same for the same content, or nothing.",
    )  # fmt: skip


def names_option(command: Callback) -> Callback:
    """Add --names; the command receives `names: str | None`."""
    add: Callable[[Callback], Callback] = click.option(
        "--names", type=click.Choice(["hash", "keep"]),
        help="How names of streams are written: as hashes, which is the default where content is "
        "left out, or as they are, unless what is taken for a name may be content.",
    )  # fmt: skip
    return add(command)


def make_redaction(
    payload: tuple[str, int], names: str | None, strict: bool = False
) -> Redaction | None:
    """What the options ask for, with a new random key; None if everything is kept.

    Args:
        payload: As `parse_payload` returns it.
        names: "keep"; all else is "hash".
        strict: See `Redaction`.
    """
    form, head_bytes = payload
    if form == FULL and names == "keep":
        return None
    return Redaction(form, os.urandom(KEY_BYTES), head_bytes, names == "keep", strict)


def redaction_comment(redaction: Redaction) -> str:
    """The comment of a capture that was redacted."""
    return f"redacted by polymux: {redaction}"
