"""What only `polymux.sync` has: threads, forks, files, and its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import math
import os
import signal
import socket
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doors.door import ThreadsDoor
from tests.doors.test_battery import CALLS, connected, descriptors, joined, until

import polymux
import polymux.sync
from polymux.live.runtime import wait_done
from polymux.live.transports.sockets import wait_for_socket
from polymux.sync.runtime import ThreadRuntime

DOOR = ThreadsDoor()


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_of_earlier_tests() -> None:
    _before.clear()
    _before.update(threading.enumerate())


def own_threads() -> list[str]:
    new = set(threading.enumerate()) - _before
    return [each.name for each in new if each.name.startswith("polymux")]


def test_timers_run_while_a_thread_makes_calls_that_never_wait() -> None:
    """Such as one that sends and sends: no other thread is sure to lead meanwhile."""

    async def nothing() -> None:
        return

    runtime = ThreadRuntime("polymux test")
    runtime.add_user()
    ran: list[int] = []
    for number in range(10):
        runtime.do(runtime.call_later, number / 100, lambda: ran.append(threading.get_ident()))
    until_then = time.monotonic() + 5
    while len(ran) < 10 and time.monotonic() < until_then:
        runtime.call(nothing())
    runtime.do(runtime.remove_user)
    assert threading.get_ident() in ran, "the runtime's own thread gets to lead by chance only"


def test_many_threads_use_one_session_at_once() -> None:
    failures: list[BaseException] = []

    def work(session: polymux.sync.Session, number: int) -> None:
        try:
            with session.open(str(number)) as stream:
                for turn in range(20):
                    data = b"%d:%d" % (number, turn)
                    stream.send(data)
                    assert stream.readexactly(len(data), timeout=20) == data
        except BaseException as problem:
            failures.append(problem)

    def serve(session: polymux.sync.Session) -> None:
        def echo(stream: polymux.sync.Stream) -> None:
            for chunk in stream:
                stream.send(chunk)

        session.serve_streams(echo)

    with polymux.sync.serve(serve, "tcp://127.0.0.1:0", protocol="mplex") as server:
        with polymux.sync.connect(server.url, protocol="mplex") as session:
            workers = [threading.Thread(target=work, args=(session, n)) for n in range(24)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(60)
    assert not failures, failures
    until(lambda: not own_threads())


def test_a_call_that_waits_is_ended_by_another_thread_that_closes() -> None:
    near, far = polymux.sync.pipe("mplex")
    stream = near.open("name")
    found: list[BaseException] = []

    def wait() -> None:
        try:
            stream.receive()
        except polymux.PolymuxError as problem:
            found.append(problem)

    waiting = threading.Thread(target=wait)
    waiting.start()
    near.abort("enough")
    waiting.join(20)
    far.wait_closed(timeout=20)
    assert isinstance(found[0], polymux.SessionClosed)
    assert "enough" in str(found[0])
    until(lambda: not own_threads())


@pytest.mark.timeout(60)
def test_a_call_that_waits_ends_when_another_thread_makes_it_end() -> None:
    runtime = ThreadRuntime("a test")  # no timer and no other thread wakes the one that waits
    future = runtime.create_future()

    async def wait() -> object:
        return await future

    timer = threading.Timer(0.05, runtime.do, (future.set_result, "done"))
    timer.start()
    assert runtime.call(wait()) == "done"
    timer.join()
    runtime.do(runtime.add_user)
    runtime.do(runtime.remove_user)


def test_the_peer_is_answered_while_no_call_waits() -> None:
    with connected(DOOR, "yamux") as session:
        session.ping()
        before = session.live.endpoint.peer_bytes()
        server_side = session.live.peer
        assert server_side
        stream = session.open()
        stream.send(b"x")
        until(lambda: stream.receive_nowait() == b"x")  # which processes nothing itself
        assert session.live.endpoint.peer_bytes() > before


def test_timers_run_while_no_call_waits() -> None:
    timeouts = polymux.Timeouts(keepalive_interval=0.1)
    with connected(DOOR, "yamux", timeouts=timeouts) as session:
        before = session.bytes_sent
        until(lambda: session.bytes_sent > before)


def test_the_thread_ends_with_the_session_and_its_descriptors_are_closed() -> None:
    sockets = descriptors()
    for _ in range(10):
        with connected(DOOR) as session:
            session.open("name").send(b"x")
    until(lambda: not own_threads())
    until(lambda: descriptors() <= sockets)


@pytest.mark.parametrize("verb", CALLS)
def test_a_thousand_calls_that_time_out_leave_nothing_behind(verb: str) -> None:
    near, far = polymux.sync.pipe("mplex")
    with near, far:
        stream = near.open("name")
        theirs = far.accept()
        sockets = descriptors()
        for _ in range(1000):
            with pytest.raises(TimeoutError):
                CALLS[verb](near, stream, 0.0001)
        assert len(own_threads()) == 1
        assert descriptors() <= sockets
        theirs.send(b"x")
        assert stream.receive(timeout=20) == b"x"


OTHER_CALLS: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "send": ("nerdbank", lambda near, stream: stream.send(b"x", timeout=0.0)),
    "drain": ("nerdbank", lambda near, stream: stream.drain(timeout=0.0)),
    "open": ("nerdbank", lambda near, stream: near.open("never accepted", timeout=0.0)),
    "ping": ("yamux", lambda near, stream: near.ping(timeout=0.0)),
    "request": ("streamux", lambda near, stream: near.request(b"x", timeout=0.0001)),
    "receive_control": ("omnistreams", lambda near, stream: near.receive_control(timeout=0.0)),
}


@pytest.mark.parametrize("verb", OTHER_CALLS)
def test_a_thousand_other_calls_that_time_out_leave_nothing_behind(verb: str) -> None:
    protocol, call = OTHER_CALLS[verb]
    limits = polymux.Limits(receive_window=1000, open_reset_burst=10_000, empty_frame_burst=10_000)
    near, far = polymux.sync.pipe(protocol, limits=limits)
    with near, far:
        stream = None
        if protocol == "nerdbank":
            stream = near.offer("name")
            theirs = far.accept("name", timeout=20)
            near.accepted(stream, timeout=20)
            if verb != "open":
                stream.send_nowait(bytes(1_000_000))
        before, sockets = near.open_streams, descriptors()
        for _ in range(1000):
            with contextlib.suppress(TimeoutError):  # a ping may be answered at once
                call(near, stream)
        assert len(own_threads()) == 1
        assert descriptors() <= sockets
        assert near.open_streams == before
        assert near.failure is far.failure is None
        if stream is not None:
            theirs.send(b"x")
            assert stream.receive(timeout=20) == b"x"
            stream.abort()


def test_a_thousand_connections_that_time_out_leave_nothing_behind() -> None:
    sockets = descriptors()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(2000)
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        for _ in range(1000):
            with pytest.raises(polymux.Unreachable):
                polymux.sync.connect(url, protocol="nerdbank:version=2", timeout=0.0005)
        until(lambda: not own_threads())
        until(lambda: descriptors() <= sockets + 1)


def test_connections_of_a_server_whose_close_timed_out_are_aborted_in_time() -> None:
    """The peer reads nothing, so that the WebSocket's close frame cannot be sent."""
    before = descriptors()
    stuck, ended = threading.Event(), threading.Event()

    def handle(session: polymux.sync.Session) -> None:
        stream = session.open("bulk")
        try:
            while True:
                stream.send(bytes(200_000), timeout=0.2)
        except TimeoutError:
            stuck.set()
        ended.wait(20)

    server = polymux.sync.serve(handle, "ws://127.0.0.1:0", protocol="omnistreams")
    limits = polymux.Limits(session_buffer_bytes=100_000)
    session = polymux.sync.connect(server.url, protocol="omnistreams", limits=limits)
    session.accept(window=10_000, timeout=20)
    assert stuck.wait(20)
    with pytest.raises(TimeoutError):
        server.close(timeout=0.05)
    until(lambda: descriptors() <= before + 4, 5.0)  # those of the client
    ended.set()
    session.abort()
    until(lambda: not own_threads())
    until(lambda: descriptors() <= before)


