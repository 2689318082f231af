"""Work on every stream the peer opens, each in a task of its own."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..core.errors import PolymuxError, SessionClosed
from .belonging import Belonging
from .duplex import Stream
from .failures import again

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger("polymux.aio")

Work = Callable[[Any], Awaitable[None]]


class Each(Belonging["Session"]):
    """Starts the work as soon as a stream comes; who finds too much under way waits in line."""

    def __init__(self, session: "Session", work: Work, at_once: int) -> None:
        super().__init__(session)
        self._work = work
        self._free = at_once
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Until the session ends and the work on its streams is done."""
        session = self.session
        if session._each is not None:
            raise RuntimeError(f"{session}: somebody else works on its streams")
        async with self._tasks:
            session._each = self
            try:
                self._take()
                with contextlib.suppress(SessionClosed):  # told below, and not as one of a group
                    await session._arrivals.ended()
            finally:
                session._each = None
        if session.failure is not None:
            raise again(session.failure)

    def start(self, stream: Stream) -> bool:
        """Begin to work on a stream that has come; False if it has to wait."""
        if self._free <= 0:
            return False
        self._free -= 1
        self._tasks.create_task(self._see_to(stream)).add_done_callback(self._done)
        return True

    def _done(self, _: asyncio.Task[None]) -> None:
        self._free += 1
        self._take()

    def _take(self) -> None:
        """Begin with those in line, as far as there is room."""
        session = self._session()
        while self._free > 0 and session is not None and session._each is self:
            stream = session._arrivals.take_nowait()
            if stream is None:
                return
            self.start(stream)

    async def _see_to(self, stream: Stream) -> None:
        try:
            async with stream:
                if stream.usable:  # the peer may have given it up already
                    self.session._take_in(stream)
                    await self._work(stream)
        except PolymuxError as problem:
            log.debug("%s: %s", stream, problem)
        except Exception:
            log.exception("the work on %s failed", stream)
