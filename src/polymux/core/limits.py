# mypyc: compiled
"""Limits and timeouts of a live session: the bounds on what a peer can make this side spend.

A limit is checked before the memory or the work is committed. The error it raises names the limit,
its value and the argument that raises it, and `Counters` counts every hit under the limit's name.

`LIMIT_DOCS` and `TIMEOUT_DOCS` describe every field once; `docs/limits.md` is made from them, and a
test checks that no field is missing. To add a limit, add the field, its entry here, and the check
at the place where the resource is committed.
"""

from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

KIB = 1024
MIB = 1024 * 1024
MAX_LIMIT = 0x1000000000000000  # 2^60: the sum of two limits still fits an i64


class FieldDoc(NamedTuple):
    """What `docs/limits.md` says about one limit or timeout."""

    meaning: str  # what is bounded, and in which unit
    default: str  # why the default is what it is
    answers: str  # the attack or failure that the bound answers


_limit_names: list[str] = []  # filled by the first `Limits`


@dataclass
class Limits:
    """Limits of a session. `Limits(max_streams=4096)` sets one; the others keep their defaults.

    Every limit is an int from 0 to 2^60; `docs/limits.md` describes each of them.

    Raises:
        TypeError: A value is not an int.
        ValueError: A value is out of range.
    """

    max_frame_bytes: int = 0
    max_control_bytes: int = 64 * KIB
    max_name_bytes: int = 4 * KIB
    max_metadata_bytes: int = 64 * KIB
    max_streams: int = 1024
    accept_backlog: int = 1024
    listen_backlog: int = 4096
    max_sessions: int = 8192
    max_sessions_per_address: int = 6144
    max_half_open: int = 128
    max_own_streams: int = 1000
    stream_buffer_bytes: int = 256 * KIB
    session_buffer_bytes: int = 16 * MIB
    assembly_buffer_bytes: int = 64 * MIB
    server_buffer_bytes: int = 256 * MIB
    max_message_bytes: int = 16 * MIB
    receive_window: int = MIB
    max_peer_window: int = 64 * MIB
    max_receive_window: int = 16 * MIB
    max_window_growth_total: int = 64 * MIB
    max_queued_replies: int = 4096
    open_reset_burst: int = 1000
    open_reset_rate: int = 33
    unknown_stream_burst: int = 500
    unknown_stream_rate: int = 100
    empty_frame_burst: int = 1000
    empty_frame_rate: int = 100
    closed_streams_remembered: int = 4096
    max_prehandshake_bytes: int = 64 * KIB

    def __post_init__(self) -> None:
        for name in self.names():
            value: object = getattr(self, name)
            if not isinstance(value, int):
                raise TypeError(f"limit {name} is an int, not {type(value).__name__}")
            if not 0 <= value <= MAX_LIMIT:
                raise ValueError(f"limit {name} is 0 to 2^60, not {value}")

    def describe(self, name: str) -> str:
        """Return the part of an error message that names a limit and says how to raise it."""
        value = getattr(self, name)
        return f"limit {name}={value}; raise it with Limits({name}=...)"

    def names(self) -> list[str]:
        """Return the names of all limits, in the order of their declaration."""
        if not _limit_names:  # `fields` is slow, and an analysis makes limits for each session
            _limit_names.extend(entry.name for entry in fields(self))
        return _limit_names


