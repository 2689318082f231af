# mypyc: compiled
"""Make a protocol implementation from a protocol string, `NAME[:key=value,...]`."""

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
from polymux.protocols.yamux import protocol as yamux


class BadProtocolString(PolymuxError):
    """The protocol string is invalid. The message says what is wrong and what is accepted."""


class ProtocolSpec:
    """A parsed protocol string. `str()` gives it back in normal form."""

    def __init__(self, name: str, options: dict[str, str]) -> None:
        self.name = name
        self.options = options

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return self.name + ":" + ",".join(f"{key}={value}" for key, value in self.options.items())


ProtocolFactory = Callable[[dict[str, str], Limits, i64], Protocol]

# For each protocol: the factory, and the option keys that its string may have.
PROTOCOLS: dict[str, tuple[ProtocolFactory, tuple[str, ...]]] = {
    "mplex": (mplex.from_options, ("ids", "max_frame")),
    "nerdbank": (nerdbank.from_options, ("version", "window", "seeded")),
    "omnistreams": (omnistreams.from_options, ("numbering", "carrier")),
    "streamux": (streamux.from_options, ("length_bits", "id_bits", "timeout")),
    "minmux": (minmux.from_options, ("profile", "canonical", "oops")),
    "yamux": (yamux.from_options, ("dialect", "window", "max_frame")),
}
COMMON_OPTIONS = ("preamble",)


def protocol_names() -> list[str]:
    """Return the names of all protocols, in the order of the documentation."""
    return list(PROTOCOLS)


def parse_protocol(text: str) -> ProtocolSpec:
    """Parse a protocol string and check its name and option keys.

    Option values are not checked here, but by `create`.

    Raises:
        BadProtocolString: unknown protocol name or option key.
    """
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
    """Make the protocol implementation for one connection.

    Args:
        text: the protocol string, such as `nerdbank:version=2`.
        limits: limits to apply; the defaults of `Limits` if None. Options may change it in place.
        vantage: where the bytes are observed (`Vantage`); an endpoint passes its own side.

    Returns:
        A new instance. It keeps the state of one connection and cannot be shared.

    Raises:
        BadProtocolString: unknown name, option key or option value.
    """
    spec = parse_protocol(text)
    factory = PROTOCOLS[spec.name][0]
    try:
        return factory(spec.options, limits if limits is not None else Limits(), vantage)
    except ValueError as error:
        raise BadProtocolString(f"{text!r}: {error}") from None