def test_a_session_says_that_it_does_not_survive_a_fork_and_the_child_connects_anew() -> None:
    near, far = polymux.sync.pipe("mplex")
    with near, far:
        child = os.fork()
        if child == 0:
            try:
                near.open("name")
            except RuntimeError as problem:
                if "connect again" in str(problem):
                    own, other = polymux.sync.pipe("mplex")
                    own.open("in the child")
                    os._exit(0 if other.accept(timeout=20).name == "in the child" else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        near.open("still here")
        assert far.accept(timeout=20).name == "still here"


def test_sessions_work_where_an_event_loop_runs_as_in_a_notebook() -> None:
    async def cell() -> str:
        near, far = polymux.sync.pipe("mplex")
        with near, far:
            near.open("from a cell")
            return str(far.accept(timeout=20).name)

    assert asyncio.run(cell()) == "from a cell"


def test_a_stream_is_a_file() -> None:
    near, far = polymux.sync.pipe("yamux")
    with near, far, near.open() as stream:
        with stream.makefile("w", encoding="utf-8") as lines:
            print("one", file=lines)
            print("two", file=lines)
        stream.end()
        with far.accept() as received:
            assert list(received.makefile("r", encoding="utf-8")) == ["one\n", "two\n"]


def test_the_buffer_of_a_file_is_as_large_as_was_asked_for() -> None:
    with joined(DOOR, "yamux") as (near, far):
        stream = near.open()
        stream.send(b"x")
        received = far.accept()
        with stream.makefile("wb", 100) as written:
            written.write(b"12")
            assert received.receive(timeout=20) == b"x"
            written.write(bytes(100))  # more than there is room for
            assert received.receive(timeout=20)[:2] == b"12"
        both = stream.makefile("rwb", -1)
        both.write(b"34")  # buffered
        unbuffered = stream.makefile("rwb", 0)
        unbuffered.write(b"end")
        while not (rest := received.receive(timeout=20)).strip(b"\0"):
            pass
        assert rest.strip(b"\0") == b"end"
        both.close()
        assert received.receive(timeout=20) == b"34"
        with pytest.raises(ValueError, match="text"):
            stream.makefile("r", 0)


def test_standard_streams_and_children_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(polymux.Unsupported, match=r"use polymux\.connect"):
        polymux.sync.connect("exec:cat", protocol="mplex")
    with pytest.raises(polymux.Unsupported, match=r"use polymux\.serve"):
        polymux.sync.serve(print, "stdio:", protocol="mplex")


def test_an_interrupted_call_leaves_the_session_in_order() -> None:
    near, far = polymux.sync.pipe("mplex")
    with near, far:
        stream = near.open("name")
        theirs = far.accept()
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            time.sleep(0.05)
            os.kill(os.getpid(), 2)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            stream.receive(timeout=20)
        theirs.send(b"x")
        assert stream.receive(timeout=20) == b"x"


def echoing() -> polymux.sync.Server:
    """A server that echoes every stream."""

    def echo(stream: polymux.sync.Stream) -> None:
        for chunk in stream:
            stream.send(chunk)

    def handle(session: polymux.sync.Session) -> None:
        session.serve_streams(echo)

    return polymux.sync.serve(handle, "tcp://127.0.0.1:0", protocol="mplex")


def interrupt_soon(number: int = signal.SIGINT, seconds: float = 0.2) -> None:
    """Send a signal to this process in a moment."""

    def interrupt() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()


def round_trips(stream: polymux.sync.Stream, count: int = 50) -> None:
    """So many, one after another: the thread that makes them then processes what is received."""
    for _ in range(count):
        stream.send(b"x")
        assert stream.receive(timeout=20) == b"x"


def test_other_calls_go_on_after_one_was_interrupted() -> None:
    with echoing() as server, polymux.sync.connect(server.url, protocol="mplex") as session:
        leading, other = session.open("leading"), session.open("other")
        received: list[bytes] = []

        def wait() -> None:
            time.sleep(0.05)  # the other thread waits first, and so processes what is received
            received.append(other.receive(timeout=60))

        waiting = threading.Thread(target=wait)
        round_trips(leading)
        waiting.start()
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            leading.receive(timeout=20)
        other.send_nowait(b"y")
        waiting.join(20)
        assert received == [b"y"]


def test_the_thread_that_processes_what_comes_notices_what_another_one_does() -> None:
    runtime = ThreadRuntime("polymux without timers")
    done, returned = runtime.create_future(), threading.Event()
    noticed: list[bool] = []

    def finish() -> None:
        time.sleep(0.2)
        runtime.do(done.set_result, None)
        noticed.append(returned.wait(15))

    other = threading.Thread(target=finish)
    other.start()
    assert runtime.call(wait_done(runtime, done), timeout=20)
    returned.set()
    other.join()
    assert noticed == [True]
    runtime.do(runtime.add_user)
    runtime.do(runtime.remove_user)  # closes its descriptors


@pytest.fixture
def on_terminate() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Lets a signal call a function in the main thread."""
    before = signal.getsignal(signal.SIGTERM)

    def call(function: Callable[[], object]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: function())

    yield call
    signal.signal(signal.SIGTERM, before)


OnTerminate = Callable[[Callable[[], object]], None]


def test_a_signal_handler_closes_the_session_that_its_thread_reads(
    on_terminate: OnTerminate,
) -> None:
    with echoing() as server, polymux.sync.connect(server.url, protocol="mplex") as session:
        closed = threading.Event()
        noticed: list[bool] = []

        def close() -> None:
            session.close(timeout=30)
            closed.set()

        on_terminate(close)
        watching = threading.Thread(target=lambda: noticed.append(closed.wait(20)))
        stream = session.open("leading")
        round_trips(stream)
        interrupt_soon(signal.SIGTERM)
        watching.start()
        with pytest.raises(polymux.SessionClosed):
            stream.receive(timeout=60)
        watching.join()
        assert noticed == [True]


def test_a_signal_handler_waits_on_top_of_a_call_that_another_thread_works_for(
    on_terminate: OnTerminate,
) -> None:
    with echoing() as server, polymux.sync.connect(server.url, protocol="mplex") as session:
        asked, leading, waiting = (session.open(name) for name in ("asked", "leading", "waiting"))
        received: list[bytes] = []

        def lead() -> None:
            round_trips(leading)
            with contextlib.suppress(TimeoutError):
                leading.receive(timeout=1)
            asked.send_nowait(b"late")

        on_terminate(lambda: received.append(asked.receive(timeout=20)))
        leader = threading.Thread(target=lead)
        leader.start()
        time.sleep(0.3)  # it waits first, and so processes what is received
        interrupt_soon(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            waiting.receive(timeout=2)
        assert received == [b"late"]
        leader.join(20)


def test_a_signal_handler_closes_the_server_that_its_thread_waits_for(
    on_terminate: OnTerminate,
) -> None:
    closed = threading.Event()
    noticed: list[bool] = []

    def handle(session: polymux.sync.Session) -> None:
        stream = session.accept()
        while True:
            stream.send(stream.receive())

    def ask(url: str) -> None:
        with contextlib.suppress(polymux.PolymuxError):
            with polymux.sync.connect(url, protocol="mplex") as session:
                stream = session.open("busy")
                while True:
                    round_trips(stream)

    def close() -> None:
        server.close(timeout=30)
        closed.set()

    with polymux.sync.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
        on_terminate(close)
        others = [threading.Thread(target=ask, args=(server.url,)) for _ in range(3)]
        others.append(threading.Thread(target=lambda: noticed.append(closed.wait(20))))
        for other in others:
            other.start()
        interrupt_soon(signal.SIGTERM, 0.5)
        server.wait_closed(timeout=60)
        for other in others:
            other.join(20)
    assert noticed == [True]


def test_a_call_within_a_call_that_does_not_wait_is_refused() -> None:
    near, far = polymux.sync.pipe("mplex")
    found: list[BaseException] = []

    class Forwarding(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                stream.send(record.getMessage().encode())
            except RuntimeError as problem:
                found.append(problem)

    log = logging.getLogger("polymux.aio")
    handler = Forwarding()
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        with near, far:
            stream = near.open("log")
            near.abort("this is logged")
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert found
    assert "in another thread" in str(found[0])


def test_handlers_of_cancelled_calls_count_until_they_return() -> None:
    near, far = polymux.sync.pipe("streamux")
    go_on = threading.Event()
    running, most = 0, 0

    def answer(call: polymux.sync.Call) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        request = call.read()
        if request == b"wait":
            go_on.wait(20)
        running -= 1
        call.reply(request)

    with near, far:
        serving = threading.Thread(
            target=far.serve_calls, args=(answer,), kwargs={"max_concurrent": 2}
        )
        serving.start()
        for _ in range(6):
            with pytest.raises(TimeoutError):
                near.request(b"wait", timeout=0.05)
        assert most == 2
        go_on.set()
        assert near.request(b"again", timeout=20) == b"again"
    serving.join(20)
    assert most == 2


def test_requests_with_long_timeouts_leave_no_timers_behind() -> None:
    near, far = polymux.sync.pipe("streamux")

    def answer() -> None:
        far.serve_calls(lambda call: call.reply(call.read()))

    threading.Thread(target=answer).start()

    def timers() -> int:
        return sum(type(each).__name__.endswith("Timer") for each in gc.get_objects())

    before = timers()
    with near, far:
        for _ in range(300):
            assert near.request(b"x", timeout=3600) == b"x"
        assert timers() - before < 100


def test_a_timer_that_fails_is_logged_and_ends_no_call(caplog: pytest.LogCaptureFixture) -> None:
    near, far = polymux.sync.pipe("mplex")

    def fail() -> None:
        raise ZeroDivisionError

    with near, far:
        stream = near.open("name")
        theirs = far.accept()
        near.runtime.do(near.runtime.call_later, 0.01, fail)
        with pytest.raises(TimeoutError):
            stream.receive(timeout=0.1)
        theirs.send(b"x")
        assert stream.receive(timeout=20) == b"x"
    assert "a callback failed" in caplog.text


def test_a_timeout_of_0_finds_what_has_been_received() -> None:
    runtime = ThreadRuntime("polymux without a thread")
    near, far = socket.socketpair()
    with near, far:
        far.send(b"x")
        near.setblocking(False)
        runtime.call(wait_for_socket(runtime, near, write=False), 0)
        assert near.recv(1) == b"x"
        with pytest.raises(TimeoutError):
            runtime.call(wait_for_socket(runtime, near, write=False), 0)
    runtime.do(runtime.add_user)
    runtime.do(runtime.remove_user)  # closes its descriptors


@pytest.mark.parametrize("timeout", [1e8, 1e300, math.inf])
def test_a_timeout_may_be_longer_than_systems_can_wait(timeout: float) -> None:
    near, far = polymux.sync.pipe("mplex")
    received: list[bytes] = []
    with near, far:
        streams = [near.open(name) for name in ("one", "two")]
        theirs = [far.accept() for _ in streams]

        def receive(stream: polymux.sync.Stream) -> None:
            received.append(stream.receive(timeout=timeout))

        readers = [threading.Thread(target=receive, args=(stream,)) for stream in streams]
        for reader in readers:  # one processes what comes, the other waits for its turn
            reader.start()
        time.sleep(0.1)
        for each in theirs:
            each.send(b"x")
        for reader in readers:
            reader.join(20)
    assert received == [b"x", b"x"]


def test_a_buffer_that_cannot_be_filled_takes_nothing() -> None:
    near, far = polymux.sync.pipe("mplex")
    with near, far, near.open("name") as stream:
        stream.send(b"data")
        with far.accept() as received:
            read_only: Any = b"1234"
            with pytest.raises(TypeError, match="read-only"):
                received.recv_into(read_only, timeout=20)
            with pytest.raises(ValueError, match="not -1"):
                received.recv_into(bytearray(4), -1, timeout=20)
            assert received.receive(timeout=20) == b"data"


def test_messages_are_not_read_as_bytes() -> None:
    near, far = polymux.sync.pipe("omnistreams")
    with near, far:
        sender = near.open("name")
        receiver = far.accept()
        for message in (bytes(100), b"", b"last"):
            sender.send(message)
        for read in (lambda: receiver.recv_into(bytearray(10)), receiver.makefile):
            with pytest.raises(polymux.Unsupported, match=r"pieces.*receive\(\)"):
                read()
        assert [receiver.receive(timeout=20) for _ in range(3)] == [bytes(100), b"", b"last"]


def test_items_are_not_read_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text("[default]\nitem = 4\nlast = 0\n")
    near, far = polymux.sync.pipe(f"minmux:profile={tmp_path}/profile.toml")
    with near, far:
        receiver = far.receiver(1, window=4)
        near.sender(1).send(b"abcdefgh", timeout=20)
        reads: tuple[Callable[[], object], ...] = (
            lambda: receiver.recv_into(bytearray(2)),
            lambda: receiver.makefile("rb"),
        )
        for read in reads:
            with pytest.raises(polymux.Unsupported, match=r"pieces.*receive\(\)"):
                read()
        received = b""
        while len(received) < 8:
            received += receiver.receive(timeout=20)
        assert received == b"abcdefgh"


def test_an_interruption_within_the_call_of_another_thread_reaches_its_own() -> None:
    runtime = ThreadRuntime("polymux without a thread")
    begun, never = runtime.create_future(), runtime.create_future()
    ended: list[BaseException] = []

    async def interrupted() -> None:
        await wait_done(runtime, begun)
        signal.raise_signal(signal.SIGINT)  # while the main thread makes this step

    def wait() -> None:
        time.sleep(0.1)
        try:
            runtime.call(interrupted(), 20)
        except BaseException as problem:
            ended.append(problem)

    other = threading.Thread(target=wait)
    other.start()
    runtime.do(runtime.call_later, 0.3, begun.set_result, None)
    with pytest.raises(KeyboardInterrupt):
        runtime.call(wait_done(runtime, never), 20)
    other.join()
    assert len(ended) == 1  # its call did not go on
    runtime.do(runtime.add_user)
    runtime.do(runtime.remove_user)  # closes its descriptors


@pytest.mark.parametrize("may_lead", [True, False])
def test_an_interruption_while_another_thread_works_leaves_the_session_in_order(
    may_lead: bool,
) -> None:
    near, far = polymux.sync.pipe("mplex")
    main = threading.get_ident()

    def interrupt_twice() -> None:  # the second time while the main thread waits for its turn
        for _ in range(2):
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.1)

    with near, far:
        stream = near.open("name")
        theirs = far.accept()
        working = threading.Timer(0.1, near.runtime.do, (interrupt_twice,))
        working.start()
        with pytest.raises(KeyboardInterrupt):
            near.runtime.call(stream.live.receive(), 20, may_lead=may_lead)
        working.join()
        theirs.send(b"x")
        assert stream.receive(timeout=20) == b"x"


def test_a_call_that_is_interrupted_as_it_begins_to_wait_does_not_go_on() -> None:
    near, far = polymux.sync.pipe("mplex")
    with near, far:
        stream = near.open("name")
        theirs = far.accept()

        async def receive() -> bytes:
            near.runtime.call_soon(signal.raise_signal, signal.SIGINT)
            data: bytes = await stream.live.receive()
            return data

        with pytest.raises(KeyboardInterrupt):
            near.runtime.call(receive(), 20)
        theirs.send(b"x")
        assert stream.receive(timeout=20) == b"x"


class Interrupted:
    """Awaits a verb, and cancels the call at its n-th suspension.

    Args:
        runtime: Runs it.
        verb: The coroutine.
        number: At which suspension it is cancelled; the first is 0.
        on_wait: Called at the first.
    """

    def __init__(
        self,
        runtime: Any,
        verb: Coroutine[Any, Any, Any],
        number: int,
        on_wait: Callable[[], object],
    ) -> None:
        self.runtime = runtime
        self.verb = verb
        self.number = number
        self.on_wait = on_wait
        self.finished = True

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        task = self.runtime.current_task()
        assert task is not None
        steps = self.verb.__await__()
        try:
            waited = next(steps)
            self.on_wait()
            for count in itertools.count():
                if count == self.number:
                    self.finished = False
                    task.cancel()
                try:
                    yield waited
                except BaseException as problem:
                    waited = steps.throw(problem)
                else:
                    waited = next(steps)
        except StopIteration as end:
            return end.value


Verb = Callable[[Any, Any], Coroutine[Any, Any, Any]]
Helper = Callable[[Any, Any], object]


def answer(far: Any, theirs: Any) -> None:
    theirs.send(b"abc\n")
    theirs.end()


def accept_it(far: Any, theirs: Any) -> None:
    with contextlib.suppress(TimeoutError):
        far.accept("cancelled", timeout=0.2)


# Calls of this side, and what the peer does so that each of them ends.
VERBS: dict[str, tuple[Verb, Helper]] = {
    "open": (lambda near, mine: near.live.open("cancelled"), accept_it),
    "accept": (lambda near, mine: near.live.accept(), lambda far, theirs: far.offer("offered")),
    "receive": (lambda near, mine: mine.live.receive(), answer),
    "receive_all": (lambda near, mine: mine.live.receive_all(), answer),
    "readline": (lambda near, mine: mine.live.readline(), answer),
    "readexactly": (lambda near, mine: mine.live.readexactly(3), answer),
    "send": (lambda near, mine: mine.live.send(b"z"), lambda far, theirs: theirs.readexactly(5000)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_cancelled_at_any_suspension_leaves_the_session_in_order(verb: str) -> None:
    call, helper = VERBS[verb]
    for number in range(20):
        with joined(DOOR, "nerdbank", limits=polymux.Limits(receive_window=1000)) as (near, far):
            mine = near.offer("name")
            theirs = far.accept("name", timeout=20)
            near.accepted(mine, timeout=20)
            if verb == "send":
                mine.send(bytes(5000))
            helping = threading.Thread(target=helper, args=(far, theirs))
            verb_call = call(near, mine)
            interrupted = Interrupted(near.runtime, verb_call, number, helping.start)
            with contextlib.suppress(CancelledError):
                near.runtime.call(interrupted.run(), timeout=20)
            helping.join(20)
            offer = near.offer("works")
            far.accept("works", timeout=20).send(b"x")
            assert offer.receive(timeout=20) == b"x"
        if interrupted.finished:
            break
    else:
        raise AssertionError("it was cancelled again and again")
    assert number > 0


def test_a_close_that_times_out_says_so_and_aborts_the_session() -> None:
    limits = polymux.Limits(receive_window=1000)
    near, far = polymux.sync.pipe("nerdbank", limits=limits)
    accepting = threading.Thread(target=far.accept)
    accepting.start()
    stream = near.open("name")
    accepting.join(20)
    stream.send_nowait(bytes(5000))  # more than the peer has room for
    with pytest.raises(TimeoutError, match="allow more with timeout"):
        near.close(timeout=0.1)
    assert isinstance(near.failure, polymux.SessionClosed)
    far.wait_closed(timeout=20)
    near.wait_closed(timeout=20)
