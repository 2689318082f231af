"""Live sessions on asyncio and trio: `connect`, `serve`, and sessions and streams as anyio's.

The names and arguments are those of `polymux`. `connect`, `serve` and `pipe` are asynchronous
context managers: nothing of them outlives their block. Streams of bytes are byte streams of anyio.
"""

from polymux.core.errors import MissingExtra

try:
    import anyio  # noqa: F401
except ImportError:
    raise MissingExtra("anyio", "polymux.anyio") from None

from polymux.anyio.connect import connect, pipe
from polymux.anyio.server import Server, serve
from polymux.anyio.sessions import (
    MinmuxSession,
    NerdbankSession,
    OmnistreamsSession,
    Session,
    StreamuxSession,
    YamuxSession,
)
from polymux.anyio.streams import (
    AnyStream,
    Call,
    Exchange,
    ItemReceiver,
    ItemSender,
    MessageReceiver,
    MessageSender,
    Stream,
)

__all__ = [
    "AnyStream",
    "Call",
    "Exchange",
    "ItemReceiver",
    "ItemSender",
    "MessageReceiver",
    "MessageSender",
    "MinmuxSession",
    "NerdbankSession",
    "OmnistreamsSession",
    "Server",
    "Session",
    "Stream",
    "StreamuxSession",
    "YamuxSession",
    "connect",
    "pipe",
    "serve",
]
