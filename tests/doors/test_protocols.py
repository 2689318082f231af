"""Every protocol through every door: half-closes, resets, slow readers, TLS, ends, many streams."""

from __future__ import annotations

import contextlib
import queue
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.doors.door import Door
from tests.doors.test_battery import PROFILE, joined
from tests.doors.test_battery import door as door  # the fixture
from tests.record.certificate_authority import Authority

import polymux

MANY = 1000  # streams that are open at once
FEW = 100  # of them where another door, or another protocol, has all
SMALL = polymux.Limits(
    receive_window=16_384, stream_buffer_bytes=65_536, session_buffer_bytes=65_536
)


# How a stream is opened. Each returns both ends; bytes of "." may come first.


def named(near: Any, far: Any, number: int) -> tuple[Any, Any]:
    mine = near.open(f"name {number}")
    return mine, far.accept(timeout=20)


def offered(near: Any, far: Any, number: int) -> tuple[Any, Any]:
    name = f"name {number}"
    mine = near.offer(name)
    theirs = far.accept(name, timeout=20)
    near.accepted(mine, timeout=20)
    return mine, theirs


def announced(near: Any, far: Any, number: int) -> tuple[Any, Any]:
    mine = near.open()
    for _ in range(2):  # a request keeps what was sent last until more follows, or it ends
        mine.send(b".")
    return mine, far.accept(timeout=20)


def assigned(near: Any, far: Any, number: int) -> tuple[Any, Any]:
    written = 2 * number + 1  # the dialer writes those with odd ids
    return near.sender(written), far.receiver(written, window=4096)


@dataclass(frozen=True)
class Kind:
    """A protocol, and what it has."""

    protocol: str
    begin: Callable[[Any, Any, int], tuple[Any, Any]]
    both_ways: bool = True  # a stream can be answered after its end
    resets: bool = True
    most: int = MANY  # streams at once

    def __str__(self) -> str:
        return self.protocol


KINDS = [
    Kind("mplex", named),
    Kind("nerdbank", offered),
    Kind("nerdbank:version=1", offered),
    Kind("nerdbank:version=2", offered),
    Kind("yamux", announced),
    Kind("streamux", announced),
    Kind("omnistreams", named, both_ways=False, most=256),
    Kind("minmux", assigned, both_ways=False, resets=False),
]
every = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("minmux") / "profile.toml"
    path.write_text(PROFILE)
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "authority")


def text_of(kind: Kind, profile: Path) -> str:
    """Its protocol string."""
    return f"minmux:profile={profile}" if kind.protocol == "minmux" else kind.protocol


def say(kind: Kind, near: Any, far: Any, number: int = 0) -> None:
    """Send on a new stream and end it; answer after the end, where that is possible."""
    mine, theirs = kind.begin(near, far, number)
    mine.send(b"question")
    mine.end()
    assert theirs.receive_all(timeout=20).strip(b".") == b"question"
    with pytest.raises((polymux.StreamEnded, polymux.LocalProtocolError)):
        mine.send(b"more")
    if kind.both_ways:
        theirs.send(b"answer")
        theirs.end()
        assert mine.receive_all(timeout=20) == b"answer"


@every
def test_what_is_sent_before_an_end_arrives_and_is_answered(
    door: Door, kind: Kind, profile: Path
) -> None:
    with joined(door, text_of(kind, profile)) as (near, far):
        say(kind, near, far)
        say(kind, near, far, 1)


@every
def test_tls_carries_every_protocol(
    door: Door, kind: Kind, profile: Path, authority: Authority
) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(authority.cert, authority.key)
    calling = ssl.create_default_context(cafile=authority.ca)
    sessions: queue.Queue[Any] = queue.Queue()

    def handle(session: Any) -> None:
        sessions.put(session)
        session.wait_closed()

    text = text_of(kind, profile)
    with door.serve(handle, "tls://127.0.0.1:0", protocol=text, tls=serving) as server:
        with door.connect(
            server.url, protocol=text, tls=calling, server_hostname="localhost"
        ) as session:
            say(kind, session, sessions.get(timeout=20))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.resets], ids=str)
