"""Two pipes, one in and one out, as the one transport a session wants."""

import asyncio
from typing import Any

from polymux.aio.session.session import Session


class PipePairTransport(asyncio.Transport):
    """Writes into one pipe, reads from another. Its session loses it once both are gone."""

    def __init__(self, session: Session, reader: Any, writer: Any) -> None:
        super().__init__()
        self._session = session
        self._reader = reader
        self._writer = writer
        self._closing = False
        self._lost = False
        self._eof_received = False
        self.error: Exception | None = None

    # --- for the session

    def write(self, data: Any) -> None:
        if not self._writer.is_closing():  # asyncio's pipe would complain in the log
            self._writer.write(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._writer.close()  # what it holds still leaves

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._writer.close()
            self._reader.close()

    def abort(self) -> None:
        self._closing = True
        # One that is closing with nothing to write is gone, or about to be: asyncio's pipes cannot
        # be told twice.
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
        if not self._writer.is_closing():  # uvloop's cannot be asked then
            self._writer.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return int(self._writer.get_write_buffer_size())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # --- for the pipes

    def on_input_eof(self) -> None:
        """The pipe we read has ended."""
        if self._closing or self._eof_received:
            return
        self._eof_received = True
        if not self._session.eof_received():
            self.close()

    def on_output_lost(self, error: Exception | None) -> None:
        """The pipe we write is gone; with an error, because nobody reads it."""
        if error is not None and not self._closing:
            self.error = error
            self.abort()

    def on_pipes_closed(self) -> None:
        """Everything is gone."""
        if not self._lost:
            self._lost = self._closing = True
            self._session.connection_lost(self.error)
