"""Ports for peers without an address, such as those of a Unix socket, in captures."""

from __future__ import annotations

from polymux.live.one_of import OneOf

FIRST_PORT = 1025
PORT_COUNT = 60_000


class MadeUpPorts:
    """Gives each connection another port, and the first one again after `PORT_COUNT` of them.

    Args:
        one_of: Of several processes that record connections of one address, each has ports of its
            own: no two connections at a time look like one.
    """

    def __init__(self, one_of: OneOf) -> None:
        self._one_of = one_of
        self._taken = 0

    def take(self) -> int:
        """Return the next port."""
        own = self._one_of
        number = self._taken % (PORT_COUNT // own.count)
        self._taken += 1
        return FIRST_PORT + own.index + own.count * number
