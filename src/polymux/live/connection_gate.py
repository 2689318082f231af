"""`ConnectionGate`: how many connections the listeners of a server accept, and which one goes if
there are too many.

A connection is half-open until its handshakes (TLS, WebSocket, the protocol's own) are done. These
cost the peer next to nothing, so they are few: beyond `Limits.max_half_open`, the oldest one of the
address that has most of them is closed. An honest peer that is only slow must not suffer from that
in a burst of connections, so one that is young is not closed. Until it is old enough there may be
several times as many; with TLS, where they cost much memory, listeners do not accept meanwhile, and
further connections wait in the queue of the kernel.

An address that connects again and again and finishes no handshake would so keep the others waiting
in that queue. Once as many connections of an address as there may be young ones have come to
nothing, its connections are not spared any more while it has most of the places. Those that finish
their handshake restore the trust: a burst of honest clients, which may be slow, does not lose it.

At `Limits.max_sessions` and `Limits.max_sessions_per_address` a half-open connection goes in the
same way, or else one on which the peer has never sent a byte. If there is none, the new connection
is closed.
"""

import ipaddress
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from polymux.core.limits import Counters, Limits
from polymux.live.log_limiter import LogLimiter
from polymux.live.runtime import Timer

log = logging.getLogger("polymux.aio")

# Age from which a half-open connection may be closed in favour of a new one: before and after its
# first byte. A peer that speaks at all sends its first byte right after it has connected.
SILENT_GRACE_SECONDS = 0.25
HANDSHAKE_GRACE_SECONDS = 0.5

YOUNG_FACTOR = 8  # so many times `max_half_open` there may be while they are young, without TLS

NO_ADDRESS = ""  # of a Unix socket: peers cannot be told apart


CallLater = Callable[..., Timer]


@dataclass(frozen=True)
class GateLimits:
    """The bounds of a gate; 0 for `per_address`: none besides `sessions`.

    `names` are the limits as the user knows them, for messages and counters, in the same order, and
    `remedy` has the class that they belong to.
    """

    sessions: int
    per_address: int
    half_open: int
    names: tuple[str, str, str] = ("max_sessions", "max_sessions_per_address", "max_half_open")
    remedy: str = "Limits"

    def describe(self, name: str) -> str:
        """Return the part of a message that names a limit and says how to raise it."""
        value = (self.sessions, self.per_address, self.half_open)[self.names.index(name)]
        return f"limit {name}={value}; raise it with {self.remedy}({name}=...)"


def gate_limits(limits: Limits) -> GateLimits:
    """Return the bounds in the limits of a server."""
    return GateLimits(
        limits.max_sessions, limits.max_sessions_per_address, max(1, limits.max_half_open)
    )


class Place:
    """The place of one connection in a gate, from its acceptance to its end."""

    __slots__ = ("_close", "_gate", "_is_silent", "address", "half_open", "released", "served_at")

    def __init__(self, gate: "ConnectionGate", address: str) -> None:
        self._gate = gate
        self.address = address
        self.served_at: float | None = None
        self.half_open = True
        self.released = False
        self._close: Callable[[str], None] | None = None
        self._is_silent: Callable[[], bool] | None = None

    def attach(self, close: Callable[[str], None], is_silent: Callable[[], bool]) -> None:
        """Say how to close the connection, which is now served: its age counts from here.

        What came before was up to this process, not to the peer.

        Args:
            close: Called with the reason if another connection takes the place.
            is_silent: Returns whether the peer has not sent a byte yet.
        """
        self._close = close
        self._is_silent = is_silent
        self.served_at = time.monotonic()

    def established(self) -> None:
        """The handshakes are done."""
        if self.half_open and not self.released:
            self._gate.on_established(self)

    def release(self) -> None:
        """The connection is gone. A second call has no effect."""
        if not self.released:
            self.released = True
            self._close = self._is_silent = None
            self._gate.on_released(self)

    def is_silent(self) -> bool:
        """Whether the peer has not sent a byte yet."""
        return self._is_silent is None or self._is_silent()

    def close(self, reason: str) -> None:
        """Close the connection, and release the place at once."""
        close = self._close
        self.release()
        if close is not None:
            close(reason)


