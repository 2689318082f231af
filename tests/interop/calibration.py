"""The calibration of the conformance tester: what real peers do when they are probed.

One `Cell` for each peer and probe, with what was measured: by a conformance case, or by a probe of
`calibration_probes`. Where an earlier measurement differs, the cell has it too, and the reason.

    PYTHONPATH=src python -m tests.interop.calibration --runs 20

observes every cell so many times, and prints those that differ from the table or between runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from tests.interop import calibration_probes as probes
from tests.interop.node_peer import GO_YAMUX, PEERS, go_program

from polymux.testing import conform

LINE_LIMIT = 1 << 20
ATTEMPTS = 3
TIMEOUT = 3.0  # seconds; a WEDGED case uses them up once or twice
NERDBANK, LIBP2P_MPLEX, MULTIPLEX, LIBP2P_YAMUX = (
    "nerdbank", "libp2p-mplex", "multiplex", "libp2p-yamux",
)  # fmt: skip
PROTOCOLS = {
    NERDBANK: ("nerdbank", 2), LIBP2P_MPLEX: ("mplex", 2), MULTIPLEX: ("mplex", 2),
    LIBP2P_YAMUX: ("yamux", 2), GO_YAMUX: ("yamux", 2),
}  # fmt: skip
SERIES = "that was the process after all probes; here each has a process of its own"

Source = str | Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class Cell:
    """What a peer does about a probe.

    Attributes:
        probe: what is sent to it.
        peer: its name in `peers`.
        source: the id of the conformance case that does so, or a function.
        seen: the verdict and outcome of the case, with the codes of Go Away; or what the function
            returned.
        earlier: what an earlier measurement says, if it is something else.
        reason: why, then.
    """

    probe: str
    peer: str
    source: Source
    seen: str
    earlier: str = ""
    reason: str = ""


CELLS = (
    Cell("duplicate open", NERDBANK, "NB-ID-2/offered-twice", "FAILED ignored"),
    Cell("duplicate open", LIBP2P_MPLEX, "MPLEX-OPEN-1/opened-twice", "FAILED ignored"),
    Cell("duplicate open", MULTIPLEX, "MPLEX-OPEN-1/opened-twice", "FAILED ignored"),
    Cell("data on an unknown stream", NERDBANK, "NB-ID-3/unknown-channel", "OK closed"),
    Cell("data on an unknown stream", LIBP2P_MPLEX, "MPLEX-OPEN-5/message-on-unknown-id",
         "OK ignored"),
    Cell("data on an unknown stream, 6 in a second", LIBP2P_MPLEX,
         probes.libp2p_mplex_limits_unknown_streams,
         "5 at once: ignored; 6: Too many messages for missing streams",
         "closed", "the muxer gives up, and leaves the connection to its owner, which here keeps "
         "it open"),
    Cell("data on an unknown stream", MULTIPLEX, "MPLEX-OPEN-5/message-on-unknown-id",
         "OK ignored"),
    Cell("answer for an unknown stream", NERDBANK, "NB-OFF-3/accept-unknown", "OK closed"),
    Cell("undefined code", NERDBANK, "NB-FRM-3/code-9", "OK ignored"),
    Cell("undefined flag", LIBP2P_MPLEX, "MPLEX-HDR-2/flag-7", "WEDGED wedged"),
    Cell("undefined flag", MULTIPLEX, "MPLEX-HDR-2/flag-7", "NON-STRICT ignored"),
    Cell("varint of 12 bytes", LIBP2P_MPLEX, "MPLEX-HDR-3/twelve-bytes", "WEDGED wedged"),
    Cell("varint of 12 bytes", MULTIPLEX, "MPLEX-HDR-3/twelve-bytes", "OK ignored"),
    Cell("varint without an end", MULTIPLEX, probes.multiplex_waits_for_the_end_of_a_varint,
         "waits for up to 100 bytes"),
    Cell("name of 1 MiB", NERDBANK, "NB-FRM-4/name-of-one-mebibyte", "NON-STRICT ignored"),
    Cell("message over 1 MiB", LIBP2P_MPLEX, "MPLEX-LEN-1/over-one-mebibyte", "OK closed"),
    Cell("header of 512 MiB", MULTIPLEX, probes.multiplex_allocates_what_a_header_announces,
         "accepted and allocated"),
    Cell("header of 2^40 bytes", MULTIPLEX, probes.multiplex_throws_at_a_length_of_2_40,
         "throws, in write"),
    Cell("window overrun 12 times and more", NERDBANK, "NB-BP-4/far-over-the-window",
         "NON-STRICT ignored"),
    Cell("negative window", NERDBANK, "NB-BP-7/negative", "FAILED ignored"),
    Cell("100,000 opens that are not accepted", NERDBANK, probes.nerdbank_keeps_every_offer,
         "all kept, over 100 MB", "all kept, 782 MB", SERIES),
    Cell("100,000 opens", LIBP2P_MPLEX, probes.libp2p_mplex_limits_opens,
         "5 at once: accepted; 100,000: Too many open streams",
         "closed after 5 in a second", "as for unknown streams: the muxer gives up after 5, and "
         "leaves the connection to its owner"),
    Cell("slow reader, 8 MiB", LIBP2P_MPLEX, "MPLEX-SLOW-1/unread-stream", "OK refused"),
    Cell("reset with a body", LIBP2P_MPLEX, "MPLEX-RESET-1/reset-with-text", "OK ignored"),
    Cell("reset with a body", MULTIPLEX, probes.multiplex_takes_the_body_of_a_reset_for_the_error,
         "becomes the error: went wrong"),
    Cell("stream id 50,000,000", LIBP2P_MPLEX, "MPLEX-HDR-1/id-50-million", "OK met"),
    Cell("stream id 50,000,000", MULTIPLEX, probes.multiplex_grows_its_array_to_an_id,
         "an array of 400 MB and more", "about 1 GB",
         "eight bytes for each id, and copies that are not collected yet: 730 to 1,080 MiB"),
    Cell("version 1", GO_YAMUX, "YAMUX-HDR-1/version-1", "OK closed"),
    Cell("version 1", LIBP2P_YAMUX, "YAMUX-HDR-1/version-1", "OK closed, GoAway 1"),
    Cell("type 9", GO_YAMUX, "YAMUX-HDR-2/type-9", "OK closed"),
    Cell("type 9", LIBP2P_YAMUX, "YAMUX-HDR-2/type-9", "OK closed, GoAway 1"),
    Cell("SYN twice", GO_YAMUX, "YAMUX-ID-4/opened-twice", "OK closed"),
    Cell("SYN twice", LIBP2P_YAMUX, "YAMUX-ID-4/opened-twice", "FAILED ignored"),
    Cell("SYN on stream 0", GO_YAMUX, "YAMUX-ID-1/stream-0-opened",
         "FAILED ignored, ACK of stream 0"),
    Cell("SYN on stream 0", LIBP2P_YAMUX, "YAMUX-ID-1/stream-0-opened", "OK closed, GoAway 1"),
    Cell("SYN with wrong parity", GO_YAMUX, "YAMUX-ID-3/wrong-parity", "FAILED ignored"),
    Cell("SYN with wrong parity", LIBP2P_YAMUX, "YAMUX-ID-3/wrong-parity", "OK closed, GoAway 0"),
    Cell("unrequested pong", GO_YAMUX, "YAMUX-PING-2/unrequested-pong", "OK ignored"),
    Cell("unrequested pong", LIBP2P_YAMUX, "YAMUX-PING-2/unrequested-pong",
         "OK closed, GoAway 1"),
    Cell("ping without flags", GO_YAMUX, "YAMUX-PING-3/ping-without-flags", "NON-STRICT ignored"),
    Cell("ping without flags", LIBP2P_YAMUX, "YAMUX-PING-3/ping-without-flags",
         "OK closed, GoAway 1"),
    Cell("window overrun by one byte", GO_YAMUX, "YAMUX-WIN-1/far-over-the-window", "OK closed"),
    Cell("window overrun by one byte", LIBP2P_YAMUX, "YAMUX-WIN-1/far-over-the-window",
         "OK closed, RST, GoAway 1"),
    Cell("FIN twice", GO_YAMUX, "YAMUX-FIN-2/fin-twice", "INFORMATIONAL closed"),
    Cell("FIN twice", LIBP2P_YAMUX, "YAMUX-FIN-2/fin-twice", "INFORMATIONAL ignored"),
    Cell("data after FIN", GO_YAMUX, "YAMUX-FIN-1/data-after-fin", "FAILED forbidden"),
    Cell("data after FIN", LIBP2P_YAMUX, "YAMUX-FIN-1/data-after-fin", "FAILED forbidden"),
    Cell("delta 2^32 - 1 twice", GO_YAMUX, "YAMUX-WIN-2/largest-delta-twice", "FAILED ignored"),
    Cell("delta 2^32 - 1 twice", LIBP2P_YAMUX, "YAMUX-WIN-2/largest-delta-twice",
         "FAILED ignored"),
    Cell("Go Away 9", GO_YAMUX, "YAMUX-AWAY-1/code-9", "INFORMATIONAL closed"),
    Cell("Go Away 9", LIBP2P_YAMUX, "YAMUX-AWAY-1/code-9",
         "INFORMATIONAL wedged, RST, GoAway 0"),
    Cell("5,000 opens", GO_YAMUX, probes.go_resets_beyond_its_backlog,
         "those beyond the backlog reset", "3,078 reset",
         "how many are accepted meanwhile differs from run to run: 2,360 and 2,590 were seen"),
    Cell("5,000 opens", LIBP2P_YAMUX, probes.libp2p_yamux_resets_beyond_its_limit, "4000 reset"),
    Cell("half-close by Go before it has read", GO_YAMUX, probes.go_reads_after_its_own_close,
         "131072 bytes of the tail lost"),
    Cell("half-close by the other side, echo of 64 MiB", GO_YAMUX,
         probes.go_echoes_after_half_close, "0 bytes lost",
         "131,072 bytes lost", "the tail is lost where Go itself closes first, whatever comes "
         "after that; an echo of Go reads to the end before it closes"),
    Cell("echo of Go, as client", "yamux-js", probes.yamux_js_client_of_go,
         "stuck before the end", "stuck after 196,608 bytes",
         "after 65,536 bytes as often; in most runs it discards what it takes for stream 0"),
)  # fmt: skip


def described(result: conform.CaseResult) -> str:
    """Verdict and outcome of a case, and what a yamux peer says about errors."""
    outcome = result.outcome.value if result.outcome else "not run"
    parts = [f"{result.verdict.value} {outcome}"]
    sent = [line.text for line in result.log if line.sender == "peer"]
    if "WindowUpdate+ACK a0 0" in sent:
        parts.append("ACK of stream 0")
    if result.case.requirement.startswith("YAMUX") and any("RST" in text for text in sent):
        parts.append("RST")
    return ", ".join([*parts, *(text for text in sent if text.startswith("GoAway"))])


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


async def examine(package: str, names: Iterable[str], timeout: float = TIMEOUT) -> conform.Results:
    """Run conformance cases against a testee of a package."""
    protocol, level = PROTOCOLS[package]
    async with running_testee(package) as url:
        return await conform.run_async(
            url, protocol, names, level=level, timeout=timeout, jobs=8, peer=package
        )


def case_cells(package: str) -> dict[str, str]:
    """What is expected of the conformance cases of the table, for one peer."""
    return {
        cell.source: cell.seen
        for cell in CELLS
        if cell.peer == package and isinstance(cell.source, str)
    }


async def observe_cases(package: str) -> dict[str, str]:
    """What the conformance cases of the table show about one peer, by their ids.

    What a peer says before it resets the connection can be lost in the reset, so a case that shows
    the verdict and no more is run again; its verdict is the first one.
    """
    expected = case_cells(package)
    wanted = list(expected)
    found: dict[str, str] = {}
    for _ in range(ATTEMPTS):
        for result in (await examine(package, wanted)).cases:
            text = described(result)
            old = found.setdefault(result.case.id, text)
            if text.startswith(old):
                found[result.case.id] = text
        wanted = [case for case, text in found.items()
                  if text != expected[case] and expected[case].startswith(text)]  # fmt: skip
        if not wanted:
            break
    return found


async def observe_all() -> dict[Cell, str]:
    """Observe every cell once."""
    found: dict[Cell, str] = {}
    for package in PROTOCOLS:
        seen = await observe_cases(package)
        found |= {
            cell: seen[cell.source]
            for cell in CELLS
            if cell.peer == package and isinstance(cell.source, str)
        }
    for cell in CELLS:
        if not isinstance(cell.source, str):
            found[cell] = await cell.source()
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.calibration")
    parser.add_argument("--runs", type=int, default=1)
    runs = parser.parse_args(arguments).runs
    seen: dict[Cell, list[str]] = {cell: [] for cell in CELLS}
    for _ in range(runs):
        for cell, text in asyncio.run(observe_all()).items():
            seen[cell].append(text)
            if text != cell.seen:
                print(f"{cell.peer}, {cell.probe}: {text!r}, not {cell.seen!r}", flush=True)
    flipped = [cell for cell, texts in seen.items() if len(set(texts)) > 1]
    other = [cell for cell, texts in seen.items() if set(texts) != {cell.seen}]
    print(json.dumps({"runs": runs, "cells": len(CELLS), "flipped": len(flipped),
                      "not as in the table": len(other)}))  # fmt: skip
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
