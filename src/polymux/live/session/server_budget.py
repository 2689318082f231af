"""`ServerBudget`: one bound on what all sessions of a server hold.

A session may hold a little without asking. For more it takes a lease, which grows with what it
holds. Leases are not given back when data is read, which would cost something for every read: when
they add up to the budget, all of them are reduced to what their sessions really hold. Only if that
does not help is the memory used up. Then every session that holds more than an equal share has to
pause reading, as it does for its own limit, until it is below that share.

Looking at all sessions takes time, so this is not done for every growth: only when leases have
grown by a part of the budget since the last time, or after a moment. In between, a session that
finds the memory used up is only told whether it is above its share.
"""

import time
from collections.abc import Callable
from typing import Protocol

# What every session may hold without asking: a part of the budget for all of them, within bounds.
MAX_BASE_LEASE_BYTES = 16 * 1024
MIN_BASE_LEASE_BYTES = 4 * 1024
BASE_LEASES_DIVISOR = 4
LEASE_STEP_BYTES = 256 * 1024  # leases grow by at least this much, so that they seldom have to
# All sessions are looked at when leases have grown by this part of the budget, or after so long.
REVIEW_DIVISOR = 16
REVIEW_SECONDS = 0.1


class MemoryHolder(Protocol):
    """What takes leases: the read backpressure of a session."""

    lease_bytes: int

    @property
    def held_bytes(self) -> int:
        """Bytes that the session holds now."""

    def update(self) -> None:
        """Pause or resume reading, after the lease has changed."""


class ServerBudget:
    """The memory that the sessions of one or several servers share.

    Args:
        total_bytes: The bound.
        sessions: How many sessions there may be.
        clock: Returns the time of a monotonic clock, in seconds.

    Attributes:
        base_lease_bytes: What every session may hold without asking. It is not counted as long as
            the session holds no more, and comes on top of the bound.
        times_exceeded: How often the budget was used up.
    """

    def __init__(
        self,
        total_bytes: int,
        sessions: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_bytes = total_bytes
        part = total_bytes // (BASE_LEASES_DIVISOR * max(1, sessions))
        self.base_lease_bytes = min(MAX_BASE_LEASE_BYTES, max(MIN_BASE_LEASE_BYTES, part))
        self.times_exceeded = 0
        self._clock = clock
        self._leases: dict[MemoryHolder, int] = {}  # what counts against the budget, in bytes
        self._leased_bytes = 0
        self._pressed: dict[MemoryHolder, None] = {}  # paused, or about to be; longest first
        self._grown_bytes = 0  # by which leases have grown since all sessions were looked at,
        self._reviewed_at = -REVIEW_SECONDS  # which was then
        self._pressing = False

    def __repr__(self) -> str:
        return f"<polymux server budget, {self._leased_bytes} of {self.total_bytes} bytes leased>"

    @property
    def held_bytes(self) -> int:
        """Bytes that the sessions with a lease hold now."""
        return sum(holder.held_bytes for holder in self._leases)

    def share_bytes(self, asking: MemoryHolder) -> int:
        """Return what a session may hold while the budget is used up, with `asking` among them."""
        holders = len(self._leases) + (asking not in self._leases)
        return max(self.base_lease_bytes, self.total_bytes // holders)

    def may_hold(self, holder: MemoryHolder, held: int) -> bool:
        """Return whether a session may hold `held` bytes; extend its lease if necessary."""
        if held <= holder.lease_bytes:
            self._pressed.pop(holder, None)
            return True
        if self._lease(holder, held + LEASE_STEP_BYTES):
            return True
        reviewed = self._is_review_due()
        if reviewed:
            self._reclaim()
        if self._lease(holder, held):
            return True
        share = self.share_bytes(holder)
        self._set_lease(holder, min(held, share), held)
        if reviewed:
            self._press_others(holder, share)
        if held <= share:  # those above it make room
            return True
        if holder not in self._pressed:
            self.times_exceeded += 1
            self._pressed[holder] = None
        return False

    def release(self, holder: MemoryHolder) -> None:
        """Forget a session that has ended; those that wait for memory may go on."""
        self._leased_bytes -= self._leases.pop(holder, 0)
        self._pressed.pop(holder, None)
        if self._pressed and self._leased_bytes > self.total_bytes and self._is_review_due():
            self._reclaim()
        for waiting in list(self._pressed):
            if self._leased_bytes > self.total_bytes:
                break
            waiting.update()

    def _lease(self, holder: MemoryHolder, wanted: int) -> bool:
        """Extend a lease if that stays within the budget."""
        if self._leased_bytes - self._leases.get(holder, 0) + wanted > self.total_bytes:
            return False
        self._set_lease(holder, wanted, wanted)
        self._pressed.pop(holder, None)
        return True

    def _set_lease(self, holder: MemoryHolder, lease: int, counted: int) -> None:
        """Let a session hold `lease` bytes, and count `counted` bytes for it."""
        growth = counted - self._leases.get(holder, 0)
        self._leased_bytes += growth
        self._grown_bytes += max(0, growth)
        self._leases[holder] = counted
        holder.lease_bytes = lease

    # Looking at all sessions

    def _is_review_due(self) -> bool:
        return not self._pressing and (
            self._grown_bytes * REVIEW_DIVISOR >= self.total_bytes
            or self._clock() - self._reviewed_at >= REVIEW_SECONDS
        )

    def _reclaim(self) -> None:
        """Reduce every lease to what is held."""
        for holder in list(self._leases):
            held = holder.held_bytes
            if held <= self.base_lease_bytes:
                self._leased_bytes -= self._leases.pop(holder)
                holder.lease_bytes = self.base_lease_bytes
            else:
                self._set_lease(holder, min(holder.lease_bytes, held), held)
        self._grown_bytes = 0
        self._reviewed_at = self._clock()

    def _press_others(self, asking: MemoryHolder, share: int) -> None:
        """Make the sessions that hold more than `share`, and do not pause yet, pause.

        What each holds was just counted.
        """
        self._pressing = True
        try:
            for holder, held in list(self._leases.items()):
                paused = holder in self._pressed and holder.lease_bytes <= share
                if held > share and holder is not asking and not paused:
                    holder.lease_bytes = share
                    holder.update()
        finally:
            self._pressing = False
