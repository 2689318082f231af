"""`Supervisor`: the parent of workers. It starts them, keeps them running, and ends them.

A worker that has ended in good order says so. If it was not told to stop, the command as a whole is
over, as if it ran in one process: after the first session with --once, or when the disk has failed.
A worker that has died without a word is started again; so is one that was stopped by a signal of
its own. While one ends, or cannot be started, the others get its connections; if there are none,
and several attempts have failed, the command is over.

The first worker starts alone: what prevents its start would prevent that of all others, and is so
reported once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import click

from polymux.cli import ARGUMENTS
from polymux.cli.processes.report import Report, joined_report
from polymux.cli.processes.shared_address import SharedAddress, bind_shared
from polymux.cli.processes.worker_process import Goods, WorkerProcess, start_worker
from polymux.cli.support.exit_codes import EXIT_LIMIT
from polymux.cli.support.queued_output import queued_output
from polymux.cli.support.signals import stop_event
from polymux.cli.support.tls_options import is_secure
from polymux.live.errors import describe_os_error
from polymux.live.log_limiter import LogLimiter
from polymux.live.one_of import OneOf
from polymux.live.peer_identity import AllowedPeers, warn_if_open_to_all
from polymux.live.process_lock import unnamed_file
from polymux.metrics import Family
from polymux.metrics.families import JoinedFamilies
from polymux.record.disk_quota import shared_count_file

log = logging.getLogger("polymux.cli")

RESTART_SECONDS: Final = 1.0  # at least, between two starts of a worker;
MAX_DOUBLINGS: Final = 5  # doubled so often while it cannot be started
MAX_FAILED_STARTS: Final = 5  # of a worker one after another, while no other one accepts
END_SECONDS: Final = 10.0  # for workers to end, in addition to what their sessions may take


class StartFailed(Exception):
    """The workers did not start. `code` is the exit code; what went wrong was printed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


@dataclass
class Work:
    """What the workers of a command do.

    Attributes:
        context: Of the command: the workers get the same arguments.
        count: How many workers.
        urls: Where they accept.
        backlog: Connections that the kernel holds at each URL.
        grace: Seconds that their sessions may take to end.
        tls: Of the URLs that are inside TLS.
        allow: Clients that may connect, see `polymux.serve`.
        token: See `Member`.
        line_lock: See `Member`; set by `run_workers`.
    """

    context: click.Context
    count: int
    urls: Sequence[str]
    backlog: int
    grace: float
    tls: ssl.SSLContext | None = None
    allow: Sequence[str] | None = None
    token: bytes | None = None
    line_lock: int = -1


@dataclass
class Slot:
    """The place of one worker.

    Attributes:
        index: Its number, from 0.
        started: Whether its first worker has begun to accept; done when it has, or has ended.
        worker: The one that runs now.
        keeper: Starts its workers, one after another.
        failed_starts: Workers that have ended one after another before they were ready.
    """

    index: int
    started: asyncio.Future[bool]
    worker: WorkerProcess | None = None
    keeper: asyncio.Task[None] | None = None
    failed_starts: int = 0


