"""The same behaviour through every door."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doors.door import DOORS, Door, open_door
from tests.record.certificate_authority import Authority

import polymux

PROFILE = "[default]\nitem = 1\nlast = 0\n"


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    before = descriptors(), threads()
    with open_door(request.param) as opened:
        yield opened
    until(lambda: threads() <= before[1])
    until(lambda: descriptors() <= before[0])


def descriptors() -> int:
    """How many sockets and selectors are open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "anon_inode:"))
    return found


def threads() -> int:
    """How many there are, without those that event loops keep for later."""
    kept = ("asyncio_", "Trio thread")
    return sum(not thread.name.startswith(kept) for thread in threading.enumerate())


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition holds."""
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest, "it did not come about"
        time.sleep(0.005)


def echo(session: Any) -> None:
    """Echo each stream, one after another."""
    for stream in session.incoming:
        with contextlib.suppress(polymux.StreamAborted), stream:
            for chunk in stream:
                stream.send(chunk)


@contextlib.contextmanager
def connected(door: Door, protocol: str = "mplex", **options: Any) -> Iterator[Any]:
    """A session with a server that echoes."""
    with door.serve(echo, "tcp://127.0.0.1:0", protocol=protocol) as server:
        with door.connect(server.url, protocol=protocol, **options) as session:
            yield session


@contextlib.contextmanager
def joined(door: Door, protocol: str = "mplex", **options: Any) -> Iterator[tuple[Any, Any]]:
    """Two sessions in memory."""
    near, far = door.pipe(protocol, **options)
    try:
        yield near, far
    finally:
        near.abort("the test is over")
        far.abort("the test is over")
        near.wait_closed()
        far.wait_closed()


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank", "omnistreams"])
def test_a_stream_is_opened_with_a_weight(door: Door, protocol: str) -> None:
    with joined(door, protocol) as (near, far):
        accepting = threading.Thread(target=lambda: far.accept(timeout=20))
        accepting.start()
        assert near.open("name", weight=4, timeout=20).weight == 4
        accepting.join()


def test_lines_and_exact_sizes_are_read(door: Door) -> None:
    with connected(door) as session, session.open("lines") as stream:
        stream.send(b"one\ntwo\nabcdef")
        stream.end()
        assert stream.readline() == b"one\n"
        assert stream.readline() == b"two\n"
        assert stream.readexactly(3) == b"abc"
        buffer = bytearray(10)
        assert buffer[: stream.recv_into(buffer)] == b"def"
        assert stream.recv_into(buffer) == 0


CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    "receive": lambda near, mine, timeout: mine.receive(timeout=timeout),
    "receive_all": lambda near, mine, timeout: mine.receive_all(timeout=timeout),
    "readline": lambda near, mine, timeout: mine.readline(timeout=timeout),
    "readexactly": lambda near, mine, timeout: mine.readexactly(3, timeout=timeout),
    "accept": lambda near, mine, timeout: near.accept(timeout=timeout),
    "wait_closed": lambda near, mine, timeout: near.wait_closed(timeout=timeout),
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_call_that_times_out_leaves_the_session_in_order(door: Door, verb: str) -> None:
    with joined(door) as (near, far):
        mine = near.open("name")
        theirs = far.accept()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                CALLS[verb](near, mine, 0.003)
        theirs.send(b"all\n")
        assert mine.readexactly(4) == b"all\n"
        far.open("next").send(b"x")
        assert near.accept().receive() == b"x"


def test_an_offer_that_times_out_is_withdrawn(door: Door) -> None:
    with joined(door, "nerdbank") as (near, far):
        for _ in range(5):
            with pytest.raises(TimeoutError):
                near.open("nobody", timeout=0.01)
        until(lambda: not far.offers())
        opening = threading.Thread(target=lambda: near.open("somebody", timeout=20))
        opening.start()
        assert far.accept("somebody", timeout=20).name == "somebody"
        opening.join()


@pytest.mark.parametrize("scheme", ["tcp", "unix", "tls", "wss", "ws"])
def test_every_transport_carries_a_session(door: Door, scheme: str, tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/socket" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
    serving: dict[str, Any] = {"protocol": "omnistreams"}
    calling: dict[str, Any] = {"protocol": "omnistreams"}
    if scheme in ("tls", "wss"):
        authority = Authority(tmp_path / "authority")
        serving["tls"] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving["tls"].load_cert_chain(authority.cert, authority.key)
        calling["tls"] = ssl.create_default_context(cafile=authority.ca)
        calling["server_hostname"] = "localhost"

    def mirror(session: Any) -> None:
        for receiver in session.incoming:
            with session.open(receiver.metadata) as sender:
                for message in receiver:
                    sender.send(message)

    with door.serve(mirror, url, token="a secret of the two", **serving) as server:
        with door.connect(server.url, token="a secret of the two", **calling) as session:
            with session.open({"name": 1}) as sender:
                answer: Any = None
                for number in range(50):
                    sender.send(bytes(10_000) + b"%d" % number)
                    answer = answer or session.accept()
                    assert answer.receive(timeout=20) == bytes(10_000) + b"%d" % number
            assert answer.json() == {"name": 1}
            with pytest.raises(polymux.StreamEnded):
                answer.receive(timeout=20)


def test_a_certificate_of_nobody_known_is_refused(door: Door, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.cert, authority.key)
    with door.serve(echo, "tls://127.0.0.1:0", protocol="mplex", tls=context) as server:
        with pytest.raises(polymux.Unreachable, match="authority is unknown"):
            door.connect(server.url, protocol="mplex")


def test_requests_are_answered_and_cancelled_in_time(door: Door) -> None:
    waiting = threading.Event()

    def upper(call: Any) -> None:
        request = call.read()
        if request == b"wait":
            waiting.wait(20)
        call.reply(request.upper())

    with door.serve(
        lambda session: session.serve_streams(upper), "tcp://127.0.0.1:0", protocol="streamux"
    ) as server, door.connect(server.url, protocol="streamux") as session:  # fmt: skip
        assert session.request(b"hello", timeout=20) == b"HELLO"
        with pytest.raises(TimeoutError, match="the request was cancelled"):
            session.request(b"wait", timeout=0.05)
        waiting.set()
        assert session.request(b"again", timeout=20) == b"AGAIN"


def test_items_flow_under_credit(door: Door, tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text(PROFILE)
    with joined(door, f"minmux:profile={tmp_path}/profile.toml") as (near, far):
        receiver = far.receiver(1, window=4)
        sender = near.sender(1)
        sender.send(b"abcd", timeout=20)
        with pytest.raises(TimeoutError):
            sender.send(b"abcd", timeout=0.05)
        got = b""
        while len(got) < 4:
            got += receiver.receive(timeout=20)
        assert got.startswith(b"abcd")


def test_a_ping_measures_the_round_trip(door: Door) -> None:
    with connected(door, "yamux") as session:
        assert 0 <= session.ping() < 20


def test_control_messages_go_both_ways(door: Door) -> None:
    with joined(door, "omnistreams") as (near, far):
        near.control({"a": 1})
        assert far.receive_control(timeout=20) == b'{"a":1}'
        far.control(b"raw")
        assert near.receive_control(timeout=20) == b"raw"


def test_nothing_listens_is_said_at_once(door: Door) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(polymux.Unreachable, match="nothing listens there"):
            door.connect(url, protocol="mplex")


def test_a_closed_server_ends_its_sessions_and_handlers(door: Door) -> None:
    server = door.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
    session = door.connect(server.url, protocol="mplex")
    stream = session.open("name")
    stream.send(b"x")
    assert stream.receive() == b"x"
    server.close()
    with pytest.raises(polymux.SessionClosed):
        stream.receive()
    session.close()


def test_a_handler_that_raises_aborts_its_session_only(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(session: Any) -> None:
        if session.accept().name == "bad":
            raise ValueError("on purpose")
        echo(session)

    with door.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
        bad = door.connect(server.url, protocol="mplex")
        bad.open("bad")
        bad.wait_closed(timeout=20)
        with door.connect(server.url, protocol="mplex") as good:
            good.open("good")
            with good.open("x") as stream:
                stream.send(b"x")
                assert stream.receive(timeout=20) == b"x"
    assert "on purpose" in caplog.text


class FailingRecorder:
    """Cannot record what is read."""

    def begin(self, transport: Any) -> Any:
        return transport

    def read(self, data: bytes) -> None:
        raise ZeroDivisionError("the recorder has a fault")

    def ended(self) -> None:
        pass

    def closed(self, error: Exception | None) -> None:
        pass


def test_a_fault_in_the_middle_of_received_data_ends_the_session(door: Door) -> None:
    with door.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        session = door.connect(server.url, protocol="mplex", recorder=lambda *_: FailingRecorder())
        stream = session.open("name")
        stream.send(b"x")
        with pytest.raises(polymux.SessionClosed, match="the recorder has a fault"):
            stream.receive(timeout=20)
        session.wait_closed(timeout=20)


def test_what_a_peer_says_at_once_before_it_goes_is_handled(door: Door, tmp_path: Path) -> None:
    """All of it arrives with the last message of the TLS handshake."""
    authority = Authority(tmp_path / "authority")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(authority.cert, authority.key)
    calling = ssl.create_default_context(cafile=authority.ca)
    received: list[bytes] = []
    handled = threading.Event()

    def handle(session: Any) -> None:
        received.append(session.accept(timeout=20).receive_all(timeout=20))
        handled.set()

    with door.serve(handle, "tls://127.0.0.1:0", protocol="mplex", tls=serving) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = calling.wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            tls.write(b"\x00\x00\x02\x05hello\x04\x00")  # open, content, end
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
            sock.sendall(outgoing.read())
            sock.shutdown(socket.SHUT_WR)
            assert handled.wait(20)
    assert received == [b"hello"]


def test_a_unix_server_that_accepts_late_is_waited_for(door: Door, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as late, contextlib.ExitStack() as waiting:
        late.bind(path)
        late.listen(0)
        while True:  # until its queue is full
            other = waiting.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            if other.connect_ex(path):
                break
        with pytest.raises(polymux.Unreachable, match="no answer within"):
            door.connect(f"unix://{path}", protocol="mplex", timeout=0.1)

        def accept() -> None:
            time.sleep(0.1)
            for _ in range(2):
                waiting.enter_context(late.accept()[0])

        accepting = threading.Thread(target=accept)
        accepting.start()
        session = door.connect(f"unix://{path}", protocol="mplex", timeout=20)
        accepting.join()
        session.open("name", timeout=20)
        assert not session.failure
        session.abort()
        session.wait_closed(timeout=20)


@pytest.mark.parametrize("door", [each for each in DOORS if each != "uvloop"], indirect=True)
@pytest.mark.timeout(60)
def test_addresses_that_do_not_answer_take_no_longer_than_the_timeout(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as sockets:
        found = []
        port = 0
        for host in ("127.0.0.1", "127.0.0.2"):
            full = sockets.enter_context(socket.socket())
            full.bind((host, port))
            full.listen(0)
            port = full.getsockname()[1]
            for _ in range(2):  # no more are let in, or refused
                waiting = sockets.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((host, port))
            found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)))
        look_up = socket.getaddrinfo

        def two_addresses(host: Any, *arguments: Any, **options: Any) -> Any:
            return found if host == "two.test" else look_up(host, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        began = time.monotonic()
        with pytest.raises(polymux.Unreachable, match="no answer within"):
            door.connect(f"tcp://two.test:{port}", protocol="mplex", timeout=0.3)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("door", [each for each in DOORS if each != "uvloop"], indirect=True)
@pytest.mark.timeout(60)
def test_a_name_that_is_looked_up_slowly_takes_no_longer_than_the_timeout(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, found = socket.getaddrinfo, threading.Event()

    def slow(
        host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        if host in ("slow.test", b"slow.test"):
            if flags & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "it is a name")
            found.wait(20)
            host = "127.0.0.1"
        return look_up(host, port, family, type, proto, flags)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with door.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        url = f"tcp://slow.test:{server.port}"
        began = time.monotonic()
        try:
            with pytest.raises(polymux.Unreachable, match="no answer within"):
                door.connect(url, protocol="mplex", timeout=0.2)
            assert time.monotonic() - began < 5
        finally:
            found.set()
        with door.connect(url, protocol="mplex", timeout=20) as session:
            session.open("name")


class UnusableRecorder:
    """A recorder that cannot record, for lack of space."""

    def begin(self, transport: Any) -> Any:
        raise OSError("no space left")


@pytest.mark.parametrize("door", ["threads", "trio"], indirect=True)  # elsewhere it is the loop's
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_connection_that_cannot_be_recorded_is_closed(
    door: Door, scheme: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(authority.cert, authority.key)
    calling = ssl.create_default_context(cafile=authority.ca)
    served: Any = {"tls": serving} if scheme == "tls" else {}
    called: Any = {"tls": calling, "server_hostname": "localhost"} if scheme == "tls" else {}
    gc.disable()
    try:
        with door.serve(
            echo,
            f"{scheme}://127.0.0.1:0",
            protocol="nerdbank:version=2",
            recorder=lambda protocol, side: UnusableRecorder(),
            **served,
        ) as server:
            before = descriptors()
            for _ in range(3):
                with pytest.raises(polymux.PolymuxError):
                    door.connect(server.url, protocol="nerdbank:version=2", timeout=3.0, **called)
            until(lambda: descriptors() <= before)
    finally:
        gc.enable()
