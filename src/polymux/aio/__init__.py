"""Live sessions on asyncio: connect, serve, sessions and streams over real transports.

Interpreted code here runs once a chunk, never once a frame: the compiled core fills each stream's
lane, and each waiting reader is woken once. Imports `protocols` and `core`.
"""

from .adaptors import as_asyncio_streams
from .connect import Connecting, Unreachable, connect
from .duplex import Stream
from .exchanges import Call, Exchange
from .failures import SessionLimit
from .item_receiver import ItemReceiver
from .items import ItemSender
from .memory import pipe
from .messages import Receiver, Sender
from .minmux import MinmuxSession
from .nerdbank import NerdbankSession
from .omnistreams import OmnistreamsSession
from .pending import Pending
from .server import Server, serve
from .session import Session
from .streamux import StreamuxSession
from .typed import minmux, mplex, nerdbank, omnistreams, streamux
from .urls import BadUrl

__all__ = [
    "BadUrl", "Call", "Connecting", "Exchange", "ItemReceiver", "ItemSender", "MinmuxSession",
    "NerdbankSession", "OmnistreamsSession", "Pending", "Receiver", "Sender", "Server",
    "Session", "SessionLimit", "Stream", "StreamuxSession", "Unreachable", "as_asyncio_streams",
    "connect", "minmux", "mplex", "nerdbank", "omnistreams", "pipe", "serve", "streamux",
]  # fmt: skip
