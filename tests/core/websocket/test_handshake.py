"""The HTTP exchange before the first frame."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import (
    ClientPerMessageDeflateFactory,
    ServerPerMessageDeflateFactory,
)
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from polymux.core.websocket.frames import binary_frame
from polymux.core.websocket.handshake import (
    IS_UPGRADE,
    MAX_HEAD_BYTES,
    NEED_MORE,
    NOT_UPGRADE,
    accept_key,
    detect_upgrade,
    read_request,
    read_response,
)

VECTORS = json.loads(
    (Path(__file__).parent.parent.parent / "vectors" / "websocket" / "upgrade.json").read_text(
        "utf-8"
    )
)


def wire(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode("latin-1")


REQUEST, RESPONSE = wire(VECTORS["request"]), wire(VECTORS["response"])


@pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in VECTORS["cases"]])
def test_vector(case: Any) -> None:
    request, response = VECTORS["request"], VECTORS["response"]
    for old, new in case.get("replace", []):
        assert old in request + response
        request, response = request.replace(old, new), response.replace(old, new)
    found = detect_upgrade(wire(request) + b"\x82\x00", wire(response) + b"\x82\x00")
    assert found.outcome == case["verdict"]
    assert case.get("reason", "") in found.reason
    assert bool(found.reason) == (found.outcome == NOT_UPGRADE)
    if found.outcome == IS_UPGRADE:
        assert found.path == case.get("path", "/omnistreams")
        assert (found.request_size, found.response_size) == (
            len(wire(request)),
            len(wire(response)),
        )
        undecodable = case.get("undecodable", "")
        assert undecodable in found.undecodable_reason
        assert bool(undecodable) == bool(found.undecodable_reason)


def test_bare_line_feeds_end_lines_too() -> None:
    request, response = VECTORS["request"].encode(), VECTORS["response"].encode()
    found = detect_upgrade(request + b"\x82", response)
    assert (found.outcome, found.request_size) == (IS_UPGRADE, len(request))


def test_every_prefix_asks_for_more_until_both_heads_are_whole() -> None:
    for cut in range(len(REQUEST)):
        assert detect_upgrade(REQUEST[:cut], RESPONSE).outcome == NEED_MORE
    for cut in range(len(RESPONSE)):
        assert detect_upgrade(REQUEST, RESPONSE[:cut]).outcome == NEED_MORE
    assert detect_upgrade(REQUEST, RESPONSE).outcome == IS_UPGRADE


@pytest.mark.parametrize("data", [b"\x00", b"\x82", b"G\x00", b"get / HTTP/1.1", b"\x16\x03\x01"])
def test_other_traffic_is_told_at_its_first_bytes(data: bytes) -> None:
    assert detect_upgrade(data, b"").outcome == NOT_UPGRADE
    assert detect_upgrade(b"", data).outcome == NOT_UPGRADE


def test_a_head_without_end_is_given_up_at_the_limit() -> None:
    endless = REQUEST[:-2] + b"Cookie: " + b"a" * MAX_HEAD_BYTES
    assert detect_upgrade(endless[: MAX_HEAD_BYTES - 1], b"").outcome == NEED_MORE
    found = detect_upgrade(endless[:MAX_HEAD_BYTES], b"")
    assert found.outcome == NOT_UPGRADE
    assert f"limit of {MAX_HEAD_BYTES} bytes" in found.reason


def test_a_head_of_exactly_the_limit_is_read() -> None:
    cookie = b"Cookie: " + b"a" * (MAX_HEAD_BYTES - len(REQUEST) - 10) + b"\r\n"
    request = REQUEST[:-2] + cookie + b"\r\n"
    assert len(request) == MAX_HEAD_BYTES
    assert detect_upgrade(request + b"\x82\x00", RESPONSE).outcome == IS_UPGRADE
    longer = request.replace(b"Cookie: ", b"Cookie: b")
    assert detect_upgrade(longer, RESPONSE).outcome == NOT_UPGRADE


def test_one_direction_alone_can_be_judged() -> None:
    assert read_request(REQUEST).size == len(REQUEST)
    assert read_response(RESPONSE).size == len(RESPONSE)
    assert read_response(REQUEST).outcome == NOT_UPGRADE


def test_the_accept_of_the_rfc() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("compressed", [False, True])
def test_a_handshake_of_the_websockets_library_is_recognised(compressed: bool) -> None:
    ask = [ClientPerMessageDeflateFactory()] if compressed else None
    grant = [ServerPerMessageDeflateFactory()] if compressed else None
    client = ClientProtocol(parse_uri("ws://example.org:9001/omnistreams?a=1"), extensions=ask)
    server = ServerProtocol(extensions=grant)
    client.send_request(client.connect())
    request = b"".join(client.data_to_send())
    server.receive_data(request)
    (asked,) = server.events_received()
    assert isinstance(asked, Request)
    server.send_response(server.accept(asked))
    response = b"".join(server.data_to_send())
    found = detect_upgrade(request + binary_frame(b"x", b"abcd"), response + binary_frame(b"y"))
    assert (found.outcome, found.path) == (IS_UPGRADE, "/omnistreams?a=1")
    assert (found.request_size, found.response_size) == (len(request), len(response))
    assert found.undecodable_reason.startswith("permessage-deflate") == compressed


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_get_a_verdict(request: bytes, response: bytes) -> None:
    assert detect_upgrade(request, response).outcome in (NEED_MORE, NOT_UPGRADE)
    assert detect_upgrade(b"GET " + request, b"HTTP/1." + response).outcome in (
        NEED_MORE,
        NOT_UPGRADE,
        IS_UPGRADE,
    )


@given(st.integers(0, len(REQUEST) - 1), st.integers(0, 255), st.integers(0, 2))
def test_a_flipped_byte_never_raises(place: int, byte: int, direction: int) -> None:
    request = REQUEST[:place] + bytes([byte]) + REQUEST[place + 1 :]
    where = place % len(RESPONSE)
    response = RESPONSE[:where] + bytes([byte]) + RESPONSE[where + 1 :]
    found = detect_upgrade(
        REQUEST if direction == 1 else request, RESPONSE if direction == 0 else response
    )
    assert found.outcome in (NEED_MORE, NOT_UPGRADE, IS_UPGRADE)
    assert found.outcome != IS_UPGRADE or found.response_size > 0
