"""polymux: speak, record and analyse stream-multiplexing protocols.

async with polymux.connect("tcp://127.0.0.1:9000", protocol="mplex") as session:
    async with session.open("logs") as stream:
        await stream.send(b"hello")
"""

from typing import TYPE_CHECKING

from polymux.lazy_names import lazy_names

if TYPE_CHECKING:
    from polymux.aio import (
        BadUrl,
        Call,
        Exchange,
        ItemReceiver,
        ItemSender,
        MessageReceiver,
        MessageSender,
        MinmuxSession,
        NerdbankSession,
        OmnistreamsSession,
        PeerIdentity,
        Pending,
        Server,
        Session,
        SessionLimit,
        Stream,
        StreamuxSession,
        Unreachable,
        YamuxSession,
        as_asyncio_streams,
        connect,
        minmux,
        mplex,
        nerdbank,
        omnistreams,
        pipe,
        serve,
        streamux,
        yamux,
    )
    from polymux.core.endpoint import Endpoint
    from polymux.core.errors import (
        CaptureError,
        LimitExceeded,
        LocalProtocolError,
        MissingExtra,
        NoFreeIds,
        PeerViolation,
        PolymuxError,
        SessionClosed,
        StreamAborted,
        StreamEnded,
        Unsupported,
    )
    from polymux.core.limits import Limits, Timeouts
    from polymux.core.observer import Observer
    from polymux.core.side import Side, Vantage
    from polymux.protocols.registry import BadProtocolString
    from polymux.protocols.registry import create as protocol

__version__ = "0.1.0"

__all__ = [
    "BadProtocolString",
    "BadUrl",
    "Call",
    "CaptureError",
    "Endpoint",
    "Exchange",
    "ItemReceiver",
    "ItemSender",
    "LimitExceeded",
    "Limits",
    "LocalProtocolError",
    "MessageReceiver",
    "MessageSender",
    "MinmuxSession",
    "MissingExtra",
    "NerdbankSession",
    "NoFreeIds",
    "Observer",
    "OmnistreamsSession",
    "PeerIdentity",
    "PeerViolation",
    "Pending",
    "PolymuxError",
    "Server",
    "Session",
    "SessionClosed",
    "SessionLimit",
    "Side",
    "Stream",
    "StreamAborted",
    "StreamEnded",
    "StreamuxSession",
    "Timeouts",
    "Unreachable",
    "Unsupported",
    "Vantage",
    "YamuxSession",
    "as_asyncio_streams",
    "connect",
    "minmux",
    "mplex",
    "nerdbank",
    "omnistreams",
    "pipe",
    "protocol",
    "serve",
    "streamux",
    "yamux",
]  # fmt: skip

_FROM_CORE = {
    "Endpoint": "endpoint", "Limits": "limits", "Observer": "observer", "Side": "side",
    "Timeouts": "limits", "Vantage": "side",
    **dict.fromkeys(
        (
            "CaptureError", "LimitExceeded", "LocalProtocolError", "MissingExtra", "NoFreeIds",
            "PeerViolation", "PolymuxError", "SessionClosed", "StreamAborted", "StreamEnded",
            "Unsupported",
        ),
        "errors",
    ),
}  # fmt: skip
_SUBPACKAGES = ("aio", "core", "live", "malloc", "protocols", "sync", "text")

if not TYPE_CHECKING:  # a type checker must go on reporting names that are not there
    # Sessions need asyncio, and most commands and every Spark task need no session.
    __getattr__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(__all__, "polymux.aio"),
            **{name: f"polymux.core.{module}" for name, module in _FROM_CORE.items()},
            "BadProtocolString": "polymux.protocols.registry",
            "protocol": "polymux.protocols.registry:create",
            **{name: f"polymux.{name}" for name in _SUBPACKAGES},
        },
    )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
