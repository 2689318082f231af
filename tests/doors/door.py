"""The doors to live sessions behind one blocking face, so that one battery runs through all.

A test is written once, with blocking calls. `AsyncioDoor` runs the same calls of `polymux` on an
event loop of asyncio or uvloop in a thread; `ThreadsDoor` makes them directly. Another door is one
more class with `connect`, `serve` and `pipe`, whose sessions and streams block.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import polymux
import polymux.sync

WAIT_SECONDS = 30.0


class Door(Protocol):
    """One way to use live sessions, with the names of `polymux.sync`."""

    def connect(self, url: str, **options: Any) -> Any:
        """Open a session."""

    def serve(self, handler: Callable[[Any], object], url: str, **options: Any) -> Any:
        """Start a server whose handlers are blocking functions."""

    def pipe(self, protocol: str, **options: Any) -> tuple[Any, Any]:
        """Two sessions of this process."""


class ThreadsDoor:
    """`polymux.sync`."""

    def connect(self, url: str, **options: Any) -> Any:
        return polymux.sync.connect(url, **options)

    def serve(self, handler: Callable[[Any], object], url: str, **options: Any) -> Any:
        return polymux.sync.serve(handler, url, **options)

    def pipe(self, protocol: str, **options: Any) -> tuple[Any, Any]:
        return polymux.sync.pipe(protocol, **options)


class AsyncHandle:
    """A session, stream or server of `polymux`, with calls that block until its loop is done."""

    def __init__(self, door: AsyncioDoor, live: Any) -> None:
        self._door = door
        self._live = live

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._live, name)
        if not callable(found):
            return self._door.wrap(found)

        def call(*arguments: Any, **options: Any) -> Any:
            # `request` has a timeout of its own.
            timeout = None if name == "request" else options.pop("timeout", None)
            return self._door.run(lambda: found(*arguments, **options), timeout)

        return call

    def serve_streams(self, handler: Callable[[Any], object], **options: Any) -> None:
        timeout = options.pop("timeout", None)
        served = self._door.handler(handler)
        self._door.run(lambda: self._live.serve_streams(served, **options), timeout)

    @property
    def incoming(self) -> Iterator[Any]:
        while True:
            try:
                yield self.accept()
            except polymux.SessionClosed:
                if self._live.failure is not None:
                    raise
                return

    def recv_into(self, buffer: bytearray) -> int:
        data: bytes = self.receive()
        buffer[: len(data)] = data
        return len(data)

    def __iter__(self) -> AsyncHandle:
        return self

    def __next__(self) -> Any:
        try:
            return self._door.run(self._live.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> AsyncHandle:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._door.run(lambda: self._live.__aexit__(kind, error, trace))


class AsyncioDoor:
    """`polymux` on an event loop in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, begin: Callable[[], Any], timeout: float | None = None) -> Any:
        """Call in the loop, and wait for the result there."""

        async def call() -> Any:
            async with asyncio.timeout(timeout):
                result = begin()
                return await result if inspect.isawaitable(result) else result

        done = asyncio.run_coroutine_threadsafe(call(), self._loop)
        return self.wrap(done.result(WAIT_SECONDS))

    def wrap(self, value: Any) -> Any:
        kinds = (polymux.Session, polymux.Stream, polymux.Server)
        return AsyncHandle(self, value) if isinstance(value, kinds) else value

    def handler(
        self, function: Callable[[Any], object]
    ) -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def handle(live: Any) -> None:
            await asyncio.to_thread(function, AsyncHandle(self, live))

        return handle

    def connect(self, url: str, **options: Any) -> Any:
        return self.run(lambda: polymux.connect(url, **options))

    def serve(self, handler: Callable[[Any], object], url: str, **options: Any) -> Any:
        return self.run(lambda: polymux.serve(self.handler(handler), url, **options))

    def pipe(self, protocol: str, **options: Any) -> tuple[Any, Any]:
        near, far = self.run(lambda: polymux.pipe(protocol, **options))
        return self.wrap(near), self.wrap(far)


@contextlib.contextmanager
def open_door(name: str) -> Iterator[Door]:
    """Open a door: `threads`, `asyncio` or `uvloop`."""
    if name == "threads":
        yield ThreadsDoor()
        return
    loop: asyncio.AbstractEventLoop = importlib.import_module(name).new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(64))
    thread = threading.Thread(target=loop.run_forever, name=name)
    thread.start()
    try:
        yield AsyncioDoor(loop)
    finally:
        asyncio.run_coroutine_threadsafe(finish(), loop).result(WAIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def finish() -> None:
    """Let what is ending end, and the threads of the loop too."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)
    await asyncio.get_running_loop().shutdown_default_executor()
