"""Reading the values in a protocol string."""


def whole(text: str, name: str, least: int) -> int:
    """A whole number of at least `least`, or a ValueError that says so."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} is a whole number, not {text!r}") from None
    if value < least:
        raise ValueError(f"{name} is at least {least}, not {value}")
    return value
