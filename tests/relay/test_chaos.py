"""The chaos proxy: what each fault does, and that it leaves nothing behind and no peer waiting."""

import asyncio
import contextlib
import gc
import json
import stat
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.relay.chaos_peers import LOCAL, ask, echo, faulty, fill, open_named, rows_in

import polymux
from polymux.core.errors import PolymuxError, SessionClosed, StreamAborted
from polymux.core.side import DIALER
from polymux.metrics import prometheus_text
from polymux.relay import BadRule, CannotRelay, ChaosProxy
from polymux.relay.faults.connections import FaultyTransport
from polymux.relay.faults.relayed import FaultyConnection
from polymux.relay.faults.rules import RuleSet, parse_rule
from polymux.relay.faults.streams import FaultyDirection

DUPLEX = ("mplex", "nerdbank:version=1", "nerdbank", "yamux")
WITH_CREDIT = ("nerdbank:version=2", "nerdbank", "yamux")
DATA = bytes(range(256)) * 400
BRIEF = polymux.Timeouts(close=0.2)


async def read_all(session: polymux.Session) -> None:
    """Read every stream to its end."""

    async def read(stream: polymux.Stream) -> None:
        async for _ in stream:
            pass

    await session.serve_streams(read)


async def until(condition: object) -> None:
    """Wait until a condition holds; the caller has a timeout."""
    assert callable(condition)
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("protocol", DUPLEX)
async def test_without_rules_it_is_transparent(protocol: str) -> None:
    async with faulty(protocol) as (client, proxy):
        assert await asyncio.gather(*(ask(client, DATA) for _ in range(20))) == [DATA] * 20
        stream = await open_named(client)
        await stream.send(b"reset, please")
        with pytest.raises(StreamAborted):
            await stream.receive()
        await until(lambda: not proxy.stats.open)
        assert proxy.stats.streams == 21


@pytest.mark.parametrize(
    "rule",
    [
        "* : delay 20ms jitter=5ms",
        "* : hold 50ms",
        "* : rate 1M",
        "* : reorder time=50ms",
        "* : latency latency=10 jitter=5",
        "* : bandwidth rate=5000",
        "* : slicer 1000 size_variation=300 delay=10",
        "* : slow_close delay=50",
        "every=2 after=10k : delay 20ms",
        "after=10k : hold 10ms toward=dialer",
        "* : delay 10ms",
    ],
)
async def test_faults_that_only_take_time_change_no_content(rule: str) -> None:
    async with faulty("mplex", [rule]) as (client, proxy):
        assert await asyncio.gather(*(ask(client, DATA) for _ in range(4))) == [DATA] * 4
    assert sum(proxy.rules.injected.values()) >= 1
    assert proxy.stats.open == 0


@pytest.mark.parametrize("protocol", DUPLEX)
async def test_a_delay_holds_up_its_stream_and_no_other(protocol: str) -> None:
    async with faulty(protocol, ["nth=2 : delay 200ms"]) as (client, _):
        streams = [await open_named(client) for _ in range(3)]
        for stream in streams:
            await stream.send(b"now")
        began = time.monotonic()
        slow = asyncio.ensure_future(streams[1].receive())
        assert await streams[0].receive() == b"now"
        assert await streams[2].receive() == b"now"
        assert not slow.done()
        assert await slow == b"now"
        assert time.monotonic() - began >= 0.35  # 200 ms in each direction


async def test_a_hold_waits_once() -> None:
    async with faulty("mplex", ["* : hold 200ms toward=upstream"]) as (client, _):
        stream = await open_named(client)
        began = time.monotonic()
        await stream.send(b"one")
        assert await stream.receive() == b"one"
        first = time.monotonic() - began
        await stream.send(b"two")
        assert await stream.receive() == b"two"
        assert first >= 0.2
        assert time.monotonic() - began < first + 0.2


async def test_a_rate_bounds_the_bytes_of_a_second() -> None:
    async with faulty("nerdbank", ["* : rate 200k toward=upstream"]) as (client, _):
        began = time.monotonic()
        assert await ask(client, bytes(100_000)) == bytes(100_000)
        assert time.monotonic() - began >= 0.4


async def test_chunks_of_other_streams_overtake_a_reordered_one() -> None:
    async with faulty("mplex", ["name~late : reorder chunks=2 time=20s toward=upstream"]) as (
        client,
        _,
    ):
        late, other = await open_named(client, "late"), await open_named(client, "other")
        await late.send(b"first")
        reading = asyncio.ensure_future(late.receive())
        for text in (b"second", b"third"):
            assert not reading.done()
            await other.send(text)
            assert await other.receive() == text
        assert await reading == b"first"


