"""How a session ended, the note of its row, and whether every byte is accounted for."""

from __future__ import annotations

from polymux.analysis.schema.tables import SIDES
from polymux.analysis.session.summary import SessionSummary
from polymux.analysis.tracking.session_tracker import SessionTracker
from polymux.capture import TcpSession
from polymux.core.observer import Observer


def session_ending(session: TcpSession, observer: Observer, failed: bool) -> str:
    """The `ending` of the session: loss of data takes precedence over how it closed."""
    connection = observer.connection
    directions = (connection.dialer, connection.acceptor)
    if any(session.missing_bytes) or any(direction.stopped_by_gap for direction in directions):
        return "gap"
    if any(direction.decoding_stopped for direction in directions):
        return "undecodable"
    if connection.violation_mask & observer.protocol.truncated_rule:
        return "truncated"
    if failed or not has_ended(session):
        return "unknown"
    return "clean"


def has_ended(session: TcpSession) -> bool:
    """Whether both sides closed, or one reset the connection."""
    return "rst" in session.ends or None not in session.ends


def accounts_for_all_bytes(
    summary: SessionSummary, session: TcpSession, tracker: SessionTracker
) -> bool:
    """Whether each byte is counted exactly once: in a frame, as missing, undecoded or overhead."""
    frame_bytes = (tracker.dialer_frame_bytes, tracker.acceptor_frame_bytes)
    total_bytes = (summary.bytes_dialer, summary.bytes_acceptor)
    other_bytes = (
        summary.missing_bytes_dialer
        + summary.undecoded_bytes_dialer
        + summary.overhead_bytes_dialer,
        summary.missing_bytes_acceptor
        + summary.undecoded_bytes_acceptor
        + summary.overhead_bytes_acceptor,
    )
    if any(total_bytes[side] != frame_bytes[side] + other_bytes[side] for side in (0, 1)):
        return False
    seen = tuple(session.reassembled_bytes[side] + session.missing_bytes[side] for side in (0, 1))
    return bool(summary.read_error) or total_bytes == seen


def session_note(
    session: TcpSession, observer: Observer, summary: SessionSummary, truncated_bytes: int
) -> str | None:
    """The `note` of the session's row; None if there is nothing to note.

    A note that the summary already has comes first. `truncated_bytes` are the bytes of frames over
    the size limit that are left out of the `content` table.
    """
    notes = [text for text in (summary.note, session.note) if text]
    connection = observer.connection
    for side, name in enumerate(SIDES):
        direction = connection.direction(side)
        if session.missing_bytes[side]:
            notes.append(f"{session.missing_bytes[side]} bytes of the {name} were not captured")
        if session.unseen_side == side:
            notes.append(
                f"only one direction was captured, nothing of the {name}: rules that depend on "
                "its frames are not checked"
            )
        elif direction.decoding_stopped:
            notes.append(f"the {name} could not be decoded any further: {direction.stop_reason}")
    if truncated_bytes:
        notes.append(
            f"{truncated_bytes} bytes of overlong frames are left out of the content table"
        )
    if summary.read_error:
        notes.append(f"reading stopped: {summary.read_error}")
    if not summary.balanced:
        notes.append("bytes are not conserved: this is a bug in polymux, please report it")
    return "; ".join(notes) or None