LIMIT_DOCS: Final[dict[str, FieldDoc]] = {
    "max_frame_bytes": FieldDoc(
        "bytes of content in one received frame; 0 selects the protocol's default",
        "the largest frame that the protocol's known implementations send: 64 KiB for Nerdbank and"
        " Streamux, 1 MiB for mplex and omnistreams, the profile's item size for Minmux; 16 MiB for"
        " yamux, where the window of the stream is the bound",
        "a header that announces gigabytes; it is refused before anything is allocated",
    ),
    "max_control_bytes": FieldDoc(
        "bytes of any received frame that is not content",
        "such a frame is buffered completely before it is validated; the largest that peers send"
        " is an offer with a name",
        "an offer or an error text that never ends",
    ),
    "max_name_bytes": FieldDoc(
        "bytes of a stream's name",
        "a name is a key and is shown to people; it is not a payload",
        "memory held by names of open and remembered streams",
    ),
    "max_metadata_bytes": FieldDoc(
        "bytes of the metadata of an omnistreams stream and of an error text",
        "metadata is often a JSON object, which is longer than a name",
        "256 streams opened with 1 MiB of metadata each",
    ),
    "max_streams": FieldDoc(
        "streams opened by the peer that may be open at a time",
        "common practice of libp2p and HTTP/2 implementations",
        "a peer that opens streams without end",
    ),
    "accept_backlog": FieldDoc(
        "streams opened by the peer that the application has not accepted yet",
        "as many as may be open: an application that is busy for a moment loses none",
        "open floods against an application that does not accept (CVE-2022-23492)",
    ),
    "listen_backlog": FieldDoc(
        "connections that the kernel holds until a server accepts them; the kernel has a limit of"
        " its own (`net.core.somaxconn` on Linux)",
        "that limit on current Linux systems: thousands of clients that connect at once do not have"
        " to repeat their first packet, which takes them a second",
        "bursts of connections: beyond it the kernel drops them",
    ),
    "max_sessions": FieldDoc(
        "sessions of a server that are open at a time, half-open ones included; with as many, a new"
        " connection takes the place of a half-open one, or is closed",
        "250 MiB for sessions that transfer nothing, and 900 MiB with TLS",
        "connections that cost the peer nothing and this side memory and descriptors",
    ),
    "max_sessions_per_address": FieldDoc(
        "the same for the sessions of one address; 0: no limit besides `max_sessions`",
        "three quarters of `max_sessions`; all clients behind one proxy or load balancer have the"
        " same address",
        "one host that takes all places",
    ),
    "max_half_open": FieldDoc(
        "connections of a server whose TLS, WebSocket or protocol handshake is not done; with more,"
        " the oldest one of the address that has most is closed. One that is younger than half a"
        " second (a quarter if nothing was received on it) is not: until then there may be"
        " eight times as many or, with TLS, no further connection is accepted. Not spared are"
        " those of an address that has most of them, after eight times as many of its"
        " connections have come to nothing",
        "a TLS handshake needs 150 KiB of memory",
        "connections that never say anything (slowloris)",
    ),
    "max_own_streams": FieldDoc(
        "streams opened by this side that are open, or were aborted recently; `open` and `request`"
        " wait while there are as many",
        "less than `max_streams` and `open_reset_burst`, so that a peer with the default limits"
        " accepts them all",
        "`asyncio.gather` over thousands of requests, which would exceed the peer's limits",
    ),
    "stream_buffer_bytes": FieldDoc(
        "bytes received on a stream that is not read any more, in a protocol without flow control,"
        " before the stream is reset",
        "32 frames of 8 KiB, as in the mplex of rust-libp2p",
        "a peer that goes on sending on a stream that the application has abandoned",
    ),
    "session_buffer_bytes": FieldDoc(
        "bytes of all streams of a session that are unread or wait to be sent; when they are"
        " exceeded, reading from the connection pauses. Each unread part counts with 64 bytes"
        " besides. Where the protocol has windows, these are"
        " announced so that they add up to four times as much at most",
        "sixteen initial receive windows",
        "a fast sender and a slow reader",
    ),
    "assembly_buffer_bytes": FieldDoc(
        "bytes of all messages of a session that are being put together (`read`, `receive_all`,"
        " `readexactly`, `readline`); beyond it only the oldest of them goes on",
        "four messages of `max_message_bytes`",
        "a thousand messages at once, none of which is completed",
    ),
    "server_buffer_bytes": FieldDoc(
        "bytes of all sessions of a server that are unread, with 64 bytes besides for each part,"
        " or being put together; when they are exceeded, reading pauses for the sessions that hold"
        " more than their share. For Minmux streams in a collector 1 KiB each is counted too. Not"
        " counted are 16 KiB of each session; less if that could be more than a quarter of the"
        " limit, but 4 KiB at least",
        "sixteen sessions at `session_buffer_bytes`",
        "many connections that each stay within their own limit",
    ),
    "max_message_bytes": FieldDoc(
        "bytes of one message or last item that is put together from several frames",
        "as large as `session_buffer_bytes`",
        "a message that is continued without end (CVE-2024-28182 in HTTP/2)",
    ),
    "receive_window": FieldDoc(
        "bytes of window or credit granted at first on each stream, where the protocol has flow"
        " control; less with many streams in a session (see `session_buffer_bytes`)",
        "100 Mbit/s over a round trip of 80 ms",
        "one slow reader that fills the memory; the window is the bound",
    ),
    "max_peer_window": FieldDoc(
        "bytes of the largest window accepted from a Nerdbank peer",
        "four times the largest window this library grants",
        "arithmetic on windows near 2^63",
    ),
    "max_receive_window": FieldDoc(
        "bytes to which one receive window grows: when a Nerdbank peer asks for more, and with"
        " yamux when it is used up within four round trips",
        "1.6 Gbit/s over a round trip of 80 ms",
        "a peer that asks for a larger window again and again",
    ),
    "max_window_growth_total": FieldDoc(
        "bytes by which all receive windows of a session together may grow; they stay within twice"
        " `session_buffer_bytes` in any case",
        "four streams at their largest window, for sessions with a larger buffer",
        "a peer that asks for larger windows on every stream",
    ),
    "max_queued_replies": FieldDoc(
        "replies and other control frames that wait to be sent",
        "two for each stream that either side may have open with the default limits",
        "a peer that provokes replies and does not read them (CVE-2019-9517, CVE-2025-8671)",
    ),
    "open_reset_burst": FieldDoc(
        "streams that the peer opens and resets, or makes this side reset, in one burst",
        "the default of nghttp2",
        "rapid reset (CVE-2023-44487)",
    ),
    "open_reset_rate": FieldDoc(
        "streams a second by which `open_reset_burst` refills; Streamux cancels ten times as fast",
        "the default of nghttp2",
        "rapid reset that is kept up",
    ),
    "unknown_stream_burst": FieldDoc(
        "frames for streams that do not exist, in one burst",
        "five seconds of `unknown_stream_rate`",
        "frames that cost the peer nothing and this side a lookup",
    ),
    "unknown_stream_rate": FieldDoc(
        "frames a second by which `unknown_stream_burst` refills",
        "twenty times the rate of js-libp2p, which healthy peers exceed",
        "the same flood, kept up",
    ),
    "empty_frame_burst": FieldDoc(
        "frames without content that spend no credit (empty, control, unknown), less the frames"
        " with content, in one burst",
        "ten seconds of `empty_frame_rate`",
        "empty frames and control floods (CVE-2019-9512, CVE-2019-9518)",
    ),
    "empty_frame_rate": FieldDoc(
        "frames a second by which `empty_frame_burst` refills",
        "well above any keepalive",
        "the same flood, kept up",
    ),
    "closed_streams_remembered": FieldDoc(
        "closed streams whose late frames are told from frames for unknown streams",
        "four times `max_streams`",
        "memory that grows with every stream a long session has had",
    ),
    "max_prehandshake_bytes": FieldDoc(
        "bytes of one direction buffered until the handshake of the other direction is known",
        "as large as `max_control_bytes`",
        "data sent instead of a handshake",
    ),
}


