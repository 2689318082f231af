"""The lines with which a stream of a tunnel begins.

The side that opens a stream sends one line, and the other answers with one; after `ok` the stream
carries the bytes of the connection, unchanged.

    polymux-tunnel/1 connect example.com:443        client to server: connect there
    polymux-tunnel/1 listen 127.0.0.1:8080          client to server: listen, until this stream ends
    polymux-tunnel/1 forwarded 127.0.0.1:8080       server to client: a connection came there

    ok 192.0.2.7:443
    refused 2 example.com:443 is not allowed        with a reply code of SOCKS5
"""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.errors import PolymuxError
from polymux.live.errors import printable
from polymux.relay.tunnel.targets import (
    FAILED,
    MAX_CODE,
    BadForward,
    Target,
    TargetRefused,
    is_host,
    parse_port,
    split_host,
)

PREFIX = "polymux-tunnel/1"
MAX_LINE_BYTES = 1024
CONNECT = "connect"
LISTEN = "listen"
FORWARDED = "forwarded"
VERBS = (CONNECT, LISTEN, FORWARDED)


class BadRequest(PolymuxError):
    """The other side of a tunnel did not send a line of its protocol."""


@dataclass(frozen=True)
class Request:
    """What the side that opened a stream asks for."""

    verb: str
    target: Target

    @property
    def name(self) -> bytes:
        """The request as the name of its stream and as `End.open` takes it."""
        return f"{self.verb} {self.target}".encode()

    def line(self) -> bytes:
        """The line to send."""
        return f"{PREFIX} {self.verb} {self.target}\n".encode()


def parse_name(name: bytes) -> Request:
    """The request in the name of a stream that this side gave it."""
    verb, _, target = name.decode().partition(" ")
    return Request(verb, any_target(target))


def any_target(text: str) -> Target:
    """Parse a target whose port may be 0: one that is not bound yet."""
    host, port = split_host(text)
    if not is_host(host, "%"):  # which is before the zone of an address
        raise BadForward(f"{text!r}: not a host name or an address")
    return Target(host, parse_port(port, text, 0))


def parse_request(line: bytes) -> Request:
    """Parse the first line of a stream.

    Raises:
        BadRequest: It is none.
    """
    try:
        prefix, verb, target = line.removesuffix(b"\n").decode("ascii").split(" ")
        if line.endswith(b"\n") and prefix == PREFIX and verb in VERBS:
            return Request(verb, any_target(target))
    except (ValueError, BadForward):
        pass
    raise BadRequest(
        f"not a request of a polymux tunnel: {printable(line[:80])!r}; is the other side one?"
    )


def ok_line(target: Target) -> bytes:
    """The answer to a request that was met, with the address connected to or listened on."""
    return f"ok {target}\n".encode()


def refused_line(problem: PolymuxError) -> bytes:
    """The answer to a request that was not met."""
    code = problem.code if isinstance(problem, TargetRefused) else FAILED
    text = printable(str(problem).encode())
    return f"refused {code} {text}\n".encode()[: MAX_LINE_BYTES - 1].rstrip(b"\n") + b"\n"


def parse_answer(line: bytes) -> Target:
    """Return the address in an answer.

    Raises:
        TargetRefused: The other side refused, for the reason that it gives.
        BadRequest: The line is no answer.
    """
    text = line.removesuffix(b"\n").decode("utf-8", "replace")
    word, _, rest = text.partition(" ")
    try:
        if word == "ok" and line.endswith(b"\n"):
            return any_target(rest)
        if word == "refused":
            code, _, reason = rest.partition(" ")
            known = int(code) if FAILED <= int(code) <= MAX_CODE else FAILED
            raise TargetRefused(known, printable(reason.encode()))
    except (ValueError, BadForward):
        pass
    raise BadRequest(
        f"not an answer of a polymux tunnel: {printable(line[:80])!r}; is the other side one?"
    )
