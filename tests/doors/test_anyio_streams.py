"""The streams of `polymux.anyio` are streams of anyio: its own wrappers, trio's own checks."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import ByteStream, ObjectReceiveStream, ObjectSendStream
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.stapled import StapledByteStream
from anyio.streams.text import TextReceiveStream, TextSendStream
from anyio.streams.tls import TLSStream
from tests.doors.test_scopes import opened
from tests.record.certificate_authority import Authority

import polymux
import polymux.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextlib.asynccontextmanager
async def stream_pair(protocol: str) -> AsyncIterator[tuple[Any, Any]]:
    async with polymux.anyio.pipe(protocol) as sessions:
        yield await opened(*sessions)


@pytest.mark.anyio
async def test_a_byte_stream_ends_and_is_cut_as_those_of_anyio_are() -> None:
    async with stream_pair("mplex") as (mine, theirs):
        assert isinstance(mine, ByteStream)
        await mine.send(b"abcdef")
        await mine.send_eof()
        assert await theirs.receive(4) == b"abcd"
        assert await theirs.receive() == b"ef"
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await theirs.receive()
        for size in (0, -1):
            with pytest.raises(ValueError, match="1 or more"):
                await theirs.receive(size)
        async with theirs:
            await theirs.send(b"answer")
        assert b"".join([chunk async for chunk in mine]) == b"answer"


@pytest.mark.anyio
async def test_messages_are_objects_of_anyio() -> None:
    async with stream_pair("omnistreams") as (sender, receiver):
        assert isinstance(sender, ObjectSendStream)
        assert isinstance(receiver, ObjectReceiveStream)
        assert not isinstance(receiver, ByteStream)
        for message in (b"one", b"", b"three"):
            await sender.send(message)
        await sender.aclose()
        assert [await receiver.receive() for _ in range(2)] == [b"one", b""]
        assert [message async for message in receiver] == [b"three"]
        with pytest.raises(anyio.EndOfStream):
            await receiver.receive()


@pytest.mark.anyio
async def test_text_and_lines_are_read_through_the_wrappers_of_anyio() -> None:
    async with stream_pair("yamux") as (mine, theirs):
        text = TextSendStream(mine)
        await text.send("naïve\r\n")
        await text.send("rest")
        await mine.end()
        buffered = BufferedByteReceiveStream(theirs)
        assert await buffered.receive_until(b"\r\n", 100) == "naïve".encode()
        assert await buffered.receive_exactly(2) == b"re"
        assert await TextReceiveStream(buffered).receive() == "st"
        with pytest.raises(anyio.IncompleteRead):
            await buffered.receive_exactly(1)


@pytest.mark.anyio
async def test_messages_are_cut_into_lines_by_the_wrapper_of_anyio() -> None:
    async with stream_pair("omnistreams") as (sender, receiver):
        await sender.send(b"first li")
        await sender.send(b"ne\nsecond line\n")
        await sender.aclose()
        buffered = BufferedByteReceiveStream(receiver)
        assert await buffered.receive_until(b"\n", 100) == b"first line"
        assert await buffered.receive_exactly(6) == b"second"


@pytest.mark.anyio
async def test_tls_runs_over_a_stream(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(authority.cert, authority.key)
    calling = ssl.create_default_context(cafile=authority.ca)
    data = bytes(range(256)) * 4000

    async def answer(theirs: Any) -> None:
        async with await TLSStream.wrap(theirs, server_side=True, ssl_context=serving) as secure:
            received = b""
            while len(received) < len(data):
                received += await secure.receive()
            await secure.send(received[::-1])

    async with polymux.anyio.pipe("nerdbank") as (near, far):
        mine, theirs = await opened(near, far)
        async with anyio.create_task_group() as group:
            group.start_soon(answer, theirs)
            secure = await TLSStream.wrap(mine, hostname="localhost", ssl_context=calling)
            await secure.send(data)
            reply = b""
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    reply += await secure.receive()
            await secure.aclose()
            assert reply == data[::-1]


@pytest.mark.anyio
async def test_two_streams_are_stapled_to_one() -> None:
    async with polymux.anyio.pipe("mplex") as (near, far):
        there, at_far = await opened(near, far, "there")
        back, at_near = await opened(far, near, "back")
        stapled = StapledByteStream(there, at_near)
        await stapled.send(b"question")
        assert await at_far.receive() == b"question"
        await back.send(b"answer")
        assert await stapled.receive() == b"answer"


async def send_until_refused(stream: polymux.anyio.Stream) -> None:
    """That a peer reads no more may be heard after its end."""
    while True:
        await stream.send(b"x")
        await anyio.sleep(0)


@pytest.mark.anyio
async def test_errors_are_those_of_polymux_and_of_anyio() -> None:
    async with polymux.anyio.pipe("nerdbank") as (near, far):
        mine, theirs = await opened(near, far, "one")
        await mine.send(b"x")
        theirs.abort("enough")
        with pytest.raises(polymux.StreamAborted, match="enough") as aborted:
            await mine.receive_all()
        assert isinstance(aborted.value, anyio.BrokenResourceError)

        mine, theirs = await opened(near, far, "two")
        await mine.end()
        with pytest.raises(polymux.StreamEnded, match="has ended on this side") as ended:
            mine.send_nowait(b"x")
        assert isinstance(ended.value, anyio.ClosedResourceError)
        await mine.close()
        with pytest.raises(anyio.EndOfStream):  # the end comes before
            await theirs.receive()
        with pytest.raises(anyio.BrokenResourceError, match="the peer reads no more"):
            await send_until_refused(theirs)

        far.abort("this is the end")
        with pytest.raises(polymux.SessionClosed) as closed:
            await near.accept()
        assert isinstance(closed.value, anyio.BrokenResourceError)


@pytest.mark.anyio
@pytest.mark.parametrize("protocol", ["mplex", "nerdbank", "yamux", "omnistreams"])
async def test_what_this_side_has_ended_is_closed_and_what_the_peer_has_is_broken(
    protocol: str,
) -> None:
    async with polymux.anyio.pipe(protocol) as (near, far):
        for reason in ("", "a reason"):
            mine, theirs = await opened(near, far)
            mine.abort(reason)
            with pytest.raises(anyio.ClosedResourceError):
                await mine.send(b"x")
            with pytest.raises(anyio.BrokenResourceError):
                await theirs.receive()
        _, theirs = await opened(near, far)
        await near.close()
        with pytest.raises(anyio.ClosedResourceError):
            await near.open("x")
        with pytest.raises(anyio.ClosedResourceError):
            await near.accept()
        with pytest.raises(anyio.BrokenResourceError):
            await far.accept()
        with pytest.raises(anyio.BrokenResourceError):
            await theirs.receive()

    async with polymux.anyio.pipe(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        near.abort()
        with pytest.raises(anyio.ClosedResourceError):
            await mine.send(b"x")
        with pytest.raises(anyio.BrokenResourceError):
            await theirs.receive()


@pytest.mark.anyio
async def test_a_peer_that_breaks_the_protocol_is_named_as_such() -> None:
    async def misbehave(stream: Any) -> None:
        await stream.send(b"\xff" * 100)
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.receive()
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, misbehave)
        url = f"tcp://127.0.0.1:{port}"
        async with polymux.anyio.connect(url, protocol="mplex") as session:
            with pytest.raises(polymux.PeerViolation) as violation:
                await session.accept()
            assert isinstance(violation.value, anyio.BrokenResourceError)
        group.cancel_scope.cancel()


class TrioStream(trio.abc.HalfCloseableStream):
    """A stream with the names of trio, and its rule that one task may send at a time."""

    def __init__(self, stream: polymux.anyio.Stream) -> None:
        self.stream = stream
        self.closed = False
        self.sending = False

    @contextlib.contextmanager
    def as_trio_raises(self, *, sending: bool) -> Iterator[None]:
        if sending and self.sending:
            raise trio.BusyResourceError("another task sends")
        self.sending |= sending
        try:
            yield
        except anyio.BusyResourceError as problem:
            raise trio.BusyResourceError(str(problem)) from problem
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as problem:
            # A stream of polymux raises the first reason, also after it was closed.
            if self.closed or isinstance(problem, anyio.ClosedResourceError):
                raise trio.ClosedResourceError(str(problem)) from problem
            raise trio.BrokenResourceError(str(problem)) from problem
        finally:
            self.sending &= not sending

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self.as_trio_raises(sending=True):
            await self.stream.send(data)

    async def wait_send_all_might_not_block(self) -> None:
        with self.as_trio_raises(sending=True):
            await self.stream.drain()
            self.stream.send_nowait(b"")

    async def send_eof(self) -> None:
        with self.as_trio_raises(sending=True):
            await self.stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        with self.as_trio_raises(sending=False):
            try:
                return await self.stream.receive(65536 if max_bytes is None else max_bytes)
            except anyio.EndOfStream:
                return b""

    async def aclose(self) -> None:
        self.closed = True
        await self.stream.aclose()


def test_streams_pass_the_checks_of_trio() -> None:
    async def check() -> None:
        limits = polymux.Limits(receive_window=1000)
        async with polymux.anyio.pipe("nerdbank", limits=limits) as (near, far):

            async def make() -> tuple[TrioStream, TrioStream]:
                mine, theirs = await opened(near, far)
                return TrioStream(mine), TrioStream(theirs)

            async def make_clogged() -> tuple[TrioStream, TrioStream]:
                mine, theirs = await make()
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        for clogged in (mine, theirs):
                            for _ in range(2):  # the second waits, and is cancelled
                                nursery.start_soon(clogged.stream.send, bytes(5000))
                        await trio.testing.wait_all_tasks_blocked()
                        scope.cancel()
                return mine, theirs

            await trio.testing.check_half_closeable_stream(make, make_clogged)

    trio.run(check)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handler_that_ends_the_program_ends_it(backend: str) -> None:
    async def handle(session: Any) -> None:
        raise SystemExit("on purpose")

    async def main() -> None:
        async with polymux.anyio.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
            async with polymux.anyio.connect(server.url, protocol="mplex"):
                await anyio.sleep_forever()

    with pytest.raises((SystemExit, BaseExceptionGroup)):
        anyio.run(main, backend=backend)


def test_an_interrupted_call_on_trio_leaves_the_session_in_order() -> None:
    async def main() -> None:
        async with polymux.anyio.pipe("mplex") as (near, far):
            mine, theirs = await opened(near, far)
            interrupting = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))

            async def interrupt_when_all_wait() -> None:
                await trio.testing.wait_all_tasks_blocked(0.05)
                trio.lowlevel.current_trio_token().run_sync_soon(interrupting.start)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(interrupt_when_all_wait)
                with pytest.raises(KeyboardInterrupt):
                    await mine.receive()
            interrupting.join()
            await theirs.send(b"x")
            assert await mine.receive() == b"x"

    trio.run(main)


class Interrupting(logging.Handler):
    """Interrupts the program in the middle of what is logged first."""

    interrupted = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.interrupted:
            self.interrupted = True
            signal.raise_signal(signal.SIGINT)


def test_an_interruption_on_trio_comes_after_a_call_that_does_not_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with polymux.anyio.pipe("mplex") as (near, far):
            near.abort("on purpose")
            with pytest.raises(KeyboardInterrupt):
                await trio.lowlevel.checkpoint()
            await far.wait_closed()
            await near.wait_closed()

    logger, handler = logging.getLogger("polymux.aio"), Interrupting()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "polymux.aio"):
            trio.run(main)
    finally:
        logger.removeHandler(handler)


CHILD = """
import asyncio, polymux
async def echo(session):
    async for stream in session.incoming:
        await stream.send(await stream.receive_all())
        await stream.end()
async def main():
    async with polymux.serve(echo, "stdio:", protocol="mplex") as server:
        await server.wait_closed()
asyncio.run(main())
"""


@pytest.mark.anyio
async def test_children_and_standard_streams_need_asyncio(
    anyio_backend: str, tmp_path: Path
) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    child = polymux.anyio.connect(f"exec:{sys.executable} {tmp_path}/child.py", protocol="mplex")
    if anyio_backend == "asyncio":
        async with child as session, session.open("x") as stream:
            await stream.send(b"hello")
            await stream.end()
            assert await stream.receive_all() == b"hello"
        return
    with pytest.raises(polymux.Unsupported, match=r"use polymux\.connect"):
        async with child:
            pass
    with pytest.raises(polymux.Unsupported, match=r"use polymux\.serve"):
        async with polymux.anyio.serve(lambda session: session.close(), "stdio:", protocol="mplex"):
            pass


def test_without_anyio_the_error_names_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['anyio'] = None\n"
        "import polymux\n"
        "try: import polymux.anyio\n"
        "except polymux.MissingExtra as missing: print(missing)\n"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert b"pip install 'polymux[anyio]'" in output.stdout
