"""`SharedAddress`: a URL at which several workers accept; their parent binds it."""

from __future__ import annotations

import asyncio
import sys

import click

from polymux.live.errors import describe_os_error
from polymux.live.listener import BoundSockets, bind_sockets
from polymux.live.one_of import OneOf
from polymux.live.urls import Address, parse_url

# Whether the kernel divides connections among the sockets of one address. Elsewhere SO_REUSEPORT
# means something else, or does not exist.
DIVIDES_CONNECTIONS = sys.platform == "linux"


class SharedAddress:
    """The listening sockets of a URL. `bind_shared` makes it.

    At a TCP address on Linux, each worker has sockets of its own; elsewhere, and at Unix sockets,
    all have the same. The parent keeps them open: connections wait until a worker that has died is
    started again.

    Attributes:
        address: With the port that was bound.
        shared: Whether all workers have the same sockets.
    """

    def __init__(self, bound: list[BoundSockets], backlog: int, shared: bool) -> None:
        self.address = bound[0].address
        self.shared = shared
        self._bound = bound
        self._backlog = backlog
        self._closed = False

    def descriptors(self, index: int) -> list[int]:
        """Return those of the sockets of a worker."""
        return [each.fileno() for each in self._bound[0 if self.shared else index].sockets]

    def release(self, index: int) -> None:
        """Close the sockets of a worker that cannot be started: the others get its connections."""
        if not self.shared:
            self._bound[index].close()

    def backlog(self, index: int) -> int:
        """Return that of a worker's sockets, which makes them listen; 0: they do already."""
        return 0 if self.shared else backlog_for(OneOf(index, len(self._bound)), self._backlog)

    async def bind_again(self, index: int) -> None:
        """Bind the sockets of a worker again, if they were released and this is not closed.

        The worker makes them listen: if it cannot be started, they have got no connections.

        Raises:
            OSError: They cannot be bound.
        """
        if not self._closed and not self._bound[0 if self.shared else index].sockets:
            loop = asyncio.get_running_loop()
            self._bound[index] = await bind_sockets(self.address, 0, True, loop=loop)
            if self._closed:  # meanwhile
                self._bound[index].close()

    def close(self) -> None:
        """Close all sockets, and remove the path of a Unix socket. A second call has no effect."""
        self._closed = True
        for bound in self._bound:
            bound.close()


async def bind_shared(url: str, count: int, backlog: int) -> SharedAddress:
    """Bind a URL for so many workers, which divide `backlog`.

    Raises:
        BadUrl: The URL is invalid.
        click.UsageError: It cannot be listened on, or not by several processes.
    """
    address = parse_url(url)
    if address.scheme in ("stdio", "exec"):
        raise click.UsageError(
            f"--processes {count}: {address} is a single connection; leave the option out"
        )
    try:
        if address.scheme == "unix" or not DIVIDES_CONNECTIONS:
            loop = asyncio.get_running_loop()
            return SharedAddress([await bind_sockets(address, backlog, loop=loop)], backlog, True)
        return SharedAddress(await bind_for_each(address, count, backlog), backlog, False)
    except OSError as problem:
        reason = describe_os_error(problem)
        raise click.UsageError(f"{address}: cannot listen there: {reason}") from None


async def bind_for_each(address: Address, count: int, backlog: int) -> list[BoundSockets]:
    """Bind a TCP address for each of so many workers.

    Raises:
        OSError: It cannot be bound.
    """
    bound: list[BoundSockets] = []
    try:
        if address.port:
            # Another server at this address may have SO_REUSEPORT too: this socket has not.
            loop = asyncio.get_running_loop()
            (await bind_sockets(address, backlog, loop=loop)).close()
        for index in range(count):
            bound.append(await bind_for(OneOf(index, count), address, backlog))
            address = bound[0].address  # all have the port that the first has got
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


async def bind_for(one_of: OneOf, address: Address, backlog: int) -> BoundSockets:
    """Bind a TCP address for one worker."""
    loop = asyncio.get_running_loop()
    return await bind_sockets(address, backlog_for(one_of, backlog), True, loop=loop)


def backlog_for(one_of: OneOf, backlog: int) -> int:
    """Return one worker's part of a backlog."""
    return max(1, one_of.share(backlog))
