# mypyc: compiled
"""Parse the option values of a protocol string.

A module of its own because the protocols use it and `registry` imports the protocols.
"""

from typing import Final

MAX_OPTION_VALUE: Final = 2**60  # keeps sums of option values within 64 bits


def parse_integer(text: str, name: str, minimum: int) -> int:
    """Parse an integer from `minimum` to 2**60.

    Args:
        text: the value as written in the protocol string.
        name: the option's name, for the error message.
        minimum: the smallest value accepted.

    Raises:
        ValueError: `text` is not an integer or is out of range.
    """
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} is a whole number, not {text!r}") from None
    if value < minimum:
        raise ValueError(f"{name} is at least {minimum}, not {value}")
    if value > MAX_OPTION_VALUE:
        raise ValueError(f"{name} is at most {MAX_OPTION_VALUE}, not {text}")
    return value
