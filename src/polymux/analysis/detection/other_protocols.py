# mypyc: compiled
"""Well-known protocols that polymux does not decode."""

from __future__ import annotations

from polymux.core.websocket.handshake import (
    IS_UPGRADE,
    NEED_MORE,
    NOT_UPGRADE,
    detect_upgrade,
    read_request,
    read_response,
)

_HTTP_METHODS = (
    b"GET ",
    b"POST ",
    b"PUT ",
    b"HEAD ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
)
_HTTP2_PREFACE = b"PRI * HTTP/2.0"


def detect_other_protocol(dialer: bytes, acceptor: bytes) -> str:
    """The well-known protocol that the first bytes of both sides show; "" if none."""
    heads = [head for head in (dialer, acceptor) if head]
    if heads and all(_is_tls(head) for head in heads):
        return "TLS, whose first messages were not captured: without them it cannot be opened"
    if any(head.startswith(b"SSH-") for head in heads):
        return "SSH"
    if dialer.startswith(_HTTP2_PREFACE):
        return "HTTP/2"
    if dialer.startswith(_HTTP_METHODS) or acceptor.startswith(b"HTTP/1."):
        upgrade = detect_upgrade(dialer, acceptor)
        if upgrade.outcome == IS_UPGRADE:
            return "WebSocket, with messages that are not of a protocol known here"
        return "HTTP"
    return ""


def websocket_upgrade_status(dialer: bytes, acceptor: bytes) -> str:
    """Whether WebSocket messages follow.

    IS_UPGRADE if both sides agreed on it, NEED_MORE if the captured bytes are one side of the
    handshake or the start of a header, else NOT_UPGRADE.
    """
    if detect_upgrade(dialer, acceptor).outcome == IS_UPGRADE:
        return IS_UPGRADE
    request, response = read_request(dialer).outcome, read_response(acceptor).outcome
    return (
        NEED_MORE
        if (dialer and request != NOT_UPGRADE) or (acceptor and response != NOT_UPGRADE)
        else NOT_UPGRADE
    )


def _is_tls(head: bytes) -> bool:
    """Whether the bytes begin with a TLS record: type, version 3.x, a valid length."""
    if len(head) < 5 or not 0x14 <= head[0] <= 0x17 or head[1] != 3 or head[2] > 4:
        return False
    return 0 < int.from_bytes(head[3:5], "big") <= 0x4800
