"""What the streams of a protocol can express: which protocols can be relayed to which."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from polymux.core.errors import PolymuxError
from polymux.core.protocol import Protocol
from polymux.live.session.session import Session
from polymux.protocols.minmux.protocol import Minmux
from polymux.protocols.nerdbank.protocol import Nerdbank
from polymux.protocols.omnistreams.protocol import Omnistreams
from polymux.protocols.registry import create
from polymux.protocols.streamux.protocol import Streamux
from polymux.protocols.yamux.dialects import LIBP2P
from polymux.protocols.yamux.protocol import Yamux

RESET_CODE = re.compile("code [0-9]+")  # the reason of a reset in libp2p's yamux


class Shape(Enum):
    """What a stream of a protocol is; streams are relayed to streams of the same shape."""

    DUPLEX = "two-way streams"
    ONE_WAY = "one-way streams"
    REQUESTS = "requests and replies"


class CannotRelay(PolymuxError):
    """The two protocols have streams of different shapes."""


@dataclass(frozen=True)
class Traits:
    """What the streams of one protocol can express.

    Attributes:
        protocol: Name of the protocol.
        shape: What a stream is.
        names: A stream is opened with a name, or with metadata.
        messages: Content keeps the sender's boundaries.
        reasons: An abort carries a text: any, or (`codes`) a number only.
        codes: See `reasons`.
        stop_reading: A reader can say that it reads no more.
        ends_by_termination: A peer that is done with a stream terminates it, also in good order.
    """

    protocol: str
    shape: Shape
    names: bool = False
    messages: bool = False
    reasons: bool = False
    codes: bool = False
    stop_reading: bool = False
    ends_by_termination: bool = False

    @property
    def is_one_way(self) -> bool:
        """Whether content flows only from the side that opens a stream."""
        return self.shape is Shape.ONE_WAY

    def carries_reason(self, reason: str) -> bool:
        """Whether an abort can carry this reason; no reason needs nothing."""
        if not reason:
            return True
        return self.reasons or (self.codes and RESET_CODE.fullmatch(reason) is not None)


def traits_of(session: Session) -> Traits:
    """The traits of a session's protocol."""
    return protocol_traits(session.endpoint.protocol)


def protocol_traits(protocol: Protocol) -> Traits:
    """The traits of a protocol, given as an instance."""
    if isinstance(protocol, Nerdbank):
        later = protocol.major_version >= 2
        return Traits(
            protocol.name,
            Shape.DUPLEX,
            names=True,
            reasons=later,
            stop_reading=later,
            ends_by_termination=True,
        )
    if isinstance(protocol, Yamux):
        return Traits(protocol.name, Shape.DUPLEX, codes=protocol.named_dialect == LIBP2P)
    if isinstance(protocol, Omnistreams):
        return Traits(protocol.name, Shape.ONE_WAY, names=True, messages=True)
    if isinstance(protocol, Minmux):
        return Traits(protocol.name, Shape.ONE_WAY)
    if isinstance(protocol, Streamux):
        return Traits(protocol.name, Shape.REQUESTS)
    return Traits(protocol.name, Shape.DUPLEX, names=True)


def check_relayable(protocol_a: str, protocol_b: str) -> tuple[Traits, Traits]:
    """Return the traits of two protocol strings.

    Raises:
        CannotRelay: Their streams have different shapes.
        BadProtocolString: One of them is no protocol string.
    """
    a, b = protocol_traits(create(protocol_a)), protocol_traits(create(protocol_b))
    if a.shape is not b.shape:
        raise CannotRelay(
            f"{protocol_a} has {a.shape.value}, {protocol_b} has {b.shape.value}: a bridge joins "
            f"protocols of the same shape ({shape_list()})"
        )
    return a, b


def shape_list() -> str:
    """Which protocols can be joined, in words."""
    return (
        "two-way: mplex, nerdbank, yamux; one-way: omnistreams, minmux; requests: streamux only "
        "to streamux"
    )
