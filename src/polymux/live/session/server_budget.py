"""`ServerBudget`: one bound on what all sessions of a server hold.

A session may hold a little without asking. For more it takes a lease, which grows with what it
holds. Leases are not given back when data is read, which would cost something for every read: when
they add up to the budget, all of them are reduced to what their sessions really hold. Only if that
does not help is the memory used up. Then every session that holds more than an equal share has to
pause reading, as it does for its own limit, until it is below that share.
"""

from typing import Protocol

BASE_LEASE_BYTES = 16 * 1024  # what every session may hold without asking
MIN_SHARE_BYTES = 64 * 1024  # an equal share is at least this much, however many sessions there are
LEASE_STEP_BYTES = 256 * 1024  # leases grow by at least this much, so that they seldom have to


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

    Attributes:
        times_exceeded: How often the budget was used up.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.times_exceeded = 0
        self._leases: dict[MemoryHolder, int] = {}  # what counts against the budget, in bytes
        self._leased_bytes = 0
        self._pressed: set[MemoryHolder] = set()  # paused, or about to be
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
        return max(MIN_SHARE_BYTES, self.total_bytes // holders)

    def may_hold(self, holder: MemoryHolder, held: int) -> bool:
        """Return whether a session may hold `held` bytes; extend its lease if necessary."""
        if held <= holder.lease_bytes:
            self._pressed.discard(holder)
            return True
        if self._lease(holder, held + LEASE_STEP_BYTES):
            return True
        self._reclaim()
        if self._lease(holder, held):
            return True
        share = self.share_bytes(holder)
        self._set_lease(holder, min(held, share), held)
        if not self._pressing:
            self._press_others(holder, share)
        if held <= share:  # those above it make room
            return True
        if holder not in self._pressed:
            self.times_exceeded += 1
            self._pressed.add(holder)
        return False

    def release(self, holder: MemoryHolder) -> None:
        """Forget a session that has ended; those that wait for memory may go on."""
        self._leased_bytes -= self._leases.pop(holder, 0)
        self._pressed.discard(holder)
        for waiting in list(self._pressed):
            waiting.update()

    def _lease(self, holder: MemoryHolder, wanted: int) -> bool:
        """Extend a lease if that stays within the budget."""
        if self._leased_bytes - self._leases.get(holder, 0) + wanted > self.total_bytes:
            return False
        self._set_lease(holder, wanted, wanted)
        self._pressed.discard(holder)
        return True

    def _set_lease(self, holder: MemoryHolder, lease: int, counted: int) -> None:
        """Let a session hold `lease` bytes, and count `counted` bytes for it."""
        self._leased_bytes += counted - self._leases.get(holder, 0)
        self._leases[holder] = counted
        holder.lease_bytes = lease

    def _reclaim(self) -> None:
        """Reduce every lease to what is held."""
        for holder in list(self._leases):
            held = holder.held_bytes
            if held <= BASE_LEASE_BYTES:
                self._leased_bytes -= self._leases.pop(holder)
                holder.lease_bytes = BASE_LEASE_BYTES
            else:
                self._set_lease(holder, min(holder.lease_bytes, held), held)

    def _press_others(self, asking: MemoryHolder, share: int) -> None:
        """Make the sessions that hold more than `share` pause."""
        self._pressing = True
        try:
            for holder in list(self._leases):
                if holder is not asking and holder.held_bytes > share:
                    holder.lease_bytes = share
                    holder.update()
        finally:
            self._pressing = False
