"""The notation for a protocol."""

from __future__ import annotations

from polymux.conform.notation.base import Notation
from polymux.conform.notation.minmux import MinmuxNotation
from polymux.conform.notation.mplex import MplexNotation
from polymux.conform.notation.nerdbank import NerdbankNotation
from polymux.conform.notation.omnistreams import OmnistreamsNotation
from polymux.conform.notation.streamux import StreamuxNotation
from polymux.conform.notation.yamux import YamuxNotation

NOTATIONS: dict[str, type[Notation]] = {
    "mplex": MplexNotation,
    "nerdbank": NerdbankNotation,
    "omnistreams": OmnistreamsNotation,
    "streamux": StreamuxNotation,
    "minmux": MinmuxNotation,
    "yamux": YamuxNotation,
}
