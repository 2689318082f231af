"""Every finding as one sentence: which side did not do what, on which stream, and what it cost.

`ls`, `check`, `analyze`, `demo` and the report all take their sentences from here. Only facts from
the tables go in. A sentence names the side at fault first; the side that waited comes second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymux.text.units import duration_text, rate_text, size_text

PEER: Final = {"dialer": "acceptor", "acceptor": "dialer"}
ABORTED_ENDINGS: Final = ("reset", "cancelled", "rejected", "abandoned")
STALL_HEADLINES: Final = {
    "no-reply": "Peers did not answer",
    "no-credit": "Streams waited for credit",
    "slow-reader": "Readers did not read",
    "head-of-line": "Streams waited behind another stream",
    "transport": "The network lost or held back data",
}
"""One headline a cause that is a finding; `sender-idle` has none, because it is never one."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A row of `stalls`. `sender` is the side whose bytes did not come."""

    stream: str
    sender: str
    duration_us: int
    cause: str
    blocking_stream: str | None = None
    blocking_stream_name: str = ""

    @classmethod
    def from_row(cls, row: Mapping[str, object]) -> "Stall":
        lasted = row["duration_us"]
        return cls(
            str(row["stream"]), str(row["sender"]), lasted if isinstance(lasted, int) else 0,
            str(row["cause"]), _text(row, "blocking_stream"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamEnding:
    """How a stream ended, as its row in `streams` has it."""

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
    """`acceptor did not read d3: dialer waited 1.2 s (slow-reader)`."""
    lasted = duration_text(stall.duration_us * 1000)
    stream, sender = stall.stream, stall.sender
    peer = PEER.get(sender, "peer")
    match stall.cause:
        case "no-reply":
            told = f"{sender} did not answer {peer} on {stream} for {lasted}"
        case "no-credit":
            told = f"{peer} gave no credit on {stream}: {sender} waited {lasted}"
        case "slow-reader":
            told = f"{peer} did not read {stream}: {sender} waited {lasted}"
        case "head-of-line":
            first = stall.blocking_stream or "another stream"
            name = f" ({stall.blocking_stream_name})" if stall.blocking_stream_name else ""
            told = f"{sender} sent {first}{name} first: {stream} waited {lasted}"
        case "transport":
            told = f"the network or the capture lost bytes of {stream}: {peer} waited {lasted}"
        case "sender-idle":
            told = f"{sender} sent nothing on {stream} for {lasted}"
        case _:
            told = f"{stream} stood still for {lasted}"
    return f"{told} ({stall.cause})"


def violation_sentence(
    rule: str, sender: str, stream: str | None, detail: str | None, certainty: str
) -> str:
    """`dialer broke mplex.write-after-close on d3: 4 bytes after its close`."""
    verb = "broke" if certainty == "certain" else "may have broken"
    where = f" on {stream}" if stream else ""
    told = f": {detail}" if detail else ""
    return f"{sender} {verb} {rule}{where}{told}"


def violation_text(row: Mapping[str, object]) -> str:
    """The sentence for a row of `violations`."""
    return violation_sentence(
        str(row["rule"]), str(row["sender"]), _text(row, "stream"), _text(row, "detail"),
        str(row["certainty"]),
    )  # fmt: skip


def ending_sentence(end: StreamEnding) -> str:
    """`acceptor reset d5: disk quota exceeded`, or what was not seen of a stream."""
    stream, by = end.stream, end.reset_by
    match end.ending:
        case "reset" | "cancelled" | "rejected":
            told = f"{by} {end.ending} {stream}" if by else f"{stream} was {end.ending}"
        case "never-accepted":
            told = f"{PEER.get(end.opener or '', 'peer')} was not seen to accept {stream}"
        case "abandoned":
            told = f"{stream} was abandoned: its id was used again"
        case "open":
            told = f"{stream} was not seen to end"
        case "half-closed" if end.ended_dialer and not end.ended_acceptor:
            told = f"acceptor was not seen to end its half of {stream}"
        case "half-closed" if end.ended_acceptor and not end.ended_dialer:
            told = f"dialer was not seen to end its half of {stream}"
        case _:
            told = f"{stream} was {end.ending} at the end"
    return f"{told}: {end.error}" if end.error else told


def credit_sentence(stream: str, sender: str, blocked_us: int) -> str:
    """A side that was out of credit for much of a stream's life, though in no single stall."""
    blocked = duration_text(blocked_us * 1000)
    return f"{sender} was out of credit on {stream} for {blocked} in all"


def unfinished_sentence(streams: int) -> str:
    """`1 stream not seen to end`: never called an error, and never called fine.

    Nor called open: its end may have passed after the capture, or in bytes that it lacks.
    """
    return f"{_plural(streams, 'stream')} not seen to end"


def findings_sentence(violations: int, stalls: int, unfinished: int) -> str:
    """`1 violation, 4 stalls, 1 stream not seen to end`."""
    said = [_plural(violations, "violation"), _plural(stalls, "stall")]
    return ", ".join(said + ([unfinished_sentence(unfinished)] if unfinished else []))


def no_findings_sentence(unfinished: int) -> str:
    """What is said where there is no finding; open streams are not `nothing wrong`."""
    if unfinished:
        return f"no rule was broken and no stream stalled; {unfinished_sentence(unfinished)}"
    return "nothing wrong was found"


def window_sentence(window_bytes: int, rtt_us: int) -> str:
    """Why a stream could not go faster although no side did anything wrong."""
    return (
        f"window-limited: {size_text(window_bytes)} window, {duration_text(rtt_us * 1000)} round trip, "
        f"so at most {rate_text(window_bytes, max(1, rtt_us) * 1000)}"
    )


def window_limit_bps(window_bytes: int, rtt_us: int) -> float:
    """Bits a second that a window allows: it can be filled once a round trip."""
    return window_bytes * 8 * 1e6 / max(1, rtt_us)


def is_window_limited(
    window_bytes: int | None,
    rtt_us: int | None,
    sent_bytes: int,
    duration_us: int,
    blocked_us: int | None,
) -> bool:
    """Did the window, and not the sender, set the pace?

    Yes if the sender was out of credit for at least a fifth of the time it sent, and reached at
    least half of what window and round trip allow (a sender that had little to send does not).
    """
    if not window_bytes or not rtt_us or not blocked_us or duration_us <= 5 * rtt_us:
        return False
    reached = sent_bytes * 8 * 1e6 / duration_us
    return blocked_us * 5 >= duration_us and reached * 2 >= window_limit_bps(window_bytes, rtt_us)


def capture_sentence(file: str, status: str, error: str | None, offset: int | None) -> str:
    """What could not be read of a file."""
    told, rest = {
        "truncated": ("ends inside a block", "; everything before that was read"),
        "damaged": ("is damaged", "; what stands before the damage was read"),
        "unreadable": ("could not be read", ""),
    }.get(status, (f"is {status}", ""))
    where = f" at byte {offset:,}" if offset is not None else ""
    why = f" ({error})" if error else ""
    return f"{file} {told}{where}{why}{rest}"


def gap_sentence(missing_bytes: int, sessions: int) -> str:
    """How much of the traffic is not in the capture."""
    where = _plural(sessions, "session")
    return f"{size_text(missing_bytes)} missing from the capture in {where}: verdicts after a gap are softer"


def _text(row: Mapping[str, object], name: str) -> str | None:
    value = row[name]
    return None if value is None else str(value)


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
