"""Every byte is accounted for, and a reassembly that loses some is caught."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.random_captures import conversations, record

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import read_table
from polymux.capture import CaptureLimits, TcpSession, index_file
from polymux.capture.tcp.sessions import StreamBatch
from polymux.cli.commands.analyze import print_summary
from polymux.cli.support.output import plural
from polymux.spark.batch.analyze_stage import StageResult, analyze_flows
from polymux.spark.batch.pipeline import Analysis
from polymux.spark.batch.reference_shuffle import (
    MIN_BUCKETS,
    FlowSelection,
    ReferenceReader,
    ReferenceWriter,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Damage:
    """Batches of a session as a broken reassembly would give them: one piece of it is missing, or
    comes twice, or is one byte short, while the count of what was captured stays right."""

    def __init__(self, how: str) -> None:
        self.how = how

    def batches(self, session: TcpSession, size: int) -> "Iterator[StreamBatch]":
        kept = list(_honest(session, size))
        session.scan_packets()
        if self.how == "lost":
            kept = kept[1:]
        elif self.how == "doubled":
            kept = [kept[0], *kept]
        else:
            batch = kept[0]
            first = next(n for n in range(batch.count) if batch.size[n] > 1)
            batch.size[first] -= 1
            start = sum(batch.size[n] for n in range(first))
            end = start + batch.size[first]
            batch.data = batch.data[:end] + batch.data[end + 1 :]
        yield from kept


_honest = TcpSession.batches


def analysed(capture: Path, out: Path) -> StageResult:
    """The two stages of the pipeline, in this process."""
    out.mkdir()
    index = index_file(str(capture))
    with ReferenceWriter(str(out)) as writer:
        writer.add(index.rows)
    flows = ReferenceReader(str(out), [writer.result.name], FlowSelection(range(MIN_BUCKETS)))
    return analyze_flows(flows, str(out), AnalysisOptions("mplex"), CaptureLimits())


@pytest.mark.parametrize("how", ["lost", "doubled", "short"])
def test_a_broken_reassembly_is_caught_and_the_run_says_so(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "all.pcapng"
    talks = [talk for talk in conversations(11, 4) if talk[0] == "mplex"]
    record([capture], talks)
    sound = analysed(capture, tmp_path / "sound")
    assert sound.sessions == len(talks)
    assert sound.unbalanced_count == 0
    damage = Damage(how)
    monkeypatch.setattr(
        TcpSession, "batches", lambda self, batch_bytes=1 << 19: damage.batches(self, batch_bytes)
    )
    broken = analysed(capture, tmp_path / "broken")
    assert broken.unbalanced_count == len(talks)
    rows = read_table(tmp_path / "broken", "sessions").to_pylist()
    assert sorted(row["session_id"] for row in rows) == sorted(broken.unbalanced)
    assert all("bytes are not conserved" in row["note"] for row in rows)
    done = Analysis(str(tmp_path / "broken"), [], broken)
    assert not done.conserved
    for table in ("violations", "stalls", "streams"):
        (tmp_path / "broken" / table).mkdir(exist_ok=True)
    print_summary(done, "")
    sessions = plural(len(talks), "session")
    line = f"conservation: bytes are unaccounted for in {sessions}: {broken.unbalanced[0]}"
    assert line in capsys.readouterr().out
