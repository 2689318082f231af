"""Live sessions on asyncio: connect, serve, sessions and streams over real transports.

Interpreted code here runs once for each received chunk, never once for each frame: the compiled
core fills the buffers of the streams, and each waiting reader task is woken once. This package
imports `protocols`, `core` and `malloc`.
"""

from polymux.aio.connect import Connecting, Unreachable, connect
from polymux.aio.entry_points import minmux, mplex, nerdbank, omnistreams, streamux, yamux
from polymux.aio.errors import SessionLimit
from polymux.aio.peer_identity import PeerIdentity
from polymux.aio.pending import Pending
from polymux.aio.protocols.minmux import MinmuxSession
from polymux.aio.protocols.nerdbank import NerdbankSession
from polymux.aio.protocols.omnistreams import OmnistreamsSession
from polymux.aio.protocols.streamux import StreamuxSession
from polymux.aio.protocols.yamux import YamuxSession
from polymux.aio.server import Server, serve
from polymux.aio.session.session import Session
from polymux.aio.streams.asyncio_adapter import as_asyncio_streams
from polymux.aio.streams.duplex import Stream
from polymux.aio.streams.exchanges import Call, Exchange
from polymux.aio.streams.items import ItemReceiver, ItemSender
from polymux.aio.streams.messages import MessageReceiver, MessageSender
from polymux.aio.transports.memory import pipe
from polymux.aio.urls import BadUrl

__all__ = [
    "BadUrl",
    "Call",
    "Connecting",
    "Exchange",
    "ItemReceiver",
    "ItemSender",
    "MessageReceiver",
    "MessageSender",
    "MinmuxSession",
    "NerdbankSession",
    "OmnistreamsSession",
    "PeerIdentity",
    "Pending",
    "Server",
    "Session",
    "SessionLimit",
    "Stream",
    "StreamuxSession",
    "Unreachable",
    "YamuxSession",
    "as_asyncio_streams",
    "connect",
    "minmux",
    "mplex",
    "nerdbank",
    "omnistreams",
    "pipe",
    "serve",
    "streamux",
    "yamux",
]
