# mypyc: compiled
"""From a protocol string, `NAME[:key=value,...]`, to a rule book."""

from collections.abc import Callable

from mypy_extensions import i64

from polymux.core.errors import PolymuxError
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.side import Vantage
from polymux.protocols.minmux import protocol as minmux
from polymux.protocols.mplex import protocol as mplex
from polymux.protocols.nerdbank import protocol as nerdbank
from polymux.protocols.omnistreams import protocol as omnistreams
from polymux.protocols.streamux import protocol as streamux


class BadProtocolString(PolymuxError):
    """A protocol string that cannot be used; the text says what is wrong and what would do."""


class ProtocolSpec:
    """A protocol string, taken apart."""

    def __init__(self, name: str, options: dict[str, str]) -> None:
        self.name = name
        self.options = options

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return self.name + ":" + ",".join(f"{key}={value}" for key, value in self.options.items())


ProtocolFactory = Callable[[dict[str, str], Limits, i64], Protocol]

# One line a protocol: its maker, and the keys its string may have.
PROTOCOLS: dict[str, tuple[ProtocolFactory, tuple[str, ...]]] = {
    "mplex": (mplex.from_options, ("ids", "max_frame")),
    "nerdbank": (nerdbank.from_options, ("version", "window", "seeded")),
    "omnistreams": (omnistreams.from_options, ("numbering", "carrier")),
    "streamux": (streamux.from_options, ("length_bits", "id_bits", "timeout")),
    "minmux": (minmux.from_options, ("profile", "canonical", "oops")),
}
COMMON_OPTIONS = ("preamble",)


def protocol_names() -> list[str]:
    return list(PROTOCOLS)


def parse_protocol(text: str) -> ProtocolSpec:
    """Take a protocol string apart and check its name and keys."""
    name, _, rest = text.strip().partition(":")
    if name not in PROTOCOLS:
        raise BadProtocolString(f"no protocol {name!r}: choose one of {', '.join(PROTOCOLS)}")
    allowed = PROTOCOLS[name][1] + COMMON_OPTIONS
    options: dict[str, str] = {}
    for pair in rest.split(",") if rest else []:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or key not in allowed:
            raise BadProtocolString(
                f"{text!r}: {pair!r} is no option of {name}; it has {', '.join(allowed)}"
            )
        options[key] = value.strip()
    return ProtocolSpec(name, options)


def create(text: str, limits: Limits | None = None, vantage: int = Vantage.MIDDLE) -> Protocol:
    """A fresh rule book for one conversation."""
    choice = parse_protocol(text)
    maker = PROTOCOLS[choice.name][0]
    try:
        return maker(choice.options, limits if limits is not None else Limits(), vantage)
    except ValueError as problem:
        raise BadProtocolString(f"{text!r}: {problem}") from None
