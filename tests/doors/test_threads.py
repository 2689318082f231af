"""What only `polymux.sync` has: threads, forks, files, and its own thread."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from tests.doors.door import ThreadsDoor
from tests.doors.test_battery import CALLS, connected, descriptors, until

import polymux
import polymux.sync

DOOR = ThreadsDoor()


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_of_earlier_tests() -> None:
    _before.clear()
    _before.update(threading.enumerate())


def own_threads() -> list[str]:
    new = set(threading.enumerate()) - _before
    return [each.name for each in new if each.name.startswith("polymux")]


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


def test_the_peer_is_answered_while_no_call_waits() -> None:
    with connected(DOOR, "yamux") as session:
        session.ping()
        before = session.live.endpoint.peer_bytes()
        server_side = session.live.peer
        assert server_side
        stream = session.open()
        stream.send(b"x")
        until(lambda: session.live.endpoint.peer_bytes() > before)  # nothing reads it here
        assert stream.receive_nowait() == b"x"


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


def test_a_session_says_that_it_does_not_survive_a_fork() -> None:
    near, far = polymux.sync.pipe("mplex")
    with near, far:
        child = os.fork()
        if child == 0:
            try:
                near.open("name")
            except RuntimeError as problem:
                os._exit(0 if "connect again" in str(problem) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        near.open("still here")
        assert far.accept(timeout=20).name == "still here"


def test_a_stream_is_a_file() -> None:
    near, far = polymux.sync.pipe("yamux")
    with near, far, near.open() as stream:
        with stream.makefile("w", encoding="utf-8") as lines:
            print("one", file=lines)
            print("two", file=lines)
        stream.end()
        with far.accept() as received:
            assert list(received.makefile("r", encoding="utf-8")) == ["one\n", "two\n"]


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
