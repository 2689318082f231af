"""Live sessions with threads: `connect`, `serve`, and sessions and streams whose verbs block.

The names and arguments are those of `polymux`, without `await`, and with `timeout=` on every call
that can wait.
"""

from polymux.sync.connect import connect
from polymux.sync.server import Server, pipe, serve
from polymux.sync.sessions import (
    MinmuxSession,
    NerdbankSession,
    OmnistreamsSession,
    Session,
    StreamuxSession,
    YamuxSession,
)
from polymux.sync.streams import (
    Call,
    Exchange,
    ItemReceiver,
    ItemSender,
    MessageReceiver,
    MessageSender,
    Stream,
)

__all__ = [
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