async def test_two_reordered_streams_that_pass_each_other_lose_no_chunk() -> None:
    connection = FaultyConnection(RuleSet(), "mplex", lambda text: None)
    stream = SimpleNamespace(
        connection=connection, note=lambda *_: None, on_change=lambda: None,
        on_direction_over=lambda _: None,
    )  # fmt: skip
    passed: list[list[bytes]] = [[], [], []]
    directions = []
    for got in passed:
        direction = FaultyDirection(cast(Any, stream), DIALER)
        direction.pump = cast(
            Any, SimpleNamespace(forward=got.append, resume=lambda: None, source=None, bytes=0)
        )
        directions.append(direction)
    for direction in directions[:2]:
        direction.add(1, parse_rule("* : reorder chunks=1 time=20s"))
        assert direction.read_limit() != 0  # the fault has begun
    chunks = [b"%d" % number for number in range(3000)]
    for chunk in chunks:
        directions[0].content(chunk)
        directions[1].content(chunk)
    assert passed == [[], [], []]
    directions[2].content(b"passes both")
    assert passed == [chunks, chunks, [b"passes both"]]
    for direction in directions:
        direction.closed()


@pytest.mark.parametrize("protocol", DUPLEX)
async def test_a_reset_reaches_both_peers_once_the_bytes_have_passed(protocol: str) -> None:
    ended: asyncio.Queue[int] = asyncio.Queue()

    async def count(session: polymux.Session) -> None:
        async def read(stream: polymux.Stream) -> None:
            size = 0
            try:
                async for chunk in stream:
                    size += len(chunk)
            except StreamAborted:
                ended.put_nowait(size)

        await session.serve_streams(read)

    async with faulty(protocol, ["after=1000 : reset"], count) as (client, proxy):
        stream = await open_named(client)
        await stream.send(bytes(900))
        await asyncio.sleep(0.05)
        await stream.send(bytes(900))
        with pytest.raises(StreamAborted):
            await stream.receive()
        assert await ended.get() <= 1000
        assert proxy.rules.injected == {1: 1}


async def test_an_early_end_cuts_the_content_exactly() -> None:
    async with faulty("nerdbank", ["after=1000 : end-early toward=upstream"]) as (client, _):
        assert await ask(client, bytes(5000)) == bytes(1000)