def test_a_reset_ends_its_stream_for_both_sides_and_no_other(
    door: Door, kind: Kind, profile: Path
) -> None:
    with joined(door, text_of(kind, profile)) as (near, far):
        mine, theirs = kind.begin(near, far, 0)
        mine.send(b"x")
        theirs.receive(timeout=20)
        mine.abort()
        with pytest.raises(polymux.StreamAborted):
            theirs.receive_all(timeout=20)
        with pytest.raises(polymux.StreamAborted):
            mine.send(b"y")
        say(kind, near, far, 1)


def fill(stream: Any) -> int:
    """Send until there is no more room. Return the number of bytes sent."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 1_000_000:
            stream.send(bytes(1024), timeout=0.05)
            sent += 1024
    return sent


@every
def test_a_slow_reader_holds_its_sender_up_and_gets_all(
    door: Door, kind: Kind, profile: Path
) -> None:
    with joined(door, text_of(kind, profile), limits=SMALL) as (near, far):
        mine, theirs = kind.begin(near, far, 0)
        sent = fill(mine)
        assert 0 < sent < 1_000_000
        ending = threading.Thread(target=mine.end)
        ending.start()
        assert theirs.receive_all(timeout=20).lstrip(b".") == bytes(sent)
        ending.join(20)


@every
def test_many_streams_are_open_at_once(
    request: pytest.FixtureRequest, door: Door, kind: Kind, profile: Path
) -> None:
    through_threads = request.node.callspec.params["door"] == "threads"
    count = kind.most if through_threads or kind.protocol == "mplex" else FEW
    with joined(door, text_of(kind, profile)) as (near, far):
        pairs = [kind.begin(near, far, number) for number in range(count)]
        assert near.open_streams >= count
        for number, (mine, _) in enumerate(pairs):
            mine.send(b"%d" % number)
            mine.end()
        for number, (_, theirs) in enumerate(pairs):
            assert theirs.receive_all(timeout=20).strip(b".") == b"%d" % number


PEER = """
import asyncio, sys, polymux

async def echo(stream):
    async for chunk in stream:
        await stream.send(chunk)

async def handle(session):
    if isinstance(session, (polymux.OmnistreamsSession, polymux.MinmuxSession)):
        await session.wait_closed()
    elif isinstance(session, polymux.StreamuxSession):
        await session.serve_calls(lambda call: asyncio.sleep(120))
    else:
        await session.serve_streams(echo)

async def main():
    servers = [
        await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=text) for text in sys.argv[1:]
    ]
    print(*(server.url for server in servers), flush=True)
    await asyncio.sleep(120)

asyncio.run(main())
"""


@contextlib.contextmanager
def peer_process(*protocols: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that serves each protocol at a URL of its own."""
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, *protocols], stdout=subprocess.PIPE, text=True
    )
    assert peer.stdout is not None
    try:
        yield peer, peer.stdout.readline().split()
    finally:
        peer.kill()
        peer.wait()
        peer.stdout.close()


def waiting_call(session: Any, protocol: str) -> Callable[[], object]:
    """A call that the peer does not end."""
    if protocol.startswith("minmux"):
        receiver = session.receiver(2)
        return lambda: receiver.receive(timeout=20)
    if protocol == "omnistreams":
        return lambda: session.accept(timeout=20)
    if protocol == "streamux":
        return lambda: session.request(b"never answered", timeout=20)
    stream = session.open() if protocol == "yamux" else session.open("name", timeout=20)
    stream.send(b"x")
    assert stream.receive(timeout=20) == b"x"
    return lambda: stream.receive(timeout=20)


def test_a_killed_peer_ends_every_call(door: Door, profile: Path) -> None:
    protocols = [text_of(kind, profile) for kind in KINDS]
    ended: dict[str, BaseException] = {}

    def wait(protocol: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as problem:
            ended[protocol] = problem

    with peer_process(*protocols) as (peer, urls):
        sessions = [
            door.connect(url, protocol=protocol)
            for url, protocol in zip(urls, protocols, strict=True)
        ]
        waits = [
            threading.Thread(target=wait, args=(protocol, waiting_call(session, protocol)))
            for session, protocol in zip(sessions, protocols, strict=True)
        ]
        for waiting in waits:
            waiting.start()
        peer.kill()
        for waiting in waits:
            waiting.join(30)
        for session in sessions:
            session.wait_closed(timeout=20)
        with pytest.raises(polymux.SessionClosed):
            sessions[0].open("again")
    assert set(ended) == set(protocols)
    assert all(isinstance(problem, polymux.SessionClosed) for problem in ended.values()), ended
