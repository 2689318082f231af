"""Sessions of one packet, as scans and floods make them: the same one is always decoded alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ACK, BOB, FIN, MS, RST, START, SYN, End

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.plain_rows import PlainRows
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions

PROTOCOLS = ("mplex", "nerdbank:version=3", "omnistreams", "streamux", "minmux", "yamux")
FLAGS = (ACK, SYN, SYN | ACK, ACK | FIN, ACK | RST)
MPLEX = bytes.fromhex("0804676f6f64 0a0568656c6c6f")
OWN_COLUMNS = {"session_id", "dialer", "acceptor", "started_at", "ended_at", "connection_id"}


def rows_of(path: Path, protocol: str, *, remembering: bool) -> list[tuple[object, ...]]:
    """What is found in each session, without what tells equal ones apart.

    If what is missing is asked for, every session is decoded by itself.
    """
    found: list[tuple[object, ...]] = []
    options = AnalysisOptions(protocol)
    with read_sessions([str(path)]) as reader:
        for session in reader:
            tables: list[str] = []

            def note(table: str, rows: object, tables: list[str] = tables) -> None:
                tables.append(table)

            on_missing = None if remembering else lambda session_id, missing: None
            summary = analyze_session(
                session,
                options,
                lambda table, batch: None,
                batcher=PlainRows(note),
                on_missing=on_missing,
            )
            own = {k: v for k, v in summary.row().items() if k not in OWN_COLUMNS}
            counts = summary.findings, summary.unfinished, summary.balanced
            found.append((own, counts, tables))
    return found


def capture_of(path: Path, packets: list[tuple[int, int, bytes]]) -> Path:
    """A capture of packets of different flows: the sender (0 or 1), flags and payload of each."""
    written = []
    for number, (sender, flags, payload) in enumerate(packets):
        ends = End("192.0.2.1", 40000 + number), BOB
        data = build.frame(ends[sender], ends[1 - sender], 100, 7, flags, payload)
        written.append(build.Packet(START + number * MS, data))
    path.write_bytes(build.pcapng(written))
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=8, deadline=None)
@given(data=st.binary(max_size=60), prefix=st.sampled_from((b"", MPLEX, MPLEX[:-2])))
def test_a_packet_that_occurs_again_is_decoded_as_before(
    tmp_path_factory: pytest.TempPathFactory, protocol: str, data: bytes, prefix: bytes
) -> None:
    packets = [(sender, flags, prefix + data) for flags in FLAGS for sender in (0, 1)] * 2
    path = capture_of(tmp_path_factory.mktemp("single") / "a.pcapng", packets)
    found = rows_of(path, protocol, remembering=True)
    assert len(found) == len(packets)
    assert found == rows_of(path, protocol, remembering=False)
