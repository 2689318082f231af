"""How a session ended, what a reader of its row should know, and whether every byte is there."""

from __future__ import annotations

from polymux.analysis.schema.tables import SIDES
from polymux.analysis.session.summary import SessionSummary
from polymux.analysis.tracking.session_tracker import SessionTracker
from polymux.capture import TcpSession
from polymux.core.observer import Observer


def session_ending(session: TcpSession, observer: Observer, failed: bool) -> str:
    """The word for the table: what was lost first, then how it stopped."""
    conversation = observer.connection
    directions = (conversation.dialer, conversation.acceptor)
    if any(session.missing_bytes) or any(direction.stopped_by_gap for direction in directions):
        return "gap"
    if any(direction.decoding_stopped for direction in directions):
        return "undecodable"
    if conversation.violation_mask & observer.protocol.truncated_rule:
        return "truncated"
    if failed or not has_ended(session):
        return "unknown"
    return "clean"


def has_ended(session: TcpSession) -> bool:
    """Both sides closed, or one reset the connection, which closes both."""
    return "rst" in session.ends or None not in session.ends


def accounts_for_all_bytes(
    summary: SessionSummary, session: TcpSession, tracker: SessionTracker
) -> bool:
    """Is every byte in a frame, a gap, the carrier, or undecoded; and is none there twice?"""
    framed = (tracker.dialer_frame_bytes, tracker.acceptor_frame_bytes)
    chunks = (summary.bytes_dialer, summary.bytes_acceptor)
    others = (
        summary.missing_bytes_dialer
        + summary.undecoded_bytes_dialer
        + summary.overhead_bytes_dialer,
        summary.missing_bytes_acceptor
        + summary.undecoded_bytes_acceptor
        + summary.overhead_bytes_acceptor,
    )
    if any(chunks[side] != framed[side] + others[side] for side in (0, 1)):
        return False
    seen = tuple(session.reassembled_bytes[side] + session.missing_bytes[side] for side in (0, 1))
    return bool(summary.read_error) or chunks == seen


def session_note(
    session: TcpSession, observer: Observer, summary: SessionSummary, truncated_bytes: int
) -> str | None:
    """What a reader should know besides the columns; None if there is nothing.

    What the summary notes already comes first. `cut`: bytes of overlong frames that are left out
    of the content table.
    """
    said = [text for text in (summary.note, session.note) if text]
    conversation = observer.connection
    for side, word in enumerate(SIDES):
        direction = conversation.direction(side)
        if session.missing_bytes[side]:
            said.append(f"{session.missing_bytes[side]} bytes of the {word} were not captured")
        if session.unseen_side == side:
            said.append(
                f"only one direction was captured, nothing of the {word}: what depends on its "
                "frames is not judged"
            )
        elif direction.decoding_stopped:
            said.append(f"the {word} could not be decoded on: {direction.stop_reason}")
    if truncated_bytes:
        said.append(f"{truncated_bytes} bytes of overlong frames are left out of the content table")
    if summary.read_error:
        said.append(f"reading stopped: {summary.read_error}")
    if not summary.balanced:
        said.append("bytes are not conserved: this is a mistake of polymux, please report it")
    return "; ".join(said) or None
