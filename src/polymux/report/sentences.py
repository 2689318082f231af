"""What went wrong, each cause in one sentence a person can act on.

Only facts from the tables go in: the cause that was found, how long it lasted, the window and the
round trip where they were seen.
"""

from dataclasses import dataclass
from typing import Final

PEER: Final = {"dialer": "acceptor", "acceptor": "dialer"}


@dataclass(frozen=True, slots=True)
class Stall:
    """A row of `stalls`, with what is known of its session and stream."""

    stream: str
    sender: str
    lasted_us: int
    cause: str
    culprit: str | None = None
    culprit_name: str = ""
    window: int | None = None  # most octets ever outstanding: the window, once it was full
    rtt_us: int | None = None


def stall_sentence(stall: Stall) -> str:
    """Why a stream stood still, and for how long."""
    lasted = duration(stall.lasted_us)
    peer = PEER.get(stall.sender, "peer")
    match stall.cause:
        case "no-credit":
            window = f" once its {octets(stall.window)} window was full" if stall.window else ""
            return f"no leave to send for {lasted}{window}: the {peer} granted nothing"
        case "slow-reader":
            return f"reader did not read for {lasted}: the {peer} left octets unacknowledged"
        case "behind-other-stream":
            if stall.culprit is None:
                return f"waited {lasted} behind another stream"
            name = f" ({stall.culprit_name})" if stall.culprit_name else ""
            return f"waited {lasted} behind stream {stall.culprit}{name}"
        case "transport":
            return f"the network lost or held back data for {lasted}"
        case "sender-idle":
            return f"the {stall.sender} had nothing to send for {lasted}"
    return f"stood still for {lasted} ({stall.cause})"


STALL_HEADLINES: Final = {
    "no-credit": "Streams waited for leave to send",
    "slow-reader": "Readers did not read",
    "behind-other-stream": "Streams waited behind another stream",
    "transport": "The network lost or held back data",
}
"""One headline a cause; `sender-idle` has none, because it is never a finding."""


def window_sentence(window: int, rtt_us: int) -> str:
    """Why a stream could not go faster although nobody did wrong."""
    most = window_limit(window, rtt_us)
    return (
        f"window-limited: {octets(window)} window, {duration(rtt_us)} round trip, "
        f"so at most {rate(most)}"
    )


def window_limit(window: int, rtt_us: int) -> float:
    """Bits a second that a window allows: it can be filled once a round trip."""
    return window * 8 * 1e6 / max(1, rtt_us)


def is_window_limited(
    window: int | None, rtt_us: int | None, sent: int, lasted_us: int, blocked_us: int | None
) -> bool:
    """Did the window, and not the sender, set the pace?

    Yes if the sender was out of leave for at least a fifth of the time it sent, and reached at
    least half of what window and round trip allow (a sender that had little to send does not).
    """
    if not window or not rtt_us or not blocked_us or lasted_us <= 5 * rtt_us:
        return False
    reached = sent * 8 * 1e6 / lasted_us
    return blocked_us * 5 >= lasted_us and reached * 2 >= window_limit(window, rtt_us)


def violation_sentence(
    rule: str, sender: str, stream: str | None, detail: str | None, certainty: str
) -> str:
    """Who broke the rule, where, and what the frame did."""
    where = f" on stream {stream}" if stream else ""
    told = f": {detail}" if detail else f" broke {rule}"
    doubt = "" if certainty == "certain" else " (possible: what was not captured could excuse it)"
    return f"the {sender}{where}{told}{doubt}"


def capture_sentence(file: str, status: str, error: str | None, offset: int | None) -> str:
    """What could not be read of a file."""
    told, rest = {
        "truncated": ("ends inside a block", "; everything before that was read"),
        "damaged": ("is damaged", "; what stands before the damage was read"),
        "unreadable": ("could not be read", ""),
    }.get(status, (f"is {status}", ""))
    where = f" at octet {offset:,}" if offset is not None else ""
    why = f" ({error})" if error else ""
    return f"{file} {told}{where}{why}{rest}"


def gap_sentence(missing: int, sessions: int) -> str:
    """How much of the traffic is not in the capture."""
    where = "1 session" if sessions == 1 else f"{sessions:,} sessions"
    return f"{octets(missing)} missing from the capture in {where}: verdicts after a gap are softer"


def duration(us: int) -> str:
    """`850 µs`, `80 ms`, `5.0 s`, `3 min 20 s`, `2 h 5 min`."""
    if us < 1000:
        return f"{us} µs"
    if us < 9_950:
        return f"{us / 1e3:.1f} ms"
    if us < 999_500:
        return f"{us / 1e3:.0f} ms"
    if us < 59_950_000:
        return f"{us / 1e6:.1f} s"
    seconds = round(us / 1e6)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600:,} h {seconds % 3600 // 60} min"


def octets(count: int) -> str:
    """`64 octets`, `100 KiB`, `1.5 MiB`."""
    if count < 1024:
        return "1 octet" if count == 1 else f"{count} octets"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 999.5:
            return f"{_short(value)} {unit}"
    return f"{_short(value / 1024)} TiB"


def rate(bits: float) -> str:
    """`10 Mbit/s`: bits a second, in thousands as networks count."""
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits < 999.5:
            return f"{_short(bits)} {unit}"
        bits /= 1000
    return f"{_short(bits)} Tbit/s"


def _short(value: float) -> str:
    """Two figures at least, no decimals that say nothing: 1.5, 10, 100, 2."""
    if value >= 9.95:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0")
