"""The omnistreams peer and the bare WebSocket peer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.interop.node_peer import EXIT_CRASH, Peer, PeerFailed, digest, raw_bytes

pytestmark = pytest.mark.usefixtures("node_peers")

Sides = tuple[Peer, Peer]


@contextlib.asynccontextmanager
async def pair(acceptor: str, dialer: str, *arguments: str) -> AsyncIterator[Sides]:
    """The acceptor and the dialer, connected."""
    async with (
        Peer.listen(acceptor) as one,
        Peer.connect(dialer, one.port, *arguments) as other,
    ):
        await one.event("session")
        await other.event("session")
        yield one, other


def omnistreams() -> contextlib.AbstractAsyncContextManager[Sides]:
    return pair("omnistreams", "omnistreams")


def bare_against_omnistreams() -> contextlib.AbstractAsyncContextManager[Sides]:
    """An omnistreams acceptor, and a dialer that sends it raw messages and shows its answers."""
    return pair("omnistreams", "ws", "--path", "/omnistreams")


async def test_omnistreams_echo_comes_back_on_streams_of_the_same_metadata() -> None:
    async with omnistreams() as sides:
        for peer in sides:
            reply = await peer.call("exchange", streams=20, count=10, size=1_000, seed=3)
            assert [r["sha256"] for r in reply["results"]] == [
                digest(raw_bytes(3 + i, 10_000)) for i in range(20)
            ]
            assert {r["messages"] for r in reply["results"]} == {10}


async def test_a_writer_sends_no_more_than_was_requested() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold", messages=True)
        opened = await dialer.call("open", metadata="Grüße ✓")
        sending = dialer.begin("send", stream=opened["stream"], count=5, size=4, end=True)
        theirs = await acceptor.event("stream", name="Grüße ✓")
        await acceptor.call("request", stream=theirs["stream"], amount=3)
        got = await acceptor.call("wait", stream=theirs["stream"], messages=3)
        assert (got["messages"], got["ended"]) == (3, False)
        status = await dialer.call("status", stream=opened["stream"])
        assert (status["messages"], status["granted"], status["credit"]) == (3, 3, 0)
        await acceptor.call("request", stream=theirs["stream"], amount=7)
        end = await acceptor.event("end", stream=theirs["stream"])
        assert (end["messages"], end["sha256"]) == (5, digest(raw_bytes(0, 20)))
        first = await acceptor.event("message", index=0)
        assert bytes.fromhex(first["hex"]) == raw_bytes(0, 4)
        assert (await dialer.result(sending))["ended"]


async def test_a_reader_can_be_told_to_keep_messages_on_order() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        opened = await dialer.call("open", metadata="many")
        sending = dialer.begin("send", stream=opened["stream"], count=1_000, size=3, end=True)
        theirs = await acceptor.event("stream")
        await acceptor.call("keep", stream=theirs["stream"], window=10)
        assert (await dialer.call("wait", stream=opened["stream"], credit=10))["granted"] >= 10
        end = await acceptor.event("end", stream=theirs["stream"])
        assert (end["messages"], end["sha256"]) == (1_000, digest(raw_bytes(0, 3_000)))
        assert 1_000 <= end["granted"] <= 1_010
        await dialer.result(sending)


async def test_a_writer_can_be_made_to_exceed_its_credit() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        opened = await dialer.call("open", metadata="greedy")
        forced = await dialer.call("send", stream=opened["stream"], text="x", force=True)
        assert forced["credit"] == -1
        theirs = await acceptor.event("stream")
        got = await acceptor.call("wait", stream=theirs["stream"], messages=1)
        assert (got["granted"], got["received"]) == (0, 1)


async def test_a_cancel_by_the_reader_stops_the_writer() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="collect", window=4)
        opened = await dialer.call("open", metadata="a")
        theirs = await acceptor.event("stream")
        await acceptor.call("cancel", stream=theirs["stream"])
        told = await dialer.event("terminated", stream=opened["stream"])
        assert not told["aborted"]
        assert (await acceptor.event("terminated"))["aborted"]
        await acceptor.call("mode", incoming="reject")
        again = await dialer.call("open", metadata="b")
        await dialer.event("terminated", stream=again["stream"])


async def test_a_cancel_by_the_writer_is_silent() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="collect")
        opened = await dialer.call("open")
        assert opened["metadata_hex"] == ""
        await dialer.call("cancel", stream=opened["stream"])
        await dialer.call("control", text="after it")
        await acceptor.event("control")
        assert len(acceptor.seen("stream")) == 1
        assert acceptor.seen("terminated") == acceptor.seen("end") == []


async def test_control_messages_go_both_ways() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("echo_control")
        for data in (b"", b"\x00\xff", "✓".encode()):
            await dialer.call("control", hex=data.hex())
            for peer in (acceptor, dialer):
                assert (await peer.event("control"))["hex"] == data.hex()


async def test_256_streams_are_open_at_once_and_no_more() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold", quiet=True)
        ids = [(await dialer.call("open", metadata=str(i)))["id"] for i in range(256)]
        assert ids == list(range(256))
        with pytest.raises(PeerFailed, match="all 256 stream ids are in use"):
            await dialer.call("open")


async def test_omnistreams_benchmark_commands_count_what_was_sent() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="sink", window=200)
        sink = acceptor.begin("sink", bytes=1_000_001, streams=3)
        blast = await dialer.call("blast", bytes=1_000_001, size=1_000, streams=3)
        sunk = await acceptor.result(sink)
        assert blast["messages"] == sunk["messages"] == 1_002
        assert (blast["bytes"], sunk["bytes"], sunk["streams"]) == (1_000_001, 1_000_001, 3)
        done = await dialer.call("openclose", count=600, in_flight=50)
        assert (done["count"], done["in_flight"]) == (600, 50)
        assert (await acceptor.call("sink", streams=603))["bytes"] == 1_000_001


async def test_omnistreams_speaks_the_older_numbering() -> None:
    async with bare_against_omnistreams() as (peer, bare):
        await bare.call("mode", incoming="hold")
        await peer.call("mode", incoming="hold", messages=True)
        await bare.call("send", hex="00057b7d")
        theirs = await peer.event("stream", id=5, name="{}")
        await peer.call("request", stream=theirs["stream"], amount=2)
        assert (await bare.event("message"))["hex"] == "040502"
        await bare.call("send", hex="010568656c6c6f")
        await bare.call("send", hex="0105")
        await bare.call("send", hex="0205")
        end = await peer.event("end", stream=theirs["stream"])
        assert (end["messages"], end["sha256"]) == (2, digest(b"hello"))
        await peer.call("control", text="hi")
        assert (await bare.event("message"))["hex"] == "056869"


async def test_a_request_above_255_is_split_or_wraps_if_sent_raw() -> None:
    async with bare_against_omnistreams() as (peer, bare):
        await bare.call("mode", incoming="hold")
        await peer.call("mode", incoming="hold")
        await bare.call("send", hex="0000")
        theirs = await peer.event("stream")
        await peer.call("request", stream=theirs["stream"], amount=300)
        assert [(await bare.event("message"))["hex"] for _ in "ab"] == ["0400ff", "04002d"]
        await peer.call("request", stream=theirs["stream"], amount=300, raw=True)
        assert (await bare.event("message"))["hex"] == "04002c"


async def test_a_crash_of_the_package_is_an_event_and_an_exit_code() -> None:
    async with bare_against_omnistreams() as (peer, bare):
        await bare.call("send", hex="0209")  # the end of a stream that never was
        crash = await peer.event("crash")
        assert crash["kind"] == "exception"
        assert "undefined" in crash["message"]
        assert await peer.exit() == EXIT_CRASH
        with pytest.raises(PeerFailed, match=r"omnistreams crashed: .*undefined"):
            await peer.call("streams")


async def test_the_bare_peer_echoes_text_binary_and_fragmented_messages() -> None:
    async with pair("ws", "ws") as (_, dialer):
        await dialer.call("mode", incoming="hold")
        await dialer.call("send", text="Grüße")
        echo = await dialer.event("message")
        assert (echo["binary"], echo["sha256"]) == (False, digest("Grüße".encode()))
        for command in ("send", "fragments"):
            await dialer.call(command, size=200_000, seed=6)
            echo = await dialer.event("message")
            assert (echo["binary"], echo["sha256"]) == (True, digest(raw_bytes(6, 200_000)))


async def test_the_bare_peer_stops_reading_and_goes_on() -> None:
    async with pair("ws", "ws") as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        await acceptor.call("pause")
        await dialer.call("send", text="wait")
        with pytest.raises(PeerFailed, match=r"no .*message"):
            await acceptor.event("message", timeout=0.1)
        await acceptor.call("resume")
        assert (await acceptor.event("message"))["bytes"] == 4


async def test_the_bare_peer_answers_pings_and_tells_close_codes() -> None:
    async with pair("ws", "ws") as (acceptor, dialer):
        await dialer.call("ping", text="ab")
        assert (await acceptor.event("ping"))["hex"] == "6162"
        assert (await dialer.event("pong"))["hex"] == "6162"
        await dialer.call("disconnect", code=4001, reason="enough")
        gone = await acceptor.event("disconnected")
        assert (gone["code"], gone["reason"]) == (4001, "enough")


async def test_a_lost_connection_terminates_every_stream() -> None:
    async with omnistreams() as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        opened = await dialer.call("open", metadata="cut")
        theirs = await acceptor.event("stream")
        await dialer.call("disconnect", abrupt=True)
        assert (await acceptor.event("disconnected"))["code"] == 1006
        for peer, number in ((acceptor, theirs["stream"]), (dialer, opened["stream"])):
            assert not (await peer.event("terminated", stream=number))["aborted"]


async def test_the_bare_peer_blasts_and_sinks() -> None:
    async with pair("ws", "ws") as (acceptor, dialer):
        await acceptor.call("mode", incoming="sink")
        sink = acceptor.begin("sink", messages=1_001)
        blast = await dialer.call("blast", bytes=100_001, size=100)
        sunk = await acceptor.result(sink)
        assert (blast["messages"], sunk["bytes"]) == (1_001, 100_001)
