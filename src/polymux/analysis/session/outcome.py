"""How a session ended, what a reader of its row should know, and whether every octet is there."""

from __future__ import annotations

from polymux.analysis.session.summary import SessionSummary
from polymux.analysis.tracking.session_tracker import Watch
from polymux.capture import TcpSession
from polymux.core.observer import Observer


def ending_of(session: TcpSession, observer: Observer, failed: bool) -> str:
    """The word for the table: what was lost first, then how it stopped."""
    conversation = observer.conversation
    directions = (conversation.dialer, conversation.acceptor)
    if any(session.gaps) or any(direction.holed for direction in directions):
        return "gap"
    if any(direction.lost for direction in directions):
        return "undecodable"
    if conversation.verdicts & observer.protocol.truncated:
        return "truncated"
    if failed or not has_ended(session):
        return "unknown"
    return "clean"


def has_ended(session: TcpSession) -> bool:
    """Both sides closed, or one reset the connection, which closes both."""
    return "rst" in session.ends or None not in session.ends


def conserved(summary: SessionSummary, session: TcpSession, watch: Watch) -> bool:
    """Is every octet in a frame, a gap, the carrier, or undecoded; and is none there twice?"""
    framed = (watch.framed0, watch.framed1)
    octets = (summary.bytes_dialer, summary.bytes_acceptor)
    others = (
        summary.missing_bytes_dialer
        + summary.undecoded_bytes_dialer
        + summary.overhead_bytes_dialer,
        summary.missing_bytes_acceptor
        + summary.undecoded_bytes_acceptor
        + summary.overhead_bytes_acceptor,
    )
    if any(octets[side] != framed[side] + others[side] for side in (0, 1)):
        return False
    seen = tuple(session.octets[side] + session.gaps[side] for side in (0, 1))
    return bool(summary.failure) or octets == seen


def note_of(
    session: TcpSession, observer: Observer, summary: SessionSummary, cut: int
) -> str | None:
    """What a reader should know besides the columns; None if there is nothing.

    What the summary notes already comes first. `cut`: octets of overlong frames that are left out
    of the content table.
    """
    said = [text for text in (summary.note, session.note) if text]
    conversation = observer.conversation
    for side, word in enumerate(("dialer", "acceptor")):
        direction = conversation.direction(side)
        if session.gaps[side]:
            said.append(f"{session.gaps[side]} octets of the {word} were not captured")
        if session.unheard == side:
            said.append(
                f"only one direction was captured, nothing of the {word}: what depends on its "
                "frames is not judged"
            )
        elif direction.lost:
            said.append(f"the {word} could not be decoded on: {direction.reason}")
    if cut:
        said.append(f"{cut} octets of overlong frames are left out of the content table")
    if summary.failure:
        said.append(f"reading stopped: {summary.failure}")
    if not summary.balanced:
        said.append("octets are not conserved: this is a mistake of polymux, please report it")
    return "; ".join(said) or None
