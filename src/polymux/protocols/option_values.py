# mypyc: compiled
"""Reading the values in a protocol string."""

from typing import Final

MAX_OPTION_VALUE: Final = 2**60  # larger numbers do not fit where they are counted with


def parse_integer(text: str, name: str, minimum: int) -> int:
    """A whole number of at least `least` and at most 2**60, or a ValueError that says so."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} is a whole number, not {text!r}") from None
    if value < minimum:
        raise ValueError(f"{name} is at least {minimum}, not {value}")
    if value > MAX_OPTION_VALUE:
        raise ValueError(f"{name} is at most {MAX_OPTION_VALUE}, not {text}")
    return value
