"""Captures of one side only: rules that depend on the other side are not checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.constructed_stalls import Mplex, Nerdbank
from tests.analysis.packet_script import Wire
from tests.analysis.recorded_conversation import MS, START, Found, analyse

from polymux.analysis.options import AnalysisOptions
from polymux.capture.packets.packet_refs import ACK, FIN


class OneSide(Wire):
    """A connection of which only the packets of `side` were captured, from `since` on."""

    def __init__(self, path: Path, side: int, since: int = 0) -> None:
        self.side, self.since = side, since
        super().__init__(path, rtt=2 * MS)

    def packet(
        self, side: int, at: int, seq: int, ack: int, flags: int, data: bytes = b"",
        window: int = 65535,
    ) -> None:  # fmt: skip
        if side == self.side and at >= self.since:
            super().packet(side, at, seq, ack, flags, data, window)


def talked(path: Path, wire: Mplex, side: int, *, started: bool) -> Found:
    """Three streams of the dialer, each with a request and an immediate answer."""
    made = OneSide(path, side, 0 if started else START + 3 * MS)
    at = START + 5 * MS
    for number in (1, 3, 5):
        for sender, data in wire.open(0, number, 50_000):
            at += MS
            made.data(sender, data, at)
        for _ in range(20):
            made.data(0, wire.data(0, 0, number, 500), at + MS)
        made.data(0, wire.end(0, 0, number), at + 2 * MS)
        made.data(1, wire.data(1, 0, number, 500) + wire.end(1, 0, number), at + 3 * MS)
        at += 10 * MS
    for sender in (0, 1):
        later = at + 8_000 * MS
        made.packet(sender, later, made.next[sender], made.next[1 - sender], FIN | ACK)
    return analyse(made.close(), plan=AnalysisOptions(wire.name))


@pytest.mark.parametrize("started", [True, False], ids=["start", "late"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("wire", [Mplex(), Nerdbank()], ids=["mplex", "nerdbank"])
def test_a_side_that_was_not_captured_reports_no_peer(
    wire: Mplex, side: int, started: bool, tmp_path: Path
) -> None:
    found = talked(tmp_path / "a.pcapng", wire, side, started=started)
    assert [row for row in found.rows("stalls") if row["cause"] != "sender-idle"] == []
    assert [row for row in found.rows("violations") if row["severity"] != "note"] == []
    session = found.session
    assert session.findings == 0
    assert session.balanced
    assert session.ending == "gap"
    missing = ("acceptor", "dialer")[side]
    assert f"only one direction was captured, nothing of the {missing}" in str(session.note)


def test_a_side_that_only_acknowledges_was_captured_and_is_silent(tmp_path: Path) -> None:
    wire = Mplex()
    made = Wire(tmp_path / "a.pcapng", rtt=2 * MS)
    made.data(0, wire.open(0, 1)[0][1] + wire.end(0, 0, 1), START + 5 * MS)
    made.window(1, 65535, START + 6 * MS)
    made.window(0, 65535, START + 9_000 * MS)
    found = analyse(made.close(), plan=AnalysisOptions("mplex"))
    assert [row["cause"] for row in found.rows("stalls")] == ["no-reply"]
    assert found.session.note is None
