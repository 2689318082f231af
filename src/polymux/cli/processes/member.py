"""`Member`: what a command that may run in several processes has to know about them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from polymux.cli.support.signals import stop_event
from polymux.live.listener import Inherited
from polymux.live.one_of import ALONE, OneOf

if TYPE_CHECKING:
    from polymux.cli.processes.worker import ParentLink


@dataclass(frozen=True)
class Member:
    """One of the processes of a command; the only one, unless it is a worker.

    Attributes:
        one_of: Which worker it is.
        link: To its parent; None: it is no worker.
        listening: What it has inherited, for each URL of the command.
        token: The content of --token-file, which may be a pipe that the parent has read.
        disk_count: Descriptor by which the workers count the files in their directory together.
        line_lock: Descriptor by which only one process at a time prints a line.
    """

    one_of: OneOf = ALONE
    link: ParentLink | None = None
    listening: tuple[Inherited, ...] = ()
    token: bytes | None = None
    disk_count: int | None = None
    line_lock: int | None = None

    @property
    def is_worker(self) -> bool:
        return self.link is not None

    def inherited(self, position: int = 0) -> Inherited | None:
        """Return the sockets of the URL at this position; None if they are not bound yet."""
        return self.listening[position] if self.listening else None

    def unless_worker(self, option: str | None) -> str | None:
        """Return an option that the parent of workers follows in their place; None in a worker."""
        return None if self.is_worker else option

    def stop_event(self) -> asyncio.Event:
        """Return an event that is set when the command is to stop. Call it inside a loop."""
        return stop_event() if self.link is None else self.link.stop_event()


def this_member(context: click.Context) -> Member:
    """Return the member that this process is."""
    return context.find_object(Member) or Member()
