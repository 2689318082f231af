"""`PipePairTransport`: one transport made of an input pipe and an output pipe."""

import asyncio
from typing import Any, cast

from polymux.live.session.session import Session


class PipePairTransport(asyncio.Transport):
    """Reads from one pipe and writes to another.

    The session gets `connection_lost` when both pipes are closed; the owner of the pipes calls
    `on_pipes_closed` then.
    """

    def __init__(self, session: Session, reader: Any, writer: Any) -> None:
        super().__init__()
        self._session = session
        self._reader = reader
        self._writer = writer
        self._closing = False
        self._lost = False
        self._eof_received = False
        self.error: Exception | None = None

    # Called by the session

    def write(self, data: Any) -> None:
        if not self._writer.is_closing():  # asyncio's pipe transport would log a warning
            self._writer.write(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._writer.close()  # buffered data is still written

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._writer.close()
            self._reader.close()

    def abort(self) -> None:
        self._closing = True
        # A pipe that is closing with an empty buffer is about to be closed, and asyncio's pipe
        # transport fails if it is aborted then.
        if not self._writer.is_closing() or self._writer.get_write_buffer_size() > 0:
            self._writer.abort()
        self._reader.close()

    def pause_reading(self) -> None:
        if not self._closing:
            self._reader.pause_reading()

    def resume_reading(self) -> None:
        if not self._closing:
            self._reader.resume_reading()

    def is_reading(self) -> bool:
        return not self._closing and bool(self._reader.is_reading())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if not self._writer.is_closing():  # fails on a closing pipe of uvloop
            self._writer.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return int(self._writer.get_write_buffer_size())

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._session)  # it has the methods of one

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # Called by the protocols of the pipes

    def on_input_eof(self) -> None:
        """The input pipe has ended."""
        if self._closing or self._eof_received:
            return
        self._eof_received = True
        if not self._session.eof_received():
            self.close()

    def on_output_lost(self, error: Exception | None) -> None:
        """The output pipe is closed; with an error if its reader has closed it."""
        if error is not None and not self._closing:
            self.error = error
            self.abort()

    def on_pipes_closed(self) -> None:
        """Both pipes are closed."""
        if not self._lost:
            self._lost = self._closing = True
            self._session.connection_lost(self.error)
