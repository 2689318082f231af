"""The conformance tester against real peers: each has the verdicts that were measured before."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from tests.interop.node_peer import GO_YAMUX, PEERS, go_program, missing_go, require, require_none

from polymux.testing import conform

LINE_LIMIT = 1 << 20
TIMEOUTS = (3.0, 15.0)  # seconds; a WEDGED case uses them up once or twice

MPLEX_CASES = ("GEN", "MPLEX-HDR-2", "MPLEX-HDR-3", "MPLEX-OPEN", "MPLEX-ROLE", "MPLEX-CLOSE",
               "MPLEX-RESET", "MPLEX-ISO", "MPLEX-LEN-1/over-one-mebibyte")  # fmt: skip

# Peer, protocol, level, what is run (empty: everything), and the cases that are not OK or
# INFORMATIONAL.
PEER_VERDICTS = {
    "nerdbank": (
        "nerdbank", 2, (),
        {
            "NB-FRM-2/text-for-code": "FAILED",
            "NB-ID-2/offered-twice": "FAILED",
            "NB-OFF-1/empty-array": "FAILED",
            "NB-OFF-1/number-for-name": "FAILED",
            "NB-OFF-2/content-before-acceptance": "FAILED",
            "NB-OFF-3/accept-twice": "FAILED",
            "NB-BP-7/negative": "FAILED",
            "NB-BP-4/far-over-the-window": "NON-STRICT",
            "NB-BP-7/zero": "NON-STRICT",
            "NB-BP-7/2-62": "NON-STRICT",
            "NB-FRM-4/name-of-one-mebibyte": "NON-STRICT",
        },
    ),
    "libp2p-mplex": (
        "mplex", 2, (*MPLEX_CASES, "MPLEX-SLOW", "MPLEX-LEN-1/length-2-40",
                     "MPLEX-HDR-1/id-50-million"),
        {
            "GEN-WEDGE-1/bad-flag-then-stream": "WEDGED",
            "MPLEX-HDR-2/flag-7": "WEDGED",
            "MPLEX-HDR-3/ten-bytes": "WEDGED",
            "MPLEX-HDR-3/twelve-bytes": "WEDGED",
            "MPLEX-HDR-3/without-end": "WEDGED",
            "MPLEX-OPEN-1/opened-twice": "FAILED",
            "MPLEX-CLOSE-2/message-after-close": "FAILED",
        },
    ),
    "multiplex": (
        "mplex", 2, MPLEX_CASES,
        {
            "MPLEX-HDR-3/without-end": "WEDGED",
            "MPLEX-LEN-1/over-one-mebibyte": "NON-STRICT",
            "MPLEX-OPEN-1/opened-twice": "FAILED",
        },
    ),
    "libp2p-yamux": (
        "yamux", 1, (),
        {
            "YAMUX-HDR-4/length-2-31": "FAILED",
            "YAMUX-ID-4/opened-twice": "FAILED",
            "YAMUX-WIN-2/largest-delta-twice": "FAILED",
            "YAMUX-FIN-1/data-after-fin": "FAILED",
        },
    ),
    GO_YAMUX: (
        "yamux", 1, (),
        {
            "YAMUX-ID-1/stream-0-opened": "FAILED",
            "YAMUX-ID-3/wrong-parity": "FAILED",
            "YAMUX-WIN-2/largest-delta-twice": "FAILED",
            "YAMUX-FIN-1/data-after-fin": "FAILED",
            "YAMUX-PING-3/ping-without-flags": "NON-STRICT",
        },
    ),
}  # fmt: skip

# What was seen where more than one reaction is right.
PEER_OUTCOMES = {
    "nerdbank": {"NB-ID-3/unknown-channel": "closed", "NB-OFF-3/accept-unknown": "closed",
                 "NB-FRM-3/code-9": "ignored"},
    "libp2p-mplex": {"MPLEX-OPEN-5/message-on-unknown-id": "ignored",
                     "MPLEX-LEN-1/over-one-mebibyte": "closed",
                     "MPLEX-LEN-1/length-2-40": "closed", "MPLEX-SLOW-1/unread-stream": "refused",
                     "MPLEX-RESET-1/reset-with-text": "ignored"},
    "multiplex": {"MPLEX-OPEN-5/message-on-unknown-id": "ignored",
                  "MPLEX-HDR-2/flag-7": "ignored", "MPLEX-RESET-1/reset-with-text": "ignored"},
    "libp2p-yamux": {"YAMUX-HDR-1/version-1": "closed", "YAMUX-HDR-2/type-9": "closed",
                     "YAMUX-ID-1/stream-0-opened": "closed", "YAMUX-ID-3/wrong-parity": "closed",
                     "YAMUX-PING-2/unrequested-pong": "closed",
                     "YAMUX-PING-3/ping-without-flags": "closed",
                     "YAMUX-WIN-1/far-over-the-window": "closed",
                     "YAMUX-FIN-2/fin-twice": "ignored", "YAMUX-AWAY-1/code-9": "wedged"},
    GO_YAMUX: {"YAMUX-HDR-1/version-1": "closed", "YAMUX-HDR-2/type-9": "closed",
               "YAMUX-ID-4/opened-twice": "closed", "YAMUX-PING-2/unrequested-pong": "ignored",
               "YAMUX-WIN-1/far-over-the-window": "closed", "YAMUX-FIN-2/fin-twice": "closed",
               "YAMUX-AWAY-1/code-9": "closed"},
}  # fmt: skip


@contextlib.asynccontextmanager
async def running_testee(package: str) -> AsyncIterator[str]:
    """A testee made of a package, as a process of its own; its URL."""
    command = ["node", str(PEERS / "testee.mjs"), package, "--listen", "0"]
    if package == GO_YAMUX:
        command = [str(go_program()), "--testee", "--listen", "0"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, limit=LINE_LIMIT
    )
    assert process.stdout is not None  # it is a pipe
    output = process.stdout

    async def drain() -> None:
        while await output.read(65536):
            pass

    try:
        port = json.loads(await output.readline())["listening"]
        draining = asyncio.create_task(drain())
        yield f"tcp://127.0.0.1:{port}"
        draining.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def examine(package: str, timeout: float = TIMEOUTS[0]) -> conform.Results:
    protocol, level, names, _ = PEER_VERDICTS[package]
    async with running_testee(package) as url:
        return await conform.run_async(
            url, protocol, names, level=level, timeout=timeout, jobs=8, peer=package
        )


@pytest.mark.parametrize("package", PEER_VERDICTS)
def test_a_real_peer_has_the_verdicts_that_were_measured(package: str) -> None:
    require() if package != GO_YAMUX else require_none(missing_go())
    for timeout in TIMEOUTS:  # the second one for a busy machine
        results = asyncio.run(examine(package, timeout))
        found = {
            result.case.id: result.verdict.value
            for result in results.cases
            if result.verdict.value not in ("OK", "INFORMATIONAL")
        }
        if found == PEER_VERDICTS[package][3]:
            break
    assert found == PEER_VERDICTS[package][3]
    outcomes = {result.case.id: result.outcome.value for result in results.cases if result.outcome}
    assert {case: outcomes[case] for case in PEER_OUTCOMES[package]} == PEER_OUTCOMES[package]


def test_a_peer_that_crashes_fails_the_case_that_did_it() -> None:
    require()

    async def run() -> conform.Results:
        async with running_testee("multiplex") as url:
            names = ["MPLEX-LEN-1/length-2-40", "MPLEX-OPEN-3"]
            return await conform.run_async(url, "mplex", names, level=1, timeout=TIMEOUTS[0])

    results = asyncio.run(run())
    assert results.verdict("MPLEX-LEN-1/length-2-40") is conform.Verdict.FAILED
    assert results.note == "the peer is gone since MPLEX-LEN-1/length-2-40"
