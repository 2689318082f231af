"""Conformance tests for pytest and other programs.

    from polymux.testing import conform

    def test_my_server() -> None:
        results = conform.run("tcp://127.0.0.1:9000", "mplex", level=1)
        assert not results.failures()

In pytest, `pytest_plugins = ["polymux.testing.conform"]` in `conftest.py` makes the fixture
`polymux_conform` available: a function with the arguments of `run` that fails the test, with a line
for each case that FAILED or is WEDGED.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from polymux.conform.report.html import write_html
from polymux.conform.report.junit import write_junit
from polymux.conform.results import CaseResult, RequirementResult, Results
from polymux.conform.runner import PeerTester
from polymux.conform.testee import dial_testee, serve_testee
from polymux.core.conformance import Verdict

try:
    import pytest
except ImportError:  # only the fixture needs it
    pytest = None  # type: ignore[assignment]

__all__ = [
    "CaseResult",
    "RequirementResult",
    "Results",
    "Verdict",
    "dial_testee",
    "examine_or_fail",
    "failure_text",
    "run",
    "run_async",
    "serve_testee",
    "write_html",
    "write_junit",
]


async def run_async(
    url: str,
    protocol: str,
    names: Iterable[str] = (),
    *,
    role: str = "dialer",
    level: int = 0,
    timeout: float = 2.0,
    command: str = "",
    captures: str | Path | None = None,
    jobs: int = 1,
    tls: ssl.SSLContext | None = None,
    peer: str = "",
    on_listening: Callable[[str], None] | None = None,
) -> Results:
    """Examine a peer, in a running event loop.

    Args:
        url: Where the peer listens; as acceptor, where the tester listens.
        protocol: The protocol string.
        names: Requirements, groups of them, cases or rules; empty: all cases of the level.
        role: Of the tester, `dialer` or `acceptor`.
        level: What the peer does for the test: 0 nothing, 1 echoes every stream, 2 obeys commands.
        timeout: Seconds to wait for each reaction, or progress towards it, and for a connection; a
            command has 30 s to connect.
        command: As acceptor: starts the peer for each case; `{url}` is where it has to connect.
        captures: A directory for a capture of each case.
        jobs: Cases to run at a time, as dialer.
        tls: A context for tls:// and wss://.
        peer: The peer's name in reports; the URL if empty.
        on_listening: As acceptor: is called with the URL once the tester listens.

    Returns:
        The results, of every case that was run.

    Raises:
        Unreachable: Not even the first connection could be made.
        NoSuchRequirement: Nothing has one of these names.
        BadProtocolString, BadUrl, BadCommand: The protocol, the URL or the command is invalid.
        UnwritableOutput: A capture cannot be written.
    """
    tester = PeerTester(
        url, protocol, names, role=role, level=level, timeout=timeout, command=command,
        captures=Path(captures) if captures is not None else None, jobs=jobs, tls=tls, peer=peer,
    )  # fmt: skip
    tester.on_listening = on_listening
    return await tester.run()


def run(url: str, protocol: str, names: Iterable[str] = (), **options: object) -> Results:
    """Like `run_async`, with its own event loop; takes the same arguments."""
    # The options are those of run_async; a wrong one raises TypeError there.
    return asyncio.run(run_async(url, protocol, names, **options))  # type: ignore[arg-type]


def failure_text(results: Results, strict: bool = False) -> str:
    """A line for each case that failed; "" if none did."""
    return "\n".join(
        f"{result.verdict.value} {result.case.id}: {result.detail}"
        for result in results.failures(strict)
    )


def examine_or_fail(
    url: str, protocol: str, names: Iterable[str] = (), strict: bool = False, **options: object
) -> Results:
    """Like `run`; fails the pytest test that calls it, with a line for each case that failed."""
    results = run(url, protocol, names, **options)
    text = failure_text(results, strict)
    if text:
        pytest.fail(text, pytrace=False)
    return results


if pytest is not None:

    @pytest.fixture(name="polymux_conform")
    def polymux_conform() -> Callable[..., Results]:
        """`examine_or_fail`, as a fixture."""
        return examine_or_fail
