# mypyc: compiled
"""Reading the values in a protocol string."""

from typing import Final

MOST: Final = 2**60  # larger numbers do not fit where they are counted with


def whole(text: str, name: str, least: int) -> int:
    """A whole number of at least `least` and at most 2**60, or a ValueError that says so."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} is a whole number, not {text!r}") from None
    if value < least:
        raise ValueError(f"{name} is at least {least}, not {value}")
    if value > MOST:
        raise ValueError(f"{name} is at most {MOST}, not {text}")
    return value
