# mypyc: compiled
"""Limits and policy: every number polymux holds a peer or a caller to, with its reason.

A limit stands where memory is about to be committed. Its error says its name, its value and how to
raise it; every hit is counted.
"""

from dataclasses import dataclass, field, fields

KIB = 1024
MIB = 1024 * 1024
MAX_LIMIT = 0x1000000000000000  # so that two of them can be added


@dataclass
class Limits:
    """All limits of a session. `Limits(max_streams=4096)` raises one; the rest keep their defaults."""

    max_frame_bytes: int = 0  # bytes of content in a received frame; 0: the protocol's own default
    max_control_bytes: int = (
        64 * KIB
    )  # bytes of any other frame: it is buffered whole before it is judged
    max_name_bytes: int = 4 * KIB  # a name is for people and keys, not a payload
    max_metadata_bytes: int = 64 * KIB  # omnistreams metadata and error texts
    max_streams: int = 1024  # live streams the peer may have open (libp2p, HTTP/2 practice)
    accept_backlog: int = 1024  # streams the peer opened that the application has not taken yet
    max_own_streams: int = (
        1000  # streams of ours, open or given up lately: a peer like us takes these
    )
    stream_buffer_bytes: int = (
        256 * KIB
    )  # unread bytes of one stream where the protocol has no credit
    session_buffer_bytes: int = (
        16 * MIB
    )  # bytes of all streams together, unread or still to be sent
    max_message_bytes: int = (
        16 * MIB
    )  # bytes of one message or last item put together from many frames
    receive_window: int = MIB  # what we announce where the protocol has windows
    max_peer_window: int = 64 * MIB  # the largest window we believe
    max_receive_window: int = 16 * MIB  # the largest a window becomes when the peer asks for more
    max_window_growth_total: int = (
        64 * MIB
    )  # what all windows together grow beyond what was announced
    max_queued_replies: int = 4096  # answers that wait to leave: two for each stream of either side
    open_reset_burst: int = 1000  # streams opened and given up at once
    open_reset_rate: int = 33  # and a second, from then on
    unknown_stream_burst: int = 500  # frames for streams that do not exist
    unknown_stream_rate: int = 100
    empty_frame_burst: int = 1000  # empty, control and unknown frames that spend no credit
    empty_frame_rate: int = 100
    closed_streams_remembered: int = (
        4096  # closed streams a live session can still tell from unknown ones
    )
    max_prehandshake_bytes: int = (
        64 * KIB
    )  # bytes kept until the other direction's handshake is known

    def __post_init__(self) -> None:
        for name in self.names():
            value: object = getattr(self, name)
            if not isinstance(value, int):
                raise TypeError(f"limit {name} is an int, not {type(value).__name__}")
            if not 0 <= value <= MAX_LIMIT:
                raise ValueError(f"limit {name} is 0 to 2^60, not {value}")

    def describe(self, name: str) -> str:
        """How an error names this limit and says how to raise it."""
        value = getattr(self, name)
        return f"limit {name}={value}; raise it with Limits({name}=...)"

    def names(self) -> list[str]:
        return [entry.name for entry in fields(self)]


@dataclass
class Timeouts:
    """Times in seconds, and choices that are not limits."""

    handshake: float = 10.0  # for the peer's first bytes, and for half-open connections
    frame: float = 10.0  # to finish a frame that has begun and is not content
    write: float = 30.0  # a peer that takes nothing for this long is gone
    keepalive_interval: float = 15.0  # TCP keepalive interval; two missed probes end the connection
    slow_reader: float = 5.0  # how long a slow reader may hold up a session without credit
    close: float = 10.0  # for queued data to leave during a graceful close

    def __post_init__(self) -> None:
        for entry in fields(self):
            value: object = getattr(self, entry.name)
            if not isinstance(value, (int, float)):
                raise TypeError(f"{entry.name} is a number of seconds, not {type(value).__name__}")
            if not value >= 0:
                raise ValueError(f"{entry.name} is 0 or more seconds, not {value}")


@dataclass
class Counters:
    """How often each limit was hit and each rule broken, by name."""

    hits: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, amount: int = 1) -> None:
        self.hits[name] = self.hits.get(name, 0) + amount


class TokenBucket:
    """A token bucket: `burst` at once, `rate` a second after that. Time is an argument."""

    __slots__ = ("burst", "last_refill", "tokens", "rate")

    def __init__(self, burst: int, rate: int) -> None:
        self.burst: float = float(burst)
        self.rate: float = float(rate)
        self.tokens: float = float(burst)
        self.last_refill: float = -1.0

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take tokens if they are there; False when the bucket is empty."""
        if self.last_refill >= 0.0:
            self.tokens = min(
                self.burst, self.tokens + max(0.0, now - self.last_refill) * self.rate
            )
        self.last_refill = now
        if self.tokens < tokens:
            return False
        self.tokens -= tokens
        return True
