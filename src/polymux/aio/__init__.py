"""Live sessions on asyncio: connect, serve, sessions and streams over real transports.

Interpreted code here runs once a chunk, never once a frame: the compiled core fills each stream's
lane, and each waiting reader is woken once. Imports `protocols` and `core`.
"""

from .adaptors import as_asyncio_streams
from .connect import Connecting, Unreachable, connect
from .duplex import Stream
from .failures import SessionLimit
from .memory import pipe
from .nerdbank import NerdbankSession
from .server import Server, serve
from .session import Session
from .urls import BadUrl

__all__ = [
    "BadUrl", "Connecting", "NerdbankSession", "Server", "Session", "SessionLimit", "Stream",
    "Unreachable", "as_asyncio_streams", "connect", "pipe", "serve",
]  # fmt: skip
