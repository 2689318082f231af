"""Findings as sentences: which side did what, on which stream, and what it cost the other side.

The only list of such sentences: `ls`, `check`, `analyze`, `demo` and the report use it. A sentence
holds facts from the tables only. It names the side at fault first and the side that waited second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymux.text.units import duration_text, rate_text, size_text

PEER: Final = {"dialer": "acceptor", "acceptor": "dialer"}
ABORTED_ENDINGS: Final = ("reset", "cancelled", "rejected", "abandoned")
STALL_HEADLINES: Final = {
    "no-reply": "Peers did not answer",
    "no-credit": "Streams were blocked: no send credit",
    "slow-reader": "Readers did not read",
    "head-of-line": "Streams were head-of-line blocked by another stream",
    "transport": "The network lost or delayed data",
}
"""The headline of each cause; `sender-idle` has none because it is never a finding."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A row of `stalls`. `sender` is the side whose bytes did not arrive."""

    stream: str
    sender: str
    duration_us: int
    cause: str
    blocking_stream: str | None = None
    blocking_stream_name: str = ""

    @classmethod
    def from_row(cls, row: Mapping[str, object]) -> "Stall":
        duration = row["duration_us"]
        return cls(
            stream=str(row["stream"]),
            sender=str(row["sender"]),
            duration_us=duration if isinstance(duration, int) else 0,
            cause=str(row["cause"]),
            blocking_stream=_text(row, "blocking_stream"),
        )


@dataclass(frozen=True, slots=True)
class StreamEnding:
    """The columns of a row of `streams` that say how the stream ended."""

    stream: str
    ending: str
    opener: str | None = None
    reset_by: str | None = None
    error: str | None = None
    ended_dialer: str | None = None
    ended_acceptor: str | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, object]) -> "StreamEnding":
        names = ("opener", "reset_by", "error", "ended_dialer", "ended_acceptor")
        known = {name: _text(row, name) for name in names}
        return cls(str(row["stream"]), str(row["ending"]), **known)


def stall_sentence(stall: Stall) -> str:
    """The sentence of a stall: `acceptor did not read d3: dialer waited 1.2 s (slow-reader)`."""
    lasted = duration_text(stall.duration_us * 1000)
    stream, sender = stall.stream, stall.sender
    peer = PEER.get(sender, "peer")
    match stall.cause:
        case "no-reply":
            text = f"{sender} did not answer {peer} on {stream} for {lasted}"
        case "no-credit":
            text = f"{peer} granted no credit on {stream}: {sender} was blocked for {lasted}"
        case "slow-reader":
            text = f"{peer} did not read {stream}: {sender} waited {lasted}"
        case "head-of-line":
            blocking = stall.blocking_stream or "another stream"
            if stall.blocking_stream_name:
                blocking += f" ({stall.blocking_stream_name})"
            text = f"{sender}'s {stream} was head-of-line blocked by {blocking} for {lasted}"
        case "transport":
            text = f"the network or the capture lost bytes of {stream}: {peer} waited {lasted}"
        case "sender-idle":
            text = f"{sender} sent nothing on {stream} for {lasted}"
        case _:
            text = f"{stream} stalled for {lasted}"
    return f"{text} ({stall.cause})"


def violation_sentence(
    rule: str, sender: str, stream: str | None, detail: str | None, certainty: str
) -> str:
    """The sentence of a violation: `dialer broke mplex.write-after-close on d3: 4 bytes`."""
    verb = "broke" if certainty == "certain" else "may have broken"
    where = f" on {stream}" if stream else ""
    text = f": {detail}" if detail else ""
    return f"{sender} {verb} {rule}{where}{text}"


def violation_text(row: Mapping[str, object]) -> str:
    """The sentence for a row of `violations`."""
    return violation_sentence(
        rule=str(row["rule"]),
        sender=str(row["sender"]),
        stream=_text(row, "stream"),
        detail=_text(row, "detail"),
        certainty=str(row["certainty"]),
    )


