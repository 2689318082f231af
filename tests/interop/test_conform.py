"""The conformance tester against real peers: each has the verdicts that were measured before."""

from __future__ import annotations

import asyncio

import pytest
from tests.interop import calibration, calibration_probes
from tests.interop.calibration import (
    CELLS,
    case_cells,
    described,
    examine,
    observe_cases,
    running_testee,
)
from tests.interop.node_peer import GO_YAMUX, PEERS, missing_go, require, require_none

from polymux.testing import conform

TIMEOUTS = (3.0, 15.0)  # seconds; a WEDGED case uses them up once or twice

MPLEX_CASES = ("GEN", "MPLEX-HDR-2", "MPLEX-HDR-3", "MPLEX-OPEN", "MPLEX-ROLE", "MPLEX-CLOSE",
               "MPLEX-RESET", "MPLEX-ISO", "MPLEX-LEN-1/over-one-mebibyte")  # fmt: skip

# Peer, what is run (empty: everything), and the cases that are not OK or
# INFORMATIONAL.
PEER_VERDICTS = {
    "nerdbank": (
        (),
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
        (*MPLEX_CASES, "MPLEX-SLOW", "MPLEX-LEN-1/length-2-40", "MPLEX-HDR-1/id-50-million"),
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
        MPLEX_CASES,
        {
            "MPLEX-HDR-2/flag-7": "NON-STRICT",
            "MPLEX-HDR-3/without-end": "WEDGED",
            "MPLEX-LEN-1/over-one-mebibyte": "NON-STRICT",
            "MPLEX-OPEN-1/opened-twice": "FAILED",
        },
    ),
    "libp2p-yamux": (
        (),
        {
            "YAMUX-HDR-4/length-2-31": "FAILED",
            "YAMUX-ID-4/opened-twice": "FAILED",
            "YAMUX-WIN-2/largest-delta-twice": "FAILED",
            "YAMUX-FIN-1/data-after-fin": "FAILED",
        },
    ),
    GO_YAMUX: (
        (),
        {
            "YAMUX-ID-1/stream-0-opened": "FAILED",
            "YAMUX-ID-3/wrong-parity": "FAILED",
            "YAMUX-WIN-2/largest-delta-twice": "FAILED",
            "YAMUX-FIN-1/data-after-fin": "FAILED",
            "YAMUX-RST-2/data-after-the-peers-rst": "UNIMPLEMENTED",  # the library resets none
            "YAMUX-PING-3/ping-without-flags": "NON-STRICT",
        },
    ),
}  # fmt: skip

# Probes of the calibration that need half a minute or a gigabyte; `tests.interop.calibration` has
# them all.
LARGE_PROBES = (
    calibration_probes.multiplex_grows_its_array_to_an_id,
    calibration_probes.nerdbank_keeps_every_offer,
)
PROBES = [
    cell for cell in CELLS if not isinstance(cell.source, str) and cell.source not in LARGE_PROBES
]


@pytest.mark.parametrize("package", PEER_VERDICTS)
def test_a_real_peer_has_the_verdicts_that_were_measured(package: str) -> None:
    require() if package != GO_YAMUX else require_none(missing_go())
    for timeout in TIMEOUTS:  # the second one for a busy machine
        results = asyncio.run(examine(package, PEER_VERDICTS[package][0], timeout))
        found = {
            result.case.id: result.verdict.value
            for result in results.cases
            if result.verdict.value not in ("OK", "INFORMATIONAL")
        }
        if found == PEER_VERDICTS[package][1]:
            break
    assert found == PEER_VERDICTS[package][1]
    seen = {result.case.id: described(result) for result in results.cases}
    expected = case_cells(package)
    lost = {case for case, text in expected.items() if text.startswith(seen[case] + ",")}
    if lost:  # with a reset; see `observe_cases`
        again = asyncio.run(observe_cases(package))
        seen |= {case: again[case] for case in lost}
    assert {case: seen[case] for case in expected} == expected


def test_probes_that_are_no_cases_come_out_as_in_the_calibration() -> None:
    require()
    require_none(missing_go())

    async def observe() -> list[str]:
        slots = asyncio.Semaphore(3)

        async def one(source: calibration.Source) -> str:
            assert not isinstance(source, str)  # see PROBES
            async with slots:
                return await source()

        return await asyncio.gather(*(one(cell.source) for cell in PROBES))

    seen = dict(zip(PROBES, asyncio.run(observe()), strict=True))
    assert {cell: text for cell, text in seen.items() if text != cell.seen} == {}


def test_a_cell_that_differs_from_an_earlier_measurement_says_why() -> None:
    assert all(bool(cell.earlier) == bool(cell.reason) for cell in CELLS)
    assert len({(cell.probe, cell.peer) for cell in CELLS}) == len(CELLS)


def test_a_peer_that_crashes_fails_the_case_that_did_it() -> None:
    require()

    async def run() -> conform.Results:
        async with running_testee("multiplex") as url:
            names = ["MPLEX-LEN-1/length-2-40", "MPLEX-OPEN-3"]
            return await conform.run_async(url, "mplex", names, level=1, timeout=TIMEOUTS[0])

    results = asyncio.run(run())
    assert results.verdict("MPLEX-LEN-1/length-2-40") is conform.Verdict.FAILED
    assert results.note == "the peer is gone since MPLEX-LEN-1/length-2-40"


def test_a_client_of_omnistreams_is_examined_over_a_websocket() -> None:
    require()
    results = conform.run(
        "ws://127.0.0.1:0/", "omnistreams:numbering=legacy",
        ["GEN-FRAG-1", "OMNI-ID-1", "OMNI-META-1/binary"], role="acceptor", level=1,
        timeout=TIMEOUTS[1], command=f"node {PEERS / 'testee.mjs'} omnistreams --connect {{url}}",
    )  # fmt: skip
    assert {result.case.id: result.verdict.value for result in results.cases} == {
        "GEN-FRAG-1/byte-by-byte": "OK",
        "OMNI-ID-1/created-twice": "NON-STRICT",
        "OMNI-META-1/binary": "OK",
    }
