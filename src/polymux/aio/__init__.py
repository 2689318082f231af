"""Live sessions on asyncio: connect, serve, sessions and streams over real transports.

Interpreted code here runs once for each received chunk, never once for each frame: the compiled
core fills the buffers of the streams, and each waiting reader task is woken once. This package
imports `protocols`, `core` and `malloc`.
"""

from polymux.aio.asyncio_adapter import as_asyncio_streams
from polymux.aio.connect import Connecting, Unreachable, connect
from polymux.aio.entry_points import minmux, mplex, nerdbank, omnistreams, streamux, yamux
from polymux.aio.server import Server, serve
from polymux.aio.transports.memory import pipe
from polymux.live.errors import SessionLimit
from polymux.live.peer_identity import PeerIdentity
from polymux.live.pending import Pending
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.protocols.streamux import StreamuxSession
from polymux.live.protocols.yamux import YamuxSession
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.live.streams.exchanges import Call, Exchange
from polymux.live.streams.items import ItemReceiver, ItemSender
from polymux.live.streams.messages import MessageReceiver, MessageSender
from polymux.live.urls import BadUrl

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
