"""Redacting one captured session: its new payload, by its places in the file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from polymux.analysis.detection.detector import select_protocol
from polymux.analysis.detection.other_protocols import (
    detect_other_protocol,
    websocket_upgrade_status,
)
from polymux.analysis.detection.sample import (
    PeekedSession,
    SessionSample,
    may_begin_client_hello,
)
from polymux.analysis.detection.verdict import Detection
from polymux.analysis.options import AnalysisOptions, check_protocol_string
from polymux.analysis.session.analyzer import CLOSED_STREAMS_REMEMBERED, begins_in_middle
from polymux.analysis.tls.session import read_client_hello
from polymux.capture import TcpSession
from polymux.capture.pcapng.comments import hint_comment
from polymux.capture.pcapng.redacted_packets import PayloadSpool
from polymux.capture.tcp.reassembly import GAP, PAYLOAD
from polymux.capture.tcp.sessions import BATCH_BYTES
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.redaction import ConversationRedactor, Redaction
from polymux.core.side import Vantage
from polymux.core.websocket.handshake import NOT_UPGRADE
from polymux.protocols.registry import BadProtocolString, create, parse_protocol

MAX_REMEMBERED_HINTS = 64


@dataclass(slots=True)
class RedactedSession:
    """What was done with a session.

    Attributes:
        protocol: As which it was decoded; None: all its payload is blank.
        tls: Whether that is because it is inside TLS.
        mismatch: Or because its bytes contradict the protocol that was named.
        blanked_bytes: In which no frame was decoded.
        searched: Whether frames were found by searching for their start.
        unlike_headers: Places where decoding stopped and now may stop for another reason.
        hint: A comment that names its protocol, "" if it needs none, and a place in the packet for
            it.
    """

    protocol: str | None = None
    tls: bool = False
    mismatch: bool = False
    blanked_bytes: int = 0
    searched: bool = False
    unlike_headers: int = 0
    hint: tuple[int, str] = (0, "")


def redact_session(
    session: TcpSession,
    options: AnalysisOptions,
    redaction: Redaction,
    spool: PayloadSpool,
) -> RedactedSession:
    """Write the new payload of a session, which lies in one file, to `spool`.

    Raises:
        CaptureError: The payload cannot be read.
    """
    session.scan_packets()
    peeked = PeekedSession(session, BATCH_BYTES)
    sample = peeked.sample()
    head = sample.head(0)
    if may_begin_client_hello(head) and read_client_hello(head) is not None:
        return RedactedSession(tls=True, blanked_bytes=sum(session.reassembled_bytes))
    detection = select_protocol(session, options, sample)
    if detection.protocol is None:
        return RedactedSession(blanked_bytes=sum(session.reassembled_bytes))
    observer = _new_observer(session, detection)
    if detection.mismatch or _is_other_protocol(observer, sample.skipping(detection.skip_bytes)):
        return RedactedSession(mismatch=True, blanked_bytes=sum(session.reassembled_bytes))
    result = RedactedSession(detection.protocol)
    redactor = ConversationRedactor(observer, redaction, detection.skip_bytes)
    first = -1
    for batch in peeked.batches():
        events, start = batch.events, 0
        for n in range(batch.count):
            side, size, at = int(events.side[n]), int(events.size[n]), int(events.timestamp[n])
            if events.kind[n] == PAYLOAD:
                offset = int(events.offset[n])
                first = offset if first < 0 else first
                redactor.feed(side, batch.data[start : start + size], at, offset)
                start += size
            elif events.kind[n] == GAP:
                redactor.gap(side, size, at)
        _write(redactor, spool)
    redactor.finish()
    _write(redactor, spool)
    _write_copies(session, spool)
    result.blanked_bytes = redactor.blanked_bytes
    result.searched = redactor.searched
    result.unlike_headers = redactor.unlike_headers
    nameable = detection.skip_bytes == (0, 0) and is_shareable_protocol(detection.protocol)
    if not is_shareable_protocol(session.protocol_hint or "") and nameable and first >= 0:
        result.hint = (first, hint_comment(detection.protocol))
    return result


@lru_cache(MAX_REMEMBERED_HINTS)
def is_shareable_protocol(text: str) -> bool:
    """Whether a text is a protocol string without a profile, which is a path."""
    try:
        if "profile" in parse_protocol(text).options:
            return False
        check_protocol_string(text)
    except BadProtocolString:
        return False
    return True


def _is_other_protocol(observer: Observer, sample: SessionSample) -> bool:
    """Whether a well-known protocol begins like this, even if the named one could do so too."""
    heads = sample.head(0), sample.head(1)
    if observer.websocket is not None and websocket_upgrade_status(*heads) != NOT_UPGRADE:
        return False
    return detect_other_protocol(*heads) != ""


def _new_observer(session: TcpSession, detection: Detection) -> Observer:
    """The observer of a session, in the state in which its analysis begins."""
    vantage = "unordered" if not session.ordered else session.vantage_hint or "middle"
    protocol = create(
        detection.protocol or "",
        Limits(closed_streams_remembered=CLOSED_STREAMS_REMEMBERED),
        Vantage[vantage.upper()],
    )
    observer = Observer(protocol, False)
    if begins_in_middle(session, detection):
        observer.begin_in_middle()
    if session.unseen_side is not None:
        d = observer.connection.direction(session.unseen_side)
        observer.connection.stop_decoding(d, 0, 0, session.started_at, "not captured")
        d.stopped_by_gap = True
    return observer


def _write(redactor: ConversationRedactor, spool: PayloadSpool) -> None:
    for piece in redactor.take():
        spool.write(piece.tag, piece.data)


def _write_copies(session: TcpSession, spool: PayloadSpool) -> None:
    """Give repeated bytes the new content of their first copy; where they differed, they do."""
    for copy, one, other in session.repeated_bytes():
        new = spool.read(copy.earlier_offset, copy.size)
        if one != other:
            changed = zip(new, one, other, strict=True)
            new = bytes(byte ^ 0xFF if a != b else byte for byte, a, b in changed)
        spool.write(copy.offset, new)
