"""`TunnelEnd`: the end of a tunnel's session, whose streams begin with a request and its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context

from polymux.core.errors import LimitExceeded, PolymuxError, SessionClosed
from polymux.live.log_limiter import LogLimiter
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.relay.channels import Channel, StreamChannel
from polymux.relay.ends import Arrival, ArrivalQueue, End
from polymux.relay.traits import Traits, traits_of
from polymux.relay.tunnel.requests import (
    LISTEN,
    MAX_LINE_BYTES,
    BadRequest,
    Request,
    ok_line,
    parse_answer,
    parse_name,
    parse_request,
    refused_line,
)
from polymux.relay.tunnel.targets import FAILED, TIMED_OUT, Target, TargetRefused

log = logging.getLogger("polymux.relay")

REQUEST_SECONDS = 10.0  # for the first line of a stream
ANSWER_SECONDS = 30.0  # for the other side to connect

ListenHandler = Callable[[Target, Stream], Awaitable[None]]
"""Serves a request to listen: answers it on the stream, and returns when that has ended."""


class RequestArrival(Arrival):
    """A stream with a request of the other side, answered when its connection is made or not."""

    def __init__(self, request: Request, stream: Stream, channel: Channel) -> None:
        super().__init__(channel, request.name)
        self._stream = stream
        self.connected = request.target

    def accept(self) -> None:
        with contextlib.suppress(PolymuxError):  # the pump finds out too
            self._stream.send_nowait(ok_line(self.connected))

    def refused(self, problem: PolymuxError) -> bool:
        self.channel.release()
        answer_refusal(self._stream, problem)
        return True


class TunnelEnd(End):
    """The end of a session that carries a tunnel.

    Args:
        session: The session; all its streams belong to the tunnel.
        verb: The request that the other side may make for a connection.
        log_limiter: Logs what is no such request.
        on_listen: Serves requests to listen; None refuses them.
    """

    traits: Traits

    def __init__(
        self,
        session: Session,
        verb: str,
        log_limiter: LogLimiter,
        on_listen: ListenHandler | None = None,
    ) -> None:
        self.session = session
        self.traits = traits_of(session)
        self._verb = verb
        self._log_limiter = log_limiter
        self._on_listen = on_listen
        self._arrivals = ArrivalQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: Context = copy_context()
        session.closed.add_done_callback(lambda _: self._arrivals.wake())

    def channel(self, stream: Stream) -> StreamChannel:
        """The channel of one of the session's streams."""
        return StreamChannel(stream, self.traits, self._context)

    # Streams of the other side

    async def relay_messages(self, far: End) -> None:
        """Read the requests of the streams that the other side opens."""
        try:
            with contextlib.suppress(SessionClosed):
                while True:
                    task = asyncio.ensure_future(self._read_request(await self.session.accept()))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            self._arrivals.wake()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read_request(self, stream: Stream) -> None:
        try:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    line = await stream.readline(MAX_LINE_BYTES)
            except TimeoutError:
                raise BadRequest(f"no request came within {REQUEST_SECONDS:g} s") from None
            request = parse_request(line)
            if request.verb == LISTEN and self._on_listen is not None:
                await self._on_listen(request.target, stream)
                return
            if request.verb != self._verb:
                raise TargetRefused(FAILED, f"this side does not serve {request.verb!r}")
        except (BadRequest, LimitExceeded, TargetRefused) as problem:
            self._log_limiter.warn("request", f"{self.session}: {problem}")
            answer_refusal(stream, problem)
        except PolymuxError as problem:
            log.debug("%s: %s", stream, problem)
        else:
            self._arrivals.put(RequestArrival(request, stream, self.channel(stream)))

    async def next_arrival(self) -> Arrival:
        return await self._arrivals.take(self.session.check_open)

    # Streams of this side

    async def open(self, name: bytes) -> Channel:
        stream, _ = await self.request(parse_name(name))
        return self.channel(stream)

    async def request(self, request: Request) -> tuple[Stream, Target]:
        """Open a stream with a request; return it and the address of the answer.

        Raises:
            TargetRefused: The other side refused, or did not answer in time.
            BadRequest: It is no tunnel.
            PolymuxError: The session has ended.
        """
        stream = await self.session.open(request.name if self.traits.names else b"")
        try:
            stream.send_nowait(request.line())
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    line = await stream.readline(MAX_LINE_BYTES)
            except TimeoutError:
                raise TargetRefused(
                    TIMED_OUT, f"{request.target}: no answer within {ANSWER_SECONDS:g} s"
                ) from None
            return stream, parse_answer(line)
        except TargetRefused:
            await stream.close()
            raise
        except BaseException:
            stream.abort()
            raise

    async def close(self) -> None:
        await self.session.close()

    def abort(self, reason: str) -> None:
        self.session.abort(reason)


def answer_refusal(stream: Stream, problem: PolymuxError) -> None:
    """Answer a request that is not met, and end the stream."""
    with contextlib.suppress(PolymuxError):
        stream.send_nowait(refused_line(problem))
        stream.end_nowait()
        stream.stop_reading()