class ConnectionGate:
    """Counts the connections of all listeners of a server.

    Args:
        limits: The bounds.
        on_limit: Called with the name of a limit each time it was hit.
        make_room: Called if a new connection would be refused, with the addresses of which one may
            go; returns whether it is closing one.

    Attributes:
        counters: How often each limit was hit, by name.
        refused: Connections that were closed because there was no place, or lost theirs.
    """

    def __init__(
        self,
        limits: GateLimits,
        on_limit: Callable[[str], None] | None = None,
        make_room: Callable[[list[str]], bool] | None = None,
    ) -> None:
        self.limits = limits
        self._make_room = make_room
        self.counters = Counters()
        self.refused = 0
        self.log_limiter = LogLimiter(log)
        self._on_limit = on_limit
        self._total = 0
        self._half_open_total = 0
        self._by_address: dict[str, int] = {}
        self._half_open: dict[str, dict[Place, None]] = {}  # by address, oldest first
        # Established, and not known to have sent anything; by address, oldest first.
        self._unheard: dict[str, dict[Place, None]] = {}
        # By address that has half-open ones: how many have ended as such; less those that finished.
        self._fruitless: dict[str, int] = {}
        self._waiting: list[Callable[[], None]] = []  # listeners that wait for room
        self._trim_timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<polymux gate, {self._total} connections, {self._half_open_total} half-open>"

    @property
    def total(self) -> int:
        """Connections that have a place."""
        return self._total

    @property
    def half_open(self) -> int:
        """Of these, how many are half-open."""
        return self._half_open_total

    @property
    def is_full(self) -> bool:
        """Whether a new connection has a place only if another one loses its own."""
        return self._total >= self.limits.sessions

    def seconds_until_room(self, tls: bool) -> float:
        """Return how long a listener has to wait before it may accept a connection; 0.0: not."""
        most = self.limits.half_open if tls else YOUNG_FACTOR * self.limits.half_open
        if self._half_open_total < most:
            return 0.0
        victim = self._oldest_half_open(self._busiest(self._half_open))
        return 0.0 if victim is None else self._remaining_grace(victim)

    def call_when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when a connection has finished its handshake or is gone."""
        self._waiting.append(callback)

    def seconds_until_place(self, address: str) -> float:
        """Return how long an accepted connection has to wait until another one may go for it.

        0.0 if it need not wait, or there is none that could go.
        """
        exceeded, groups = self._exceeded(address_group(address))
        victim = self._victim(groups) if exceeded else None
        return 0.0 if victim is None else self._remaining_grace(victim)

    def admit(self, address: str, call_later: CallLater) -> Place | None:
        """Return a place for an accepted connection, or None if it has to be closed.

        Args:
            address: The peer's address as text; `NO_ADDRESS` if it has none.
            call_later: Calls a function after so many seconds, where the listener runs.
        """
        self._trim_half_open(call_later, self.limits.half_open - 1)
        group = address_group(address)
        while True:
            exceeded, groups = self._exceeded(group)
            if not exceeded:
                break
            victim = self._victim(groups)
            if victim is None or self._remaining_grace(victim):
                if self._make_room is not None and self._make_room(groups):
                    break  # until it is closed there is one connection more
                self._refuse(address, exceeded)
                return None
            self._replace(victim, exceeded)
        place = Place(self, group)
        self._total += 1
        self._half_open_total += 1
        self._by_address[group] = self._by_address.get(group, 0) + 1
        self._half_open.setdefault(group, {})[place] = None
        return place

    # Called by places

    def on_established(self, place: Place) -> None:
        """The handshakes of a connection are done."""
        if place.address in self._fruitless:
            self._fruitless[place.address] //= 2
        self._remove_half_open(place)
        place.half_open = False
        self._unheard.setdefault(place.address, {})[place] = None
        self._wake_waiting()

    def on_released(self, place: Place) -> None:
        """A connection is gone."""
        if place.half_open:
            self._fruitless[place.address] = self._fruitless.get(place.address, 0) + 1
            self._remove_half_open(place)
        else:
            remove_entry(self._unheard, place)
        self._total -= 1
        self._by_address[place.address] -= 1
        if not self._by_address[place.address]:
            del self._by_address[place.address]
        self._wake_waiting()

    def count(self, name: str) -> None:
        """Count that a limit was hit."""
        self.counters.count(name)
        if self._on_limit is not None:
            self._on_limit(name)

    # Private helpers

    def _remove_half_open(self, place: Place) -> None:
        remove_entry(self._half_open, place)
        if place.address not in self._half_open:
            self._fruitless.pop(place.address, None)
        self._half_open_total -= 1

    def _remaining_grace(self, place: Place) -> float:
        """Return for how many seconds a connection may not be closed in favour of another."""
        if place.half_open and self._is_distrusted(place.address):
            return 0.0
        return remaining_grace(place)

    def _is_distrusted(self, address: str) -> bool:
        """Whether an address takes most places for connections that come to nothing."""
        most = self.limits.half_open
        return (
            self._fruitless.get(address, 0) >= YOUNG_FACTOR * most
            and 2 * len(self._half_open.get(address, ())) > most
        )

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _busiest(self, places: dict[str, dict[Place, None]]) -> str:
        """Return the address with most of these places."""
        return max(places, key=lambda address: len(places[address]), default=NO_ADDRESS)

    def _oldest_half_open(self, address: str) -> Place | None:
        """Return the half-open connection of an address that is closed first.

        That is the oldest one on which nothing was received, else the oldest one; of those that are
        too young, the one that is old enough first.
        """
        places = self._half_open.get(address, {})
        silent = next((place for place in places if place.is_silent()), None)
        if silent is not None and not self._remaining_grace(silent):
            return silent
        speaking = next((place for place in places if not place.is_silent()), None)
        found = [place for place in (silent, speaking) if place is not None]
        return min(found, key=self._remaining_grace, default=None)

    def _victim(self, addresses: list[str]) -> Place | None:
        """Return the connection that goes when there are too many sessions.

        That is a half-open one, or one on which nothing was ever received; of the first address
        that has one which is old enough.
        """
        young: list[Place] = []
        for find in (self._oldest_half_open, self._oldest_unheard):
            for address in addresses:
                victim = find(address)
                if victim is not None and not self._remaining_grace(victim):
                    return victim
                if victim is not None:
                    young.append(victim)
        return min(young, key=self._remaining_grace, default=None)

    def _oldest_unheard(self, address: str) -> Place | None:
        """Return the oldest connection of an address on which nothing was ever received."""
        unheard = self._unheard.get(address, {})
        for place in list(unheard):
            if place.is_silent():
                return place
            del unheard[place]  # never to be looked at again
        self._unheard.pop(address, None)
        return None

    def _trim_half_open(self, call_later: CallLater, most: int) -> None:
        """Close half-open connections that are old enough, until `most` are left."""
        if self._trim_timer is not None:
            self._trim_timer.cancel()
            self._trim_timer = None
        while self._half_open_total > most:
            victim = self._oldest_half_open(self._busiest(self._half_open))
            if victim is None:
                return
            seconds = self._remaining_grace(victim)
            if seconds > 0:
                self._trim_timer = call_later(
                    seconds, self._trim_half_open, call_later, self.limits.half_open
                )
                return
            self._replace(victim, self.limits.names[2])

    def _exceeded(self, group: str) -> tuple[str, list[str]]:
        """Return the limit that one more connection of an address would exceed, or an empty text,
        and the addresses of which one could go, the busiest first."""
        limits = self.limits
        if (
            limits.per_address
            and group != NO_ADDRESS
            and self._by_address.get(group, 0) >= limits.per_address
        ):
            return limits.names[1], [group]
        if self._total >= limits.sessions:
            return limits.names[0], sorted(
                self._by_address, key=self._by_address.__getitem__, reverse=True
            )
        return "", []

    def _replace(self, victim: Place, name: str) -> None:
        """Close a connection to make room."""
        self.refused += 1
        self.count(name)
        described = self.limits.describe(name)
        self.log_limiter.warn(
            name, f"a connection of {victim.address or 'a local peer'} that had not finished its "
            f"handshake, or sent nothing, made room for another: {described}",
        )  # fmt: skip
        victim.close(f"it made room for another connection: {described}")

    def _refuse(self, address: str, name: str) -> None:
        self.refused += 1
        self.count(name)
        peer = address or "a local peer"
        self.log_limiter.warn(
            f"{name} refused", f"a connection of {peer} was refused: {self.limits.describe(name)}"
        )


def remove_entry(places: dict[str, dict[Place, None]], place: Place) -> None:
    """Remove a place from those of its address."""
    own = places.get(place.address)
    if own is not None:
        own.pop(place, None)
        if not own:
            del places[place.address]


def remaining_grace(place: Place) -> float:
    """Return for how many more seconds a connection is young."""
    grace = SILENT_GRACE_SECONDS if place.is_silent() else HANDSHAKE_GRACE_SECONDS
    if place.served_at is None:
        return grace
    return max(0.0, place.served_at + grace - time.monotonic())


def address_group(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 one.

    A host usually has a whole /64 network of addresses.
    """
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))
