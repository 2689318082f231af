"""Runs cases against a peer, one after the other or several at a time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from polymux.aio.connect import Unreachable
from polymux.conform.catalogue import select
from polymux.conform.connection import PeerConnection
from polymux.conform.engine import CaseRun
from polymux.conform.notation.selection import NOTATIONS
from polymux.conform.opening import Acceptor, Dialer
from polymux.conform.results import CaseResult, RequirementResult, Results
from polymux.core.conformance import Case, Outcome, Requirement, Verdict
from polymux.core.errors import UnwritableOutput
from polymux.live.transports.websocket import protocol_for_scheme
from polymux.live.urls import parse_url
from polymux.protocols.registry import parse_protocol

ROLES = ("dialer", "acceptor")
LEVELS = (0, 1, 2)
CLOSING_SECONDS = 1.0  # to wait for the peer to close the connection after a case
NO_CONNECTION = "no connection"
ANSWER_MISSING = "the peer does not answer, so a reaction cannot always be told from silence"
ECHO_MISSING = "the peer did not echo a stream"
COMMANDS_MISSING = "the peer does not obey the commands of polymux testee"


def heard_from_peer(result: CaseResult) -> bool:
    """Whether the peer has sent a frame in the case."""
    return any(line.sender == "peer" for line in result.log)


class PeerTester:
    """One run.

    Args:
        url: of the peer, or, as acceptor, where to listen.
        protocol: the protocol string.
        names: what to run (see `catalogue.select`); empty: everything.
        role: of the tester, `dialer` or `acceptor`.
        level: of cooperation that the peer offers.
        timeout: seconds to wait for each piece of evidence.
        command: as acceptor: starts the peer for each case.
        captures: a directory for a capture of each case; None: none is written.
        jobs: cases at a time.
        tls: a context for tls:// and wss://.
        peer: the name of the peer in reports; the URL if empty.
        on_result: is called with each result.
    """

    def __init__(
        self,
        url: str,
        protocol: str,
        names: Iterable[str] = (),
        *,
        role: str = "dialer",
        level: int = 0,
        timeout: float = 2.0,
        command: str = "",
        captures: Path | None = None,
        jobs: int = 1,
        tls: ssl.SSLContext | None = None,
        peer: str = "",
        on_result: Callable[[CaseResult], None] | None = None,
    ) -> None:
        if role not in ROLES:
            raise ValueError(f"role is dialer or acceptor, not {role!r}")
        if level not in LEVELS:
            raise ValueError(f"level is 0, 1 or 2, not {level!r}")
        self.protocol = protocol_for_scheme(protocol, parse_url(url).scheme)
        self.spec = parse_protocol(self.protocol)
        self.side = ROLES.index(role)
        self.timeout = timeout
        self.captures = captures
        self.jobs = jobs if role == "dialer" else 1
        self.on_result = on_result
        self.on_listening: Callable[[str], None] | None = None  # with the URL, as acceptor
        self.chosen = select(self.protocol, names)
        self.opener: Dialer | Acceptor
        if role == "dialer":
            self.opener = Dialer(url, timeout, tls)
        else:
            self.opener = Acceptor(url, timeout, tls, command)
        self._gone = ""  # why no further case is run
        self._nonsense = ""  # what shows that the peer does not speak the protocol
        self._connected = False  # at least once
        self._answers = False  # the peer answers what `Notation.liveness` sends
        # Arguments of a command may have bytes that are no text.
        shown = (peer or url).encode(errors="backslashreplace").decode()
        self.results = Results(shown, self.protocol, role, level)

    @property
    def planned(self) -> list[tuple[Requirement, Case]]:
        """The cases that the level allows."""
        return [
            (requirement, case)
            for requirement, cases in self.chosen
            for case in cases
            if case.level <= self.results.level
        ]

    async def run(self) -> Results:
        """Run all cases.

        Raises:
            Unreachable: not even the first connection could be made.
            UnwritableOutput: a capture cannot be written.
        """
        began = time.monotonic()
        async with self.opener:
            if self.on_listening is not None and isinstance(self.opener, Acceptor):
                self.on_listening(str(self.opener.address))
            if self.planned:
                await self._find_cooperation()
            found = await self._run_all()
        self.results.requirements = [
            RequirementResult(
                requirement, tuple(found[case.id] for case in cases if case.id in found)
            )
            for requirement, cases in self.chosen
        ]
        self.results.seconds = time.monotonic() - began
        return self.results

    async def _run_all(self) -> dict[str, CaseResult]:
        slots = asyncio.Semaphore(self.jobs)
        found: dict[str, CaseResult] = {}

        async def one(requirement: Requirement, case: Case) -> None:
            async with slots:
                if self._nonsense:
                    result = CaseResult(case, Verdict.FAILED, None, self._nonsense)
                elif self._gone:
                    result = CaseResult(case, Verdict.UNIMPLEMENTED, None, "not run: " + self._gone)
                else:
                    result = await self._run_case(requirement, case)
                if result.detail.startswith(NO_CONNECTION):
                    result = self._blame(found, result)
                elif result.outcome is Outcome.WEDGED and not await self._still_serves():
                    result = self._hung(found, result)
            found[case.id] = result
            if self.on_result is not None:
                self.on_result(result)

        if self.jobs == 1:
            for requirement, case in self.planned:
                await one(requirement, case)
        else:
            try:
                async with asyncio.TaskGroup() as tasks:
                    for requirement, case in self.planned:
                        tasks.create_task(one(requirement, case))
            except ExceptionGroup as problems:
                raise problems.exceptions[0] from None
        return found

    def _blame(self, found: dict[str, CaseResult], result: CaseResult) -> CaseResult:
        """No connection could be made: the rest is not run. Return the result of this case.

        If the peer closed the connection in a case before, it has not survived that case. While a
        process dies, it may still accept connections: valid frames that it closes on without a
        word are not to blame.
        """
        self._gone = self.results.note = f"the peer is gone since {result.case.id}"
        if isinstance(self.opener, Acceptor):
            # A client need not connect again by itself; one that was started for the case must,
            # unless it is still about to.
            exited = self.opener.child_exited
            verdict = Verdict.FAILED if exited else Verdict.UNIMPLEMENTED
            return replace(result, verdict=verdict)
        if self.jobs > 1:
            return result
        for before in reversed(list(found.values())):
            if before.outcome is not Outcome.CLOSED:
                return result
            self._gone = self.results.note = f"the peer is gone since {before.case.id}"
            if not before.case.breaks and not heard_from_peer(before):
                found[before.case.id] = replace(
                    before, verdict=Verdict.UNIMPLEMENTED, detail="the peer was gone already"
                )
                continue
            text = f"{before.detail}; it could not be reached any more after it"
            found[before.case.id] = replace(before, verdict=Verdict.FAILED, detail=text)
            return replace(result, verdict=Verdict.UNIMPLEMENTED)
        return result

    def _hung(self, found: dict[str, CaseResult], result: CaseResult) -> CaseResult:
        """No connection is served any more: the rest is not run.

        A peer that never served a second connection is not to blame for this case.
        """
        self._gone = self.results.note = f"the peer serves no connection since {result.case.id}"
        served = any(other.outcome is not Outcome.WEDGED for other in found.values())
        if served or heard_from_peer(result):
            return result
        text = "the peer serves no second connection, and each case needs one"
        self.results.note = self._gone = text
        return replace(result, verdict=Verdict.UNIMPLEMENTED, detail=text)

    # What the peer cooperates in

    async def _find_cooperation(self) -> None:
        """Find out whether the peer really echoes, and obeys commands, as the user says.

        Without cooperation, a peer of some protocols still answers something, which shows that it
        is alive: whether it does is found out too.
        """
        results = self.results
        for level in range(results.level, -1, -1):
            script = self._cooperation_script(level)
            if script is None or await self._completes(script):
                results.cooperation = level
                self._answers = script is not None
                return
            if self._nonsense:
                results.note = self._nonsense
                return
            results.note = (ANSWER_MISSING, ECHO_MISSING, COMMANDS_MISSING)[level]

    def _cooperation_script(self, level: int) -> str | None:
        notation = NOTATIONS[self.spec.name](self.spec.options, self.side)
        return notation.obedience() if level == 2 else notation.liveness(0, level)

    async def _completes(self, script: str) -> bool:
        """Whether the peer completes a script on a new connection."""
        case = Case("cooperation", "script", 0, script)
        async with self.opener.connection(self._make(None)) as link:
            self._connected = True
            outcome, detail = await CaseRun(case, link, -1, self.timeout).run()
            link.finish()
            if outcome is Outcome.FORBIDDEN:
                self._nonsense = detail
            return outcome is Outcome.MET

    async def _still_serves(self) -> bool:
        """Whether a new connection is served as the first one was."""
        script = self._cooperation_script(self.results.cooperation)
        try:
            return script is None or await self._completes(script)
        except Unreachable:
            return False

    # One case

    def _make(self, capture: str | None) -> Callable[[], PeerConnection]:
        notation = NOTATIONS[self.spec.name](self.spec.options, self.side)
        return lambda: PeerConnection(self.protocol, self.side, notation, capture)

    def _capture_path(self, case: Case) -> str | None:
        if self.captures is None:
            return None
        path = self.captures / (case.id.replace("/", "-") + ".pcapng")
        try:
            self.captures.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # of an earlier run
        except OSError as problem:
            raise UnwritableOutput(f"{path}: cannot be written: {problem.strerror}") from None
        return str(path)

    async def _run_case(self, requirement: Requirement, case: Case) -> CaseResult:
        if case.level > self.results.cooperation:
            return CaseResult(case, Verdict.UNIMPLEMENTED, None, self.results.note)
        began = time.monotonic()
        path = self._capture_path(case)
        try:
            async with self.opener.connection(self._make(path)) as link:
                self._connected = True
                watched = requirement.rules if not case.breaks else ()
                level = self.results.cooperation if self._answers else -1
                run = CaseRun(case, link, level, self.timeout, watched)
                outcome, detail = await run.run()
                closing = await self._close(link)
                link.finish()
        except Unreachable as problem:
            if not self._connected:
                raise
            return CaseResult(case, Verdict.FAILED, None, f"{NO_CONNECTION}: {problem}")
        if link.capture_problem:
            raise UnwritableOutput(link.capture_problem)
        sides = ("tester", "peer") if self.side == 0 else ("peer", "tester")
        broken = [
            (sides[found.sender], found.rule.name)
            for sender in (0, 1)
            for found in link.violations(sender)
        ]
        return CaseResult(
            case, case.verdicts[outcome], outcome, detail, closing, time.monotonic() - began,
            path or "", tuple(link.log), tuple(broken),
        )  # fmt: skip

    async def _close(self, link: PeerConnection) -> str:
        """End the connection and see how the peer does: clean, abrupt, late or none."""
        began = time.monotonic()
        limit = min(self.timeout, CLOSING_SECONDS)
        if not link.closed and not link.closed_by_us:
            link.end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    while not (link.closed or link.closed_by_us):
                        link.changed.clear()
                        await link.changed.wait()
        if link.closed == "reset":
            return "abrupt"
        if link.closed == "ended":
            return "late" if time.monotonic() - began > limit / 2 else "clean"
        return "none"