@dataclass
class Timeouts:
    """Time limits of a session, in seconds; ints or floats of 0 or more.

    Raises:
        TypeError: A value is not a number.
        ValueError: A value is negative or NaN.
    """

    handshake: float = 10.0
    frame: float = 10.0
    write: float = 30.0
    keepalive_interval: float = 15.0
    slow_reader: float = 5.0
    close: float = 10.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value: object = getattr(self, entry.name)
            if not isinstance(value, (int, float)):
                raise TypeError(f"{entry.name} is a number of seconds, not {type(value).__name__}")
            if not value >= 0:
                raise ValueError(f"{entry.name} is 0 or more seconds, not {value}")


TIMEOUT_DOCS: Final[dict[str, FieldDoc]] = {
    "handshake": FieldDoc(
        "seconds for the peer's handshake, from the start of the connection",
        "a handshake is one round trip; ten seconds cover a slow link and a loaded machine",
        "half-open connections (slowloris)",
    ),
    "frame": FieldDoc(
        "seconds to complete a frame that has begun and is not content; for messages, seconds"
        " without any progress",
        "as for the handshake",
        "a header that is never completed, or arrives a byte at a time",
    ),
    "write": FieldDoc(
        "seconds in which the peer takes not a single byte, while there is something to send",
        "two keepalive intervals",
        "a peer that stops reading its socket (CVE-2019-9517)",
    ),
    "keepalive_interval": FieldDoc(
        "seconds between keepalive probes (TCP, WebSocket ping, yamux ping, Streamux Keep Alive);"
        " two that are not answered end the session",
        "two intervals are less than the minute after which many load balancers drop an idle"
        " connection",
        "a peer that disappears without closing the connection",
    ),
    "slow_reader": FieldDoc(
        "seconds for which a stream that is not read, or not accepted, may pause the reading of"
        " the whole session, in a protocol without flow control; after that the stream is reset or"
        " rejected",
        "the rule of go-mplex",
        "a stream that blocks all others of its session for ever",
    ),
    "close": FieldDoc(
        "seconds for queued data to be sent, and for the peer to finish, in a graceful close",
        "`session_buffer_bytes` at 14 Mbit/s",
        "a close that never returns because the peer does not read",
    ),
}


@dataclass
class Counters:
    """Hits of limits and violations of rules, counted by name."""

    hits: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""
        self.hits[name] = self.hits.get(name, 0) + amount


class TokenBucket:
    """Rate limiter: `burst` tokens at once, refilled by `rate` tokens a second.

    The caller passes the time, in seconds of any monotonic clock.
    """

    __slots__ = ("burst", "last_refill", "tokens", "rate")

    def __init__(self, burst: int, rate: int) -> None:
        self.burst: float = float(burst)
        self.rate: float = float(rate)
        self.tokens: float = float(burst)
        self.last_refill: float = -1.0

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take `tokens` and return True; return False, taking none, if there are too few."""
        if self.last_refill >= 0.0:
            self.tokens = min(
                self.burst, self.tokens + max(0.0, now - self.last_refill) * self.rate
            )
        self.last_refill = now
        if self.tokens < tokens:
            return False
        self.tokens -= tokens
        return True
