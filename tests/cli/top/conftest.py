"""A capture of every protocol, recorded once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.constructed_stall_cases import TWO_WAY, all_cases
from tests.cli.conftest import START

from polymux.capture import PcapngWriter, TcpConnectionWriter, hint_comment

MS = 1_000_000


@pytest.fixture(scope="session")
def demo_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One capture with a dozen sessions of all protocols, interleaved, with stalls."""
    path = tmp_path_factory.mktemp("demo") / "demo.pcapng"
    small = [
        case
        for case in all_cases()
        if len(case.events) < 60 and all(event[2] == "data" for event in case.events)
    ]
    cases = small[:: max(1, len(small) // 14)]
    assert len({case.protocol for case in cases}) >= len(TWO_WAY)
    with PcapngWriter(str(path)) as writer:
        events = []
        for number, case in enumerate(cases):
            talk = TcpConnectionWriter(
                writer, ("10.0.0.1", 4000 + number), ("10.0.0.2", 9000), START,
                comment=hint_comment(case.protocol, "middle"),
            )  # fmt: skip
            end = max(at for at, *_ in case.events)
            events += [(at, number, talk, side, data) for at, side, _, data in case.events]
            events += [(end + 1, number, talk, side, None) for side in (0, 1)]
        for at, _, talk, side, data in sorted(events, key=lambda event: event[:2]):
            when = START + int((at + 2.0) * MS)
            if data is None:
                talk.end(side, when)
            else:
                assert isinstance(data, bytes)
                talk.data(side, data, when)
    return path
