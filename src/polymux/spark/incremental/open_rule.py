"""Which sessions of a run are not over: their rows are provisional, their packets are carried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polymux.capture import TcpSession

# After both sides have ended, or after a reset, packets of a session may still come: the last
# acknowledgement, a retransmission. Longer than hosts remember a closed connection (2 MSL).
SETTLE_NS = 300 * 1_000_000_000
DEFAULT_CARRY_DAYS = 7.0
DAY_NS = 86_400 * 1_000_000_000
# A session that is larger is not carried. If it goes on, its captures are read again.
MAX_CARRIED_BYTES = 1 << 30
MAX_CARRIED_PACKETS = 1 << 22


@dataclass(frozen=True, slots=True)
class OpenRule:
    """Decides which sessions of a flow are not over.

    A session is over when both sides have ended, or another session of the flow has begun, and
    `SETTLE_NS` have passed by the packets of its sensor; when it was silent for `carry_ns`; or when
    its sensor is not heard any more.

    Attributes:
        newest: Up to when each sensor was captured, in nanoseconds.
        carry_ns: How long a session that has not ended may be silent.
        unheard: Sensors that are not heard any more: their clocks stand still.
    """

    newest: Mapping[str, int]
    carry_ns: int = int(DEFAULT_CARRY_DAYS) * DAY_NS
    unheard: frozenset[str] = frozenset()

    def open_sessions(self, sessions: Sequence[TcpSession]) -> list[TcpSession]:
        """Return the sessions of a flow that are not over, and those at the same time as them.

        Whether files are kept apart is decided by what is in them at the same time.
        """
        starts = [session.started_at for session in sessions if self._is_open(session)]
        if not starts:
            return []
        since, before = min(starts), 0
        while since != before:
            before = since
            since = min(s.started_at for s in sessions if s.ended_at >= before)
        return [s for s in sessions if s.started_at >= since and not self._is_too_large(s)]

    def _is_open(self, session: TcpSession) -> bool:
        if session.sensor in self.unheard:
            return False
        newest = self.newest.get(session.sensor, session.ended_at)
        if session.ended_at >= newest - SETTLE_NS:
            return True
        if not session.is_last or session.ended_at < newest - self.carry_ns:
            return False
        session.scan_packets()
        return "rst" not in session.ends and None in session.ends

    def _is_too_large(self, session: TcpSession) -> bool:
        return (
            sum(session.segment_bytes) > MAX_CARRIED_BYTES or session.packets > MAX_CARRIED_PACKETS
        )