@pytest.mark.parametrize("protocol", [*WITH_CREDIT, "omnistreams", "minmux"])
async def test_withheld_credit_is_one_stall_in_the_capture(protocol: str, tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"

    async def read(session: polymux.Session) -> None:
        if isinstance(session, polymux.MinmuxSession):
            async for _ in session.receiver(1):
                pass
            await session.wait_closed()
        else:
            await read_all(session)

    async with faulty(protocol, ["* : withhold-credit 300ms toward=upstream"], read, out) as (
        client,
        proxy,
    ):
        minmux = isinstance(client, polymux.MinmuxSession)
        stream = client.sender(1) if minmux else await open_named(client)
        for _ in range(300):
            await stream.send(bytes(10_000))
        await stream.end()
        await until(lambda: not proxy.stats.open)
    stalls = [row for row in rows_in(out, "stalls") if row["duration_us"] >= 290_000]
    blamed = [row for row in stalls if row["cause"] == "no-credit"]
    assert len(blamed) == 1
    assert blamed[0]["sender"] == "dialer"
    assert proxy.rules.injected == {1: 1}


@pytest.mark.parametrize("protocol", [*WITH_CREDIT, "omnistreams"])
async def test_dribbled_credit_slows_a_sender_down(protocol: str) -> None:
    size = "20" if protocol == "omnistreams" else "100k"
    async with faulty(
        protocol, [f"* : dribble-credit {size} interval=20ms toward=upstream"], read_all
    ) as (client, proxy):
        stream = await open_named(client)
        for _ in range(300):
            await stream.send(bytes(10_000))
        await stream.end()
        await until(lambda: not proxy.stats.open)
    assert proxy.stats.bytes_a == 3_000_000


@pytest.mark.parametrize("protocol", ["nerdbank", "yamux"])
async def test_a_starved_stream_stalls_alone_and_ends_with_its_session(protocol: str) -> None:
    async with faulty(protocol, ["nth=1 : starve toward=upstream"]) as (client, proxy):
        starved = await open_named(client)
        with pytest.raises(TimeoutError):
            await fill(starved, 0.3)
        assert await ask(client, DATA) == DATA
        starved.abort()
        await until(lambda: not proxy.stats.open)


async def test_what_a_removed_rule_holds_up_goes_on() -> None:
    async with faulty("nerdbank", ["* : starve", "* : delay 60s", "* : hold 60s"]) as (
        client,
        proxy,
    ):
        stream = await open_named(client)
        await stream.send(b"at last")
        reading = asyncio.ensure_future(stream.receive())
        await until(lambda: proxy.rules.injected[1])
        for number in (1, 3, 2):
            await asyncio.sleep(0.02)
            assert not reading.done()
            proxy.rules.remove(number)
        assert await reading == b"at last"


async def test_limited_data_ends_the_connection() -> None:
    async with faulty("mplex", ["* : limit_data bytes=20000 toward=upstream"]) as (client, proxy):
        with pytest.raises((SessionClosed, StreamAborted)):
            await ask(client, bytes(100_000))
        await client.wait_closed()
        assert proxy.rules.injected == {1: 1}


async def test_reset_peer_resets_the_connection() -> None:
    async with faulty("mplex", ["* : reset_peer timeout=100"]) as (client, _):
        await client.wait_closed()
        assert client.failure is not None
        assert "reset" in str(client.failure).lower()


async def test_a_timeout_discards_everything_and_then_ends_the_connection() -> None:
    async with faulty("mplex", ["* : timeout timeout=200"]) as (client, _):
        began = time.monotonic()
        with pytest.raises((SessionClosed, StreamAborted)):
            await ask(client)
        assert time.monotonic() - began >= 0.15


async def test_faults_of_connections_count_connections() -> None:
    async with (
        asyncio.timeout(20),
        polymux.serve(echo, LOCAL, protocol="mplex") as server,
        ChaosProxy(
            LOCAL, server.url, protocol="mplex", rules=["every=2 : reset_peer timeout=0"]
        ) as proxy,
    ):
        answers = []
        for _ in range(4):
            try:
                async with polymux.connect(proxy.url, protocol="mplex") as client:
                    answers.append(await ask(client))
            except PolymuxError:
                answers.append(b"")
    assert answers == [b"hello", b"", b"hello", b""]


async def test_a_faulty_transport_tells_its_session_to_pause() -> None:
    rules = ["* : bandwidth rate=1 toward=upstream"]
    async with faulty("mplex", rules, timeouts=BRIEF) as (client, _):
        stream = await open_named(client)
        with pytest.raises(TimeoutError):
            await fill(stream, 0.4)
        held = [each for each in gc.get_objects() if isinstance(each, FaultyTransport)]
        assert held
        assert max(each.get_write_buffer_size() for each in held) < 2_000_000
        stream.abort()


async def test_a_faulty_pipe_to_a_child_that_does_not_read_pauses_its_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        asyncio.timeout(20),
        ChaosProxy(
            LOCAL, "exec:sleep 60", protocol="mplex", rules=["* : slow_close 1"], timeouts=BRIEF
        ) as proxy,
    ):
        client = await polymux.connect(proxy.url, protocol="mplex", timeouts=BRIEF)
        stream = await client.open("work")
        with pytest.raises(TimeoutError):
            await fill(stream, 0.3)
        assert client.failure is None
        client.abort()
    # asyncio's transports raise it in a callback, for which a test has only the log
    assert "NotImplementedError" not in caplog.text


class SlowTransport:
    """A transport that sends nothing until it is told to; its protocol counts calls."""

    def __init__(self) -> None:
        self.unsent = bytearray()
        self.sent = bytearray()
        self.calls: list[str] = []

    def write(self, data: bytes) -> None:
        self.unsent += data

    def send(self) -> None:
        self.sent += self.unsent
        self.unsent.clear()

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def is_closing(self) -> bool:
        return False

    def get_protocol(self) -> object:
        return SimpleNamespace(
            pause_writing=lambda: self.calls.append("pause"),
            resume_writing=lambda: self.calls.append("resume"),
        )


def faulty_over(slow: SlowTransport, *rules: str) -> tuple[FaultyTransport, list[bytes]]:
    """A faulty transport with rules, and what had been given on whenever it ended."""
    ended: list[bytes] = []
    transport = FaultyTransport(
        cast(Any, slow), lambda _: ended.append(bytes(slow.unsent)), lambda _: None
    )
    for number, text in enumerate(rules, 1):
        transport.add(number, parse_rule(text))
    return transport, ended


