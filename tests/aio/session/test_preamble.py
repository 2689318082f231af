"""The preamble: what both sides exchange before the first frame."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio.session_helpers import echo, exchange

import polymux
from polymux import SessionClosed
from polymux.live.session.preamble import Preamble, encode_line

SELECT = encode_line(b"/multistream/1.0.0\n")
MPLEX = encode_line(b"/mplex/6.7.0\n")


@pytest.mark.parametrize("preamble", ["multistream", "c0ffee00"])
async def test_both_sides_exchange_the_preamble_and_then_frames(preamble: str) -> None:
    text = f"mplex:preamble={preamble}"
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=text) as server:
        async with polymux.connect(server.url, protocol=text) as session:
            assert await exchange(session, "a", bytes(100_000)) == bytes(100_000)


async def reply_to(server: polymux.Server, *parts: bytes) -> bytes:
    """Return what the server sends to a peer that sends these parts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write_eof()
    async with asyncio.timeout(30):
        said = await reader.read()
    writer.close()
    await writer.wait_closed()
    return said


async def test_an_acceptor_rejects_other_protocols_and_waits_for_its_own() -> None:
    text = "mplex:preamble=multistream"
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=text) as server:
        yamux = encode_line(b"/yamux/1.0.0\n")
        opening = bytes.fromhex("0800 0a026869 0c00")  # stream 1, "hi", end
        said = await reply_to(server, SELECT[:5], SELECT[5:] + yamux, MPLEX + opening)
        assert said.startswith(SELECT + encode_line(b"na\n") + MPLEX)
        assert b"hi" in said
        assert await reply_to(server, b"GET / HTTP/1.1\r\n\r\n") == SELECT


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (SELECT + encode_line(b"na\n"), "the peer has no /mplex/6.7.0"),
        (encode_line(b"hello\n"), "speaks no multistream-select"),
        (b"\xff\xff" + bytes(40), "a line of 32767 bytes"),
    ],
)
def test_a_dialers_error_says_what_was_wrong(said: bytes, problem: str) -> None:
    dialer = Preamble("multistream", "mplex", 0)
    assert dialer.initial_bytes() == SELECT + MPLEX
    with pytest.raises(SessionClosed, match=problem):
        dialer.receive(said)


def test_other_bytes_than_the_preamble_end_the_session() -> None:
    side = Preamble("c0ffee", "mplex", 1)
    assert side.receive(b"\xc0") == (b"", b"")
    with pytest.raises(SessionClosed, match="began with c0de00, not with the preamble c0ffee"):
        side.receive(b"\xde\x00")


@pytest.mark.parametrize("text", ["streamux:preamble=multistream", "mplex:preamble=xyz"])
def test_an_invalid_preamble_is_refused_before_connecting(text: str) -> None:
    with pytest.raises(polymux.PolymuxError, match="multistream"):
        polymux.connect("tcp://127.0.0.1:1", protocol=text)


async def test_a_peer_that_never_replies_times_out() -> None:
    timeouts = polymux.Timeouts(handshake=0.3)
    text = "mplex:preamble=multistream"
    async with await polymux.serve(
        echo, "tcp://127.0.0.1:0", protocol=text, timeouts=timeouts
    ) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(30):
            assert await reader.read() == SELECT
        writer.close()
        await writer.wait_closed()
