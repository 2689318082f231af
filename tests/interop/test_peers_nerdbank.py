"""The nerdbank-streams peer: offers, acceptance, anonymous and seeded channels, error texts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.interop.node_peer import Peer, PeerFailed, digest, raw_bytes

pytestmark = pytest.mark.usefixtures("node_peers")

Sides = tuple[Peer, Peer]


@contextlib.asynccontextmanager
async def pair(*arguments: str) -> AsyncIterator[Sides]:
    """The acceptor, which lets offers wait, and the dialer."""
    async with (
        Peer.listen("nerdbank", *arguments) as acceptor,
        Peer.connect("nerdbank", acceptor.port, *arguments) as dialer,
    ):
        await acceptor.event("session")
        await dialer.event("session")
        await acceptor.call("mode", incoming="wait")
        yield acceptor, dialer


@contextlib.asynccontextmanager
async def raw(peer: Peer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare TCP connection to a listening peer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    await peer.event("connected")
    try:
        yield reader, writer
    finally:
        writer.close()


versions = pytest.mark.parametrize("version", ["1", "2", "3"])


@versions
async def test_offer_and_acceptance_meet_by_name_in_either_order(version: str) -> None:
    async with pair("--version", version) as (acceptor, dialer):
        offer = dialer.begin("offer", name="first offered")
        await acceptor.event("offered", name="first offered", accepted=False)
        accepted = await acceptor.call("accept", name="first offered", incoming="echo")
        offered = await dialer.result(offer)
        assert offered["id"] == accepted["id"]
        await dialer.call("ping", stream=offered["stream"])

        acceptance = acceptor.begin("accept", name="first awaited", incoming="echo")
        await acceptor.call("mode", incoming="echo", name="other")  # so it has begun to wait
        offered = await dialer.call("offer", name="first awaited")
        await acceptor.event("offered", name="first awaited", accepted=True)
        assert (await acceptor.result(acceptance))["id"] == offered["id"]
        await dialer.call("ping", stream=offered["stream"])


@versions
async def test_a_rejected_offer_is_told_to_its_maker(version: str) -> None:
    async with pair("--version", version) as (acceptor, dialer):
        offer = dialer.begin("offer", name="unwanted")
        offered = await acceptor.event("offered", name="unwanted")
        await acceptor.call("reject", id=offered["id"])
        with pytest.raises(PeerFailed, match="the offer was not accepted"):
            await dialer.result(offer)
        await acceptor.call("mode", incoming="reject", name="never")
        with pytest.raises(PeerFailed, match="the offer was not accepted"):
            await dialer.call("offer", name="never")
        await acceptor.call("mode", incoming="echo")
        await dialer.call("ping")


@versions
async def test_a_cancelled_offer_can_no_longer_be_accepted(version: str) -> None:
    async with pair("--version", version) as (acceptor, dialer):
        offer = dialer.begin("offer", name="regretted")
        offered = await acceptor.event("offered", name="regretted")
        assert (await dialer.event("offering"))["id"] == offered["id"]
        await dialer.call("cancel", name="regretted", reason="changed my mind")
        with pytest.raises(PeerFailed, match="the offer was not accepted"):
            await dialer.result(offer)
        await acceptor.call("mode", incoming="echo")
        await dialer.call("ping")
        with pytest.raises(PeerFailed, match="No channel with ID"):
            await acceptor.call("accept", id=offered["id"])


async def test_a_cancelled_acceptance_leaves_the_offer_waiting() -> None:
    async with pair() as (acceptor, dialer):
        acceptance = acceptor.begin("accept", name="later")
        await acceptor.call("cancel", what="accept", name="later")
        with pytest.raises(PeerFailed, match="accept"):
            await acceptor.result(acceptance)
        offer = dialer.begin("offer", name="later")
        await acceptor.event("offered", name="later", accepted=False)
        await acceptor.call("accept", name="later")
        await dialer.result(offer)


@versions
async def test_an_anonymous_channel_is_accepted_by_id_and_keeps_its_early_content(
    version: str,
) -> None:
    async with pair("--version", version) as (acceptor, dialer):
        made = await dialer.call("create")
        assert made["name"] == ""
        sending = dialer.begin("send", stream=made["stream"], size=60_000, seed=4)
        offered = await acceptor.event("offered", name="")
        assert offered["id"] == made["id"]
        accepted = await acceptor.call("accept", id=made["id"], incoming="late", size=10)
        await dialer.result(sending)
        # Now, not before: the package can lose an end that comes while it accepts.
        await dialer.call("end", stream=made["stream"])
        end = await acceptor.event("end", stream=accepted["stream"])
        assert end["sha256"] == digest(raw_bytes(4, 60_000))
        answer = await dialer.call("wait", stream=made["stream"], until="end")
        assert answer["sha256"] == digest(raw_bytes(0, 10))


@versions
async def test_error_texts_travel_in_both_directions_from_version_2_on(version: str) -> None:
    async with pair("--version", version) as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        for first, second in ((dialer, acceptor), (acceptor, dialer)):
            mine = await dialer.call("offer", name="channel")
            theirs = await acceptor.event("stream", id=mine["id"])
            number = {dialer: mine["stream"], acceptor: theirs["stream"]}
            await first.call("reset", stream=number[first], text="Ärger")
            close = await second.event("close", stream=number[second])
            text = None if version == "1" else "Received error from remote side: Error: Ärger"
            assert close["error"] == text
            assert (await first.event("close", stream=number[first]))["aborted"]
        await acceptor.call("mode", incoming="echo")
        await dialer.call("ping")


async def test_seeded_channels_need_no_offer() -> None:
    async with pair("--seeded", "102400+500+102400") as (acceptor, dialer):
        for number in range(3):
            await acceptor.call("accept", id=number, incoming="echo")
            mine = await dialer.call("accept", id=number)
            await dialer.call("send", stream=mine["stream"], size=5_000, seed=number, end=True)
            got = await dialer.call("wait", stream=mine["stream"], until="end")
            assert got["sha256"] == digest(raw_bytes(number, 5_000))
        assert not acceptor.seen("offered")
        await acceptor.call("mode", incoming="echo")
        assert (await dialer.call("ping"))["id"] == 4


async def test_a_channel_stays_open_if_told_never_to_dispose_it() -> None:
    async with pair("--dispose", "never") as (acceptor, dialer):
        await acceptor.call("mode", incoming="echo")
        reply = await dialer.call("exchange", names=["kept"], size=100)
        status = reply["results"][0]
        assert (status["ended"], status["finished"], status["closed"]) == (True, True, False)
        await dialer.call("reset", stream=status["stream"])
        close = await acceptor.event("close", name="kept")
        assert (close["ended"], close["error"]) == (True, None)


OFFERS = {  # as in the protocol notes: the default window is 102400
    ("--version", "1"): "00 0000000{id} 0004 6563686f",
    ("--version", "3"): "94 00 01 01 c4 0b 92 a4 6563686f ce 00019000",
    ("--version", "3", "--window", "4096"): "94 00 01 01 c4 09 92 a4 6563686f cd 1000",
}


@pytest.mark.parametrize(("arguments", "offer"), OFFERS.items())
async def test_an_offer_looks_on_the_wire_as_documented(
    arguments: tuple[str, ...], offer: str
) -> None:
    async with Peer.listen("nerdbank", *arguments) as peer, raw(peer) as (reader, writer):
        if "1" in arguments:
            magic = (await reader.readexactly(20))[:4]
            assert magic == bytes.fromhex("2fdf1d50")
            writer.write(magic + bytes(16))  # the least random number: the peer is odd
        await peer.event("session")
        peer.begin("offer", name="echo")
        wanted = bytes.fromhex(offer.format(id=1))
        assert await reader.readexactly(len(wanted)) == wanted


async def test_a_frame_on_an_unknown_channel_makes_a_zombie_that_a_ping_finds() -> None:
    async with Peer.listen("nerdbank") as peer, raw(peer) as (_, writer):
        await peer.event("session")
        writer.write(bytes.fromhex("94 02 09 01 c4 01 00"))
        assert "No channel with id" in (await peer.event("fault"))["message"]
        with pytest.raises(PeerFailed, match="no answer to the ping in 200 ms"):
            await peer.call("ping", timeout_ms=200)
        assert not peer.seen("disconnected")


async def test_a_version_1_side_reports_the_wrong_magic() -> None:
    async with Peer.listen("nerdbank", "--version", "1") as peer, raw(peer) as (_, writer):
        writer.write(bytes.fromhex("92920200c410") + bytes(16))
        assert "magic number mismatch" in (await peer.event("fault"))["message"]