async def test_a_faulty_transport_gives_a_full_transport_nothing_more() -> None:
    slow = SlowTransport()
    transport, _ = faulty_over(slow, "* : slow_close delay=1")
    content = bytes(range(250)) * 4000
    transport.write(content[:500_000])
    assert len(slow.unsent) < 262_144  # the least at which a transport pauses its session
    assert slow.calls == ["pause"]
    transport.write(content[500_000:])  # as a session that the transport has resumed
    assert len(slow.unsent) < 262_144
    assert slow.calls == ["pause", "pause"]
    async with asyncio.timeout(20):
        while len(slow.sent) < len(content):
            assert len(slow.unsent) < 262_144
            slow.send()
            await asyncio.sleep(0.001)
    assert slow.sent == content
    assert slow.calls == ["pause", "pause", "resume"]
    transport.release()


@pytest.mark.parametrize(
    ("rules", "given"),
    [
        (["* : limit_data bytes=5"], b"01234"),
        (["* : limit_data bytes=10"], b"0123456789"),
        (["* : limit_data bytes=12"], b"0123456789ab"),
        (["* : limit_data bytes=0"], b""),
        (["* : latency latency=20", "* : limit_data bytes=5"], b"01234"),
        (["* : limit_data bytes=5", "* : latency latency=20"], b"01234"),
        (["* : slicer 2 delay=1000", "* : limit_data bytes=5"], b"01234"),
    ],
)
async def test_limited_data_ends_the_connection_behind_the_last_byte(
    rules: list[str], given: bytes
) -> None:
    slow = SlowTransport()
    transport, ended = faulty_over(slow, *rules)
    for data in (b"0123456789", b"abcdefghij", b"klm"):
        transport.write(data)
    async with asyncio.timeout(20):
        await until(lambda: ended)
    assert ended == [given]
    transport.write(b"late")
    assert slow.unsent == given
    transport.release()


async def test_every_fault_is_a_comment_in_the_capture(tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    rules = ["name~a : delay 10ms", "name~b : reset", "* : latency 5"]
    async with faulty("mplex", rules, out=out) as (client, proxy):
        await ask(client, name="a")
        with contextlib.suppress(StreamAborted):
            await ask(client, name="b")
        await until(lambda: not proxy.stats.open)
    text = out.read_bytes()
    for comment in (
        b"chaos: delay 10ms on d1",
        b"chaos: reset on d3",
        b"chaos: latency 5 on the connection",
        b"vantage=middle",
    ):
        assert comment in text


async def test_a_lost_upstream_is_passed_on(tmp_path: Path) -> None:
    async with ChaosProxy(
        LOCAL, f"unix://{tmp_path}/nothing", protocol="mplex", rules=["* : starve"]
    ) as proxy:
        async with asyncio.timeout(20):
            async with polymux.connect(proxy.url, protocol="mplex") as client:
                await client.wait_closed()
        assert proxy.refused == 1
        assert "nothing" in proxy.failure


async def test_a_dialer_that_is_refused_counts_for_no_rule() -> None:
    async with (
        asyncio.timeout(20),
        polymux.serve(echo, LOCAL, protocol="mplex") as server,
        ChaosProxy(
            LOCAL, server.url, protocol="mplex", rules=["nth=1 : reset_peer"], allow=["192.0.2.1"]
        ) as proxy,
    ):
        with contextlib.suppress(PolymuxError):
            async with polymux.connect(proxy.url, protocol="mplex") as client:
                await client.wait_closed()
        assert proxy.connections == 0
        assert proxy.rules.injected == {1: 0}
        assert not proxy.rules.on_change


async def test_metrics_count_streams_and_injected_faults() -> None:
    async with faulty("mplex", ["* : delay 1ms"]) as (client, proxy):
        await ask(client)
        text = prometheus_text(proxy).decode()
    assert "polymux_relay_streams_total 1" in text
    assert 'polymux_chaos_injected_total{rule="* : delay 1ms"} 2' in text


def test_what_cannot_be_relayed_is_refused_at_once() -> None:
    with pytest.raises(CannotRelay, match="seeded"):
        ChaosProxy(LOCAL, LOCAL, protocol="nerdbank:version=3,seeded=1000")
    with pytest.raises(BadRule, match="no credit"):
        ChaosProxy(LOCAL, LOCAL, protocol="mplex", rules=["* : withhold-credit 1s"])


# Leaks and wedges


@pytest.mark.parametrize(
    "rule",
    [
        "* : delay 60s",
        "* : hold 60s",
        "* : rate 1",
        "* : reorder chunks=9 time=60s",
        "* : starve",
        "* : withhold-credit 60s",
        "* : dribble-credit 1 interval=60s",
        "* : end-early",
        "* : reset",
        "after=60s : reset",
        "* : latency 60000",
        "* : timeout 0",
        "* : slow_close 60000",
        "* : bandwidth 1",
    ],
)
async def test_no_fault_keeps_a_connection_whose_client_is_gone(rule: str) -> None:
    async with (
        asyncio.timeout(20),
        polymux.serve(echo, LOCAL, protocol="nerdbank") as server,
        ChaosProxy(
            LOCAL, server.url, protocol="nerdbank", timeouts=BRIEF,
            rules=[rule, "* : illegal:nerdbank.unknown-code"],
        ) as proxy,
    ):  # fmt: skip
        client = await polymux.connect(proxy.url, protocol="nerdbank")
        opening = asyncio.ensure_future(client.open("work"))
        await asyncio.wait([opening], timeout=0.1)
        if opening.done() and opening.exception() is None:
            sending = asyncio.ensure_future(opening.result().send(bytes(500_000)))
            await asyncio.wait([sending], timeout=0.05)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        client.abort()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await until(lambda: not server.sessions and not proxy.stats.open)
        await until(lambda: not proxy.rules.on_change)


async def test_a_closed_connection_is_freed() -> None:
    async with faulty("mplex", ["* : delay 1ms", "* : latency 1"]) as (client, proxy):
        await ask(client)
        await client.close()
        await until(lambda: not proxy.stats.open and not proxy.rules.on_change)
        await asyncio.sleep(0.05)
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each).__name__ == "ChaosConnection"]
        assert len(kept) <= 1, kept  # the frame of the last handler may hold one
        assert weakref.ref(client)() is client