def ending_sentence(end: StreamEnding) -> str:
    """The sentence of a stream that did not end cleanly: `acceptor reset d5: quota exceeded`."""
    stream, by = end.stream, end.reset_by
    match end.ending:
        case "reset" | "cancelled" | "rejected":
            text = f"{by} {end.ending} {stream}" if by else f"{stream} was {end.ending}"
        case "never-accepted":
            text = f"{PEER.get(end.opener or '', 'peer')} was not seen to accept {stream}"
        case "abandoned":
            text = f"{stream} was abandoned: its id was used again"
        case "open":
            text = f"{stream} was not seen to end"
        case "half-closed" if end.ended_dialer and not end.ended_acceptor:
            text = f"acceptor was not seen to end its half of {stream}"
        case "half-closed" if end.ended_acceptor and not end.ended_dialer:
            text = f"dialer was not seen to end its half of {stream}"
        case _:
            text = f"{stream} was {end.ending} at the end"
    return f"{text}: {end.error}" if end.error else text


def credit_sentence(stream: str, sender: str, blocked_us: int) -> str:
    """A side that was blocked for much of a stream's life, though in no single stall."""
    blocked = duration_text(blocked_us * 1000)
    return f"{sender} was blocked on {stream} for {blocked} in total: no send credit"


def unfinished_sentence(streams: int) -> str:
    """`1 stream not seen to end`.

    Neither an error nor `open`: the end may have followed the capture, or be in missing bytes.
    """
    return f"{_plural(streams, 'stream')} not seen to end"


def findings_sentence(violations: int, stalls: int, unfinished: int) -> str:
    """`1 violation, 4 stalls, 1 stream not seen to end`."""
    parts = [_plural(violations, "violation"), _plural(stalls, "stall")]
    return ", ".join(parts + ([unfinished_sentence(unfinished)] if unfinished else []))


def no_findings_sentence(unfinished: int) -> str:
    """The sentence for an analysis without findings; unfinished streams are mentioned."""
    if unfinished:
        return f"no rule was broken and no stream stalled; {unfinished_sentence(unfinished)}"
    return "nothing wrong was found"


def window_sentence(window_bytes: int, rtt_us: int) -> str:
    """The sentence of a stream whose window limited its throughput."""
    window, round_trip = size_text(window_bytes), duration_text(rtt_us * 1000)
    limit = rate_text(window_bytes, max(1, rtt_us) * 1000)
    return f"window-limited: {window} window, {round_trip} round trip, so at most {limit}"


def window_limit_bps(window_bytes: int, rtt_us: int) -> float:
    """Bits per second that a window allows: it can be filled once per round trip."""
    return window_bytes * 8 * 1e6 / max(1, rtt_us)


def is_window_limited(
    window_bytes: int | None,
    rtt_us: int | None,
    sent_bytes: int,
    duration_us: int,
    blocked_us: int | None,
) -> bool:
    """Whether the window limited the throughput of a stream.

    True if the sender had no credit for at least a fifth of the time it sent, and reached at least
    half of what window and round trip allow (a sender that had little to send does not).
    """
    if not window_bytes or not rtt_us or not blocked_us or duration_us <= 5 * rtt_us:
        return False
    reached = sent_bytes * 8 * 1e6 / duration_us
    return blocked_us * 5 >= duration_us and reached * 2 >= window_limit_bps(window_bytes, rtt_us)


def capture_sentence(file: str, status: str, error: str | None, offset: int | None) -> str:
    """The sentence of a capture file that could not be read completely."""
    text, rest = {
        "truncated": ("ends inside a block", "; everything before that was read"),
        "damaged": ("is damaged", "; everything before the damage was read"),
        "unreadable": ("could not be read", ""),
    }.get(status, (f"is {status}", ""))
    where = f" at byte {offset:,}" if offset is not None else ""
    why = f" ({error})" if error else ""
    return f"{file} {text}{where}{why}{rest}"


def gap_sentence(missing_bytes: int, sessions: int) -> str:
    """How much of the traffic is missing from the capture."""
    verb = "is" if missing_bytes == 1 else "are"
    return (
        f"{size_text(missing_bytes)} {verb} missing from the capture in "
        f'{_plural(sessions, "session")}; violations after a gap are reported as "possible"'
    )


def _text(row: Mapping[str, object], name: str) -> str | None:
    value = row[name]
    return None if value is None else str(value)


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
