"""polymux: speak, record and analyse stream-multiplexing protocols.

async with polymux.connect("tcp://127.0.0.1:9000", protocol="mplex") as session:
    async with session.open("logs") as stream:
        await stream.send(b"hello")
"""

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