# The control socket


async def ask_control(path: Path, *requests: object) -> list[dict[str, object]]:
    reader, writer = await asyncio.open_unix_connection(path)
    answers = []
    for request in requests:
        line = request if isinstance(request, bytes) else json.dumps(request).encode()
        writer.write(line + b"\n")
        answers.append(json.loads(await reader.readline()))
    writer.close()
    await writer.wait_closed()
    return answers


async def test_rules_are_listed_added_and_removed_while_streams_are_open(tmp_path: Path) -> None:
    path = tmp_path / "control"
    async with faulty("mplex", control=f"unix://{path}") as (client, proxy):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        stream = await open_named(client)
        await stream.send(b"one")
        assert await stream.receive() == b"one"
        (added,) = await ask_control(path, {"do": "add", "rule": "* : starve toward=upstream"})
        assert added["number"] == 1
        await stream.send(b"two")
        reading = asyncio.ensure_future(stream.receive())
        await until(lambda: proxy.rules.injected[1])
        assert not reading.done()
        listed, removed, empty = await ask_control(
            path, {"do": "list"}, {"do": "remove", "number": 1}, {"do": "list"}
        )
        rule = {"number": 1, "rule": "* : starve toward=upstream", "injected": 1}
        assert listed["rules"] == [rule]
        assert removed["rules"] == empty["rules"] == []
        assert await reading == b"two"
        (slow,) = await ask_control(path, {"do": "add", "rule": "* : latency 100"})
        assert slow["number"] == 2
        began = time.monotonic()
        await stream.send(b"three")
        assert await stream.receive() == b"three"
        assert time.monotonic() - began >= 0.2
    assert not path.exists()


@pytest.mark.parametrize(
    ("request_line", "words"),
    [
        (b"nonsense", "a line of JSON"),
        (b"[" * 4000, "a line of JSON"),
        (b"[]", "no such request"),
        (b'{"do": "dance"}', "no such request"),
        (b'{"do": "add"}', "no such request"),
        (b'{"do": "add", "rule": 3}', "no such request"),
        (b'{"do": "remove", "number": true}', "no such request"),
        (b'{"do": "remove", "number": 7}', "no rule has the number 7"),
        (b'{"do": "add", "rule": "* : delya"}', "no fault is named"),
        (b'{"do": "add", "rule": "* : withhold-credit 1s"}', "no credit"),
    ],
)
async def test_a_bad_request_is_answered_with_what_is_possible(
    request_line: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "control"
    async with faulty("mplex", control=f"unix://{path}"):
        (answer,) = await ask_control(path, request_line)
        assert words in str(answer["error"])
