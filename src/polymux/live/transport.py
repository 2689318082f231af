"""A connection as sessions use it, and what a connection calls: structural types.

asyncio's transports and protocols have these methods, and doors without them have their own.
"""

from typing import Any, Protocol


class ConnectionInfo(Protocol):
    """Something that can describe a connection."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known by this name, such as `socket`, `peername` or `ssl_object`."""


class Transport(ConnectionInfo, Protocol):
    """A connection with a buffer for what is written and not sent.

    It calls `pause_writing` of its `ByteHandler` when more is buffered than
    `set_write_buffer_limits` allows, and `resume_writing` when the buffer has drained.
    """

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        """Send bytes, or buffer them. Nothing is written any more after `close` or `abort`."""

    def can_write_eof(self) -> bool:
        """Whether this side can end its direction and go on reading."""

    def write_eof(self) -> None:
        """End this side's direction after what is buffered."""

    def close(self) -> None:
        """Close the connection after what is buffered; nothing is read any more."""

    def abort(self) -> None:
        """Close the connection at once."""

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""

    def is_reading(self) -> bool:
        """Whether it reads."""

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read again."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are buffered."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes at which `pause_writing` and `resume_writing` are called."""

    def get_protocol(self) -> Any:
        """Return the `ByteHandler`."""

    def set_protocol(self, protocol: Any, /) -> None:
        """Let another `ByteHandler` go on with the connection."""


class ByteHandler(Protocol):
    """What a transport calls: a session, or what comes before it on a connection."""

    def connection_made(self, transport: Any, /) -> None:
        """The connection was made. Called once."""

    def data_received(self, data: bytes, /) -> None:
        """Bytes were received."""

    def eof_received(self) -> bool | None:
        """The peer has ended its direction. If false is returned, the transport closes itself."""

    def connection_lost(self, error: Exception | None, /) -> None:
        """The connection is gone; with an error if it was not closed in order. Called once."""

    def pause_writing(self) -> None:
        """Too much is buffered."""

    def resume_writing(self) -> None:
        """The buffer has drained."""