class Supervisor:
    """The workers of a command. Use it in `async with`: they accept within the block.

    Args:
        work: What they do.
        stop: Set when the command is to end.

    Raises:
        BadUrl, click.UsageError: At the beginning of the block: a URL cannot be listened on.
        StartFailed: At the beginning of the block.

    Attributes:
        code: The exit code of the command, once the block has ended.
    """

    def __init__(self, work: Work, stop: asyncio.Event) -> None:
        self.code = 0
        self._work = work
        self._stop = stop
        self._addresses: list[SharedAddress] = []
        self._disk_count: int | None = None
        self._slots: list[Slot] = []
        self._over = asyncio.Event()  # a worker has ended the command
        self._ending = asyncio.Event()
        self._log_limiter = LogLimiter(log)
        # Of workers that have ended:
        self._former_report = Report()
        self._former_families = JoinedFamilies()

    @property
    def urls(self) -> list[str]:
        """Where the workers accept, with the ports that were bound."""
        return [str(shared.address) for shared in self._addresses]

    @property
    def report(self) -> Report:
        """The sum of the last reports of all workers, also of those that have ended."""
        return joined_report([self._former_report, *(each.report for each in self._running)])

    async def collect(self) -> list[Family]:
        """Return the metrics of all workers, added up."""
        asked = [worker for worker in self._running if worker.is_ready]
        await asyncio.gather(*(worker.collect() for worker in asked))
        # Those of a worker that has ended meanwhile are among the former ones by now.
        running = [worker.families for worker in asked if worker in self._running]
        return self._former_families.total(running)

    async def wait(self) -> None:
        """Wait until the command is to end, or a worker has ended it."""
        waiting = [asyncio.create_task(event.wait()) for event in (self._stop, self._over)]
        ends: list[asyncio.Task[Any]] = [*waiting, *self._keepers]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def __aenter__(self) -> Supervisor:
        work = self._work
        loop = asyncio.get_running_loop()
        try:
            for url in work.urls:
                self._addresses.append(await bind_shared(url, work.count, work.backlog))
            self._disk_count = shared_count_file()
            self._slots = [Slot(index, loop.create_future()) for index in range(work.count)]
            await self._start(self._slots[:1])
            await self._start(self._slots[1:])
        except BaseException:
            await self._end()
            raise
        for shared in self._addresses:
            tls = work.tls if is_secure(str(shared.address)) else None
            asks_for_token = work.token is not None
            warn_if_open_to_all(shared.address, tls, AllowedPeers(work.allow), asks_for_token)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._end()

    @property
    def _running(self) -> list[WorkerProcess]:
        return [slot.worker for slot in self._slots if slot.worker is not None]

    @property
    def _keepers(self) -> list[asyncio.Task[None]]:
        return [slot.keeper for slot in self._slots if slot.keeper is not None]

    # Starting and ending all

    async def _start(self, slots: Sequence[Slot]) -> None:
        """Start the first workers of these slots.

        Raises:
            StartFailed: One has ended at once, or the command is to end.
        """
        for slot in slots:
            slot.keeper = asyncio.create_task(self._keep(slot))
        stopping = asyncio.create_task(self._stop.wait())
        started = asyncio.gather(*(slot.started for slot in slots))
        ends: list[asyncio.Future[Any]] = [stopping, started]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not started.done() or not all(started.result()):
            raise StartFailed(self.code)

    async def _end(self) -> None:
        """Stop accepting, let the workers end, and kill those that do not in time."""
        self._ending.set()
        for shared in self._addresses:
            shared.close()
        for worker in self._running:
            worker.stop()
        seconds = self._work.grace + END_SECONDS
        keepers = self._keepers
        late = (await asyncio.wait(keepers, timeout=seconds))[1] if keepers else set()
        for worker in self._running:
            log.warning("process %d has not ended in %g s: killed", worker.process.pid, seconds)
            worker.process.kill()
            self.code = self.code or EXIT_LIMIT
        if late:
            await asyncio.wait(late)
        if self._disk_count is not None:
            os.close(self._disk_count)
            self._disk_count = None
        for keeper in keepers:
            keeper.result()  # raises what was not expected

    # Keeping one running

    async def _keep(self, slot: Slot) -> None:
        """Keep a worker of this slot running until all are to end."""
        loop = asyncio.get_running_loop()
        while not (self._ending.is_set() or self._over.is_set()):
            began = loop.time()
            try:
                await self._run_worker(slot)
            except OSError as problem:
                reason = f"cannot be started: {describe_os_error(problem)}"
                self._on_failed_start(slot, EXIT_LIMIT, reason)
            seconds = RESTART_SECONDS * 2 ** min(slot.failed_starts, MAX_DOUBLINGS)
            await self._sleep(began + seconds - loop.time())

    async def _run_worker(self, slot: Slot) -> None:
        """Start a worker, and wait until it has ended.

        Raises:
            OSError: It cannot be started.
        """
        for shared in self._addresses:
            await shared.bind_again(slot.index)
        if self._ending.is_set() or self._disk_count is None:
            return
        work = self._work
        arguments = work.context.meta[ARGUMENTS]
        goods = Goods(arguments, self._addresses, self._disk_count, work.line_lock, work.token)
        worker = await start_worker(OneOf(slot.index, work.count), goods)
        slot.worker = worker
        worker.ready.add_done_callback(lambda ready: self._on_ready(slot, ready.result()))
        worker.stopping.add_done_callback(lambda stopping: self._on_stopping(slot, stopping))
        if self._ending.is_set():
            worker.stop()
        code = await worker.run()
        slot.worker = None
        self._former_report = joined_report([self._former_report, worker.report.at_end()])
        self._former_families.keep(worker.families)
        self._on_ended(slot, worker, code)

    def _on_ready(self, slot: Slot, ready: bool) -> None:
        if ready:
            slot.failed_starts = 0
            if not slot.started.done():
                slot.started.set_result(True)

    def _on_stopping(self, slot: Slot, stopping: asyncio.Future[None]) -> None:
        """A worker was stopped by a signal: if others accept, they get its connections."""
        if stopping.cancelled() or slot.worker is None:  # it has ended
            return
        if any(each.accepts for each in self._running):
            for shared in self._addresses:
                shared.release(slot.index)
        slot.worker.released()

    def _on_ended(self, slot: Slot, worker: WorkerProcess, code: int) -> None:
        """Decide what the end of a worker means for the command."""
        described = f"process {worker.process.pid} {end_text(worker, code)}"
        if self._ending.is_set():
            self.code = self.code or exit_code(code)
        elif not worker.is_ready:
            # It has printed the reason, if it says that it has ended.
            self._on_failed_start(slot, exit_code(code), "" if worker.ended else described)
        elif worker.ended is not None and not worker.ended.stopped:
            self._finish(exit_code(code))
        else:
            if worker.ended is not None:  # something may be missing from what it has written
                self.code = self.code or code
            self._log_limiter.warn("ended", f"{described} and is started again")

    def _on_failed_start(self, slot: Slot, code: int, reason: str) -> None:
        """A worker did not start: try again, or give up. `reason`: what no worker has printed."""
        slot.failed_starts += 1
        others = [worker for worker in self._running if worker.accepts]
        if slot.started.done() and (others or slot.failed_starts < MAX_FAILED_STARTS):
            if others:  # they get its connections
                for shared in self._addresses:
                    shared.release(slot.index)
            what = reason or "a process has ended at its start"
            self._log_limiter.warn("failed start", f"{what}; its start is tried again")
            return
        if reason:
            log.error("%s", reason)
        self._finish(code)
        if not slot.started.done():
            slot.started.set_result(False)

    def _finish(self, code: int) -> None:
        self.code = self.code or code
        self._over.set()

    async def _sleep(self, seconds: float) -> None:
        """Wait for so long, or until all are to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._ending.wait()


def end_text(worker: WorkerProcess, code: int) -> str:
    """How a worker has ended, for messages."""
    if worker.ended is not None:
        return "was stopped"
    if code < 0:
        return f"was ended by signal {-code} ({signal.strsignal(-code)})"
    return f"has ended with exit code {code}"


def exit_code(code: int) -> int:
    """The exit code of a process as shells report it."""
    return code if code >= 0 else 128 - code


def run_workers(
    work: Work,
    observed: Callable[[Supervisor], AbstractAsyncContextManager[None]],
    within: Callable[[Supervisor], Coroutine[Any, Any, None]],
    summarize: Callable[[Report], None] | None = None,
) -> int:
    """Run workers until the command is to end. Return its exit code.

    Args:
        work: What they do.
        observed: Returns what is there from before they start until they have ended, such as
            endpoints with their state.
        within: Called when all accept. They end when it returns.
        summarize: Called with the sum of their last reports, when all have ended.
    """

    async def run() -> int:
        workers = Supervisor(work, stop_event())
        try:
            async with observed(workers), workers:
                await within(workers)
        except StartFailed as failed:
            return failed.code
        if summarize is not None:
            summarize(workers.report)
        return workers.code

    work.line_lock = unnamed_file(0)
    try:
        with queued_output(lock=work.line_lock):
            return asyncio.run(run())
    finally:
        os.close(work.line_lock)
