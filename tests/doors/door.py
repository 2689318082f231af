"""The doors to live sessions behind one blocking face, so that one battery runs through all.

A test is written once, with blocking calls. `ThreadsDoor` makes them directly. `AsyncioDoor` runs
the same calls of `polymux` on an event loop of asyncio or uvloop in a thread, and `AnyioDoor` those
of `polymux.anyio` on one of asyncio or trio.
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

import anyio
import anyio.abc
from anyio.from_thread import BlockingPortal, start_blocking_portal

import polymux
import polymux.anyio
import polymux.sync

DOORS = ["threads", "asyncio", "uvloop", "trio", "anyio-asyncio"]
ANYIO_BACKENDS = {"trio": "trio", "anyio-asyncio": "asyncio"}
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
    """A session, stream or server of a door to an event loop, with calls that block."""

    def __init__(self, door: LoopDoor, live: Any) -> None:
        self._door = door
        self._live = live

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._live, name)
        if not callable(found):
            return self._door.wrap(found)

        def call(*arguments: Any, **options: Any) -> Any:
            # `request` has a timeout of its own.
            timeout = None if name == "request" else options.pop("timeout", None)
            given = [each._live if isinstance(each, AsyncHandle) else each for each in arguments]
            return self._door.run(lambda: found(*given, **options), timeout)

        return call

    def receive(self, *, timeout: float | None = None) -> Any:
        try:
            return self._door.run(self._live.receive, timeout)
        except anyio.EndOfStream:
            if isinstance(self._live, anyio.abc.ByteStream):
                return b""
            raise polymux.StreamEnded("there are no more messages") from None

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


class LoopDoor:
    """A door to an event loop in a thread. Handlers have threads of their own."""

    kinds: tuple[type, ...]  # of what has to be wrapped

    def run(self, begin: Callable[[], Any], timeout: float | None = None) -> Any:
        """Call in the loop, and wait for the result there."""
        raise NotImplementedError

    async def in_thread(self, function: Callable[[Any], object], argument: Any) -> None:
        """Call a function in a thread. If that is cancelled, the thread is left behind."""
        raise NotImplementedError

    def wrap(self, value: Any) -> Any:
        return AsyncHandle(self, value) if isinstance(value, self.kinds) else value

    def handler(
        self, function: Callable[[Any], object]
    ) -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def handle(live: Any) -> None:
            await self.in_thread(function, AsyncHandle(self, live))

        return handle


class AsyncioDoor(LoopDoor):
    """`polymux` on an event loop in a thread."""

    kinds = (polymux.Session, polymux.Stream, polymux.Server)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, begin: Callable[[], Any], timeout: float | None = None) -> Any:
        async def call() -> Any:
            async with asyncio.timeout(timeout):
                result = begin()
                return await result if inspect.isawaitable(result) else result

        done = asyncio.run_coroutine_threadsafe(call(), self._loop)
        return self.wrap(done.result(WAIT_SECONDS))

    async def in_thread(self, function: Callable[[Any], object], argument: Any) -> None:
        await asyncio.to_thread(function, argument)

    def connect(self, url: str, **options: Any) -> Any:
        return self.run(lambda: polymux.connect(url, **options))

    def serve(self, handler: Callable[[Any], object], url: str, **options: Any) -> Any:
        return self.run(lambda: polymux.serve(self.handler(handler), url, **options))

    def pipe(self, protocol: str, **options: Any) -> tuple[Any, Any]:
        near, far = self.run(lambda: polymux.pipe(protocol, **options))
        return self.wrap(near), self.wrap(far)


class AnyioDoor(LoopDoor):
    """`polymux.anyio` on an event loop in a thread. All contexts are left with the door."""

    kinds = (polymux.anyio.Session, polymux.anyio.AnyStream, polymux.anyio.Server)

    def __init__(self, portal: BlockingPortal, contexts: contextlib.ExitStack) -> None:
        self._portal = portal
        self._contexts = contexts
        self._threads = contexts.enter_context(ThreadPoolExecutor(64))

    def run(self, begin: Callable[[], Any], timeout: float | None = None) -> Any:
        async def call() -> Any:
            with anyio.fail_after(timeout):
                result = begin()
                return await result if inspect.isawaitable(result) else result

        return self.wrap(self._portal.start_task_soon(call).result(WAIT_SECONDS))

    async def in_thread(self, function: Callable[[Any], object], argument: Any) -> None:
        done = anyio.Event()
        running = self._threads.submit(function, argument)
        running.add_done_callback(lambda _: self._portal.start_task_soon(done.set))
        await done.wait()
        running.result()

    def enter(self, context: Any) -> Any:
        return self._contexts.enter_context(self._portal.wrap_async_context_manager(context))

    def connect(self, url: str, **options: Any) -> Any:
        return self.wrap(self.enter(polymux.anyio.connect(url, **options)))

    def serve(self, handler: Callable[[Any], object], url: str, **options: Any) -> Any:
        return self.wrap(self.enter(polymux.anyio.serve(self.handler(handler), url, **options)))

    def pipe(self, protocol: str, **options: Any) -> tuple[Any, Any]:
        near, far = self.enter(polymux.anyio.pipe(protocol, **options))
        return self.wrap(near), self.wrap(far)


@contextlib.contextmanager
def open_door(name: str) -> Iterator[Door]:
    """Open one of DOORS."""
    if name == "threads":
        yield ThreadsDoor()
    elif name in ANYIO_BACKENDS:
        with start_blocking_portal(ANYIO_BACKENDS[name]) as portal:
            with contextlib.ExitStack() as contexts:
                yield AnyioDoor(portal, contexts)
    else:
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
