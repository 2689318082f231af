"""The same capture gives the same tables, however it is split, ordered or repeated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import MS, START, Found, analyse, save

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.table_digest import digest_batches
from polymux.analysis.session import analyzer as walking
from polymux.analysis.session.analyzer import analyze_flow
from polymux.capture import FilePool, FlowRefs, index_range, plan_ranges
from polymux.testing.simulator import Simulation


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """Random traffic on one connection, in one file."""
    world = Simulation("nerdbank:version=3", 11)
    world.run(3000)
    record = [(side, data, START + at) for side, data, at in world.record]
    return save(tmp_path / "a.pcapng", record, START + world.now + MS)


def digests(found: Found) -> dict[str, str]:
    return digest_batches(found.batches)


def from_rows(rows: Iterable[FlowRefs]) -> Found:
    """Analyze the references of flows as a Spark task does."""
    found = Found()
    flows: dict[bytes, list[FlowRefs]] = defaultdict(list)
    for row in rows:
        flows[row.flow].append(row)
    with FilePool() as files:
        for refs in flows.values():
            found.sessions += analyze_flow(
                refs, files.reader, AnalysisOptions().with_content(), found.emit
            )
    return found


@pytest.mark.parametrize("target", [1 << 30, 20_000, 3_000, 200])
def test_ranges_of_a_file_give_the_tables_of_the_file(recorded: str, target: int) -> None:
    whole = analyse(recorded, plan=AnalysisOptions().with_content())
    ranges = plan_ranges(recorded, target=target)
    rows = [row for span in ranges for row in index_range(recorded, span).rows]
    backwards = from_rows(reversed(rows))
    twice = from_rows([*rows, *rows])
    assert digests(backwards) == digests(twice) == digests(whole)
    assert whole.session.frames > 100


def test_rotated_files_give_the_tables_of_one(recorded: str, tmp_path: Path) -> None:
    data = Path(recorded).read_bytes()
    blocks, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        blocks.append(data[at : at + size])
        at += size
    parts = []
    for start in range(2, len(blocks), 57):
        part = tmp_path / f"part-{start}.pcapng"
        part.write_bytes(b"".join([*blocks[:2], *blocks[start : start + 57]]))
        parts.append(str(part))
    whole, cut = analyse(recorded), analyse(*reversed(parts))
    assert digests(cut) == digests(whole)
    assert len(cut.session.capture) == len(parts) > 2


@pytest.mark.parametrize("size", [1, 700, 100_000])
def test_the_size_of_what_is_read_at_once_changes_nothing(
    recorded: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analyse(recorded, plan=AnalysisOptions().with_content())
    monkeypatch.setattr(walking, "BATCH_BYTES", size)
    assert digests(analyse(recorded, plan=AnalysisOptions().with_content())) == digests(whole)


@pytest.mark.parametrize("size", [1, 1000, 1 << 30])
def test_a_frame_that_passes_while_its_id_is_used_again_belongs_to_the_former_use(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "BATCH_BYTES", size)
    answer = b"\x01\xc0\x84\x3d" + b"x" * 1_000_000  # MessageReceiver on id 0
    turns = [
        (1, b"\x00\x01a"),
        (0, answer[:300_000]),
        (1, b"\x06\x00" + b"\x00\x01b"),  # reset, and opened again
        (0, answer[300_000:]),
        (0, b"\x01\x05hello"),
    ]
    record = [(side, data, START + n * MS) for n, (side, data) in enumerate(turns, 1)]
    path = save(tmp_path / "a.pcapng", record, START + 9 * MS)
    found = analyse(path, plan=AnalysisOptions("mplex").with_content())
    assert {row["stream"]: row["bytes_dialer"] for row in found.rows("streams")} == {
        "a0": 1_000_000, "a0.2": 5,
    }  # fmt: skip
    sent = [row["stream"] for row in found.rows("frames") if row["sender"] == "dialer"]
    assert sent == ["a0", "a0.2"]
    assert [(row["stream"], len(row["data"])) for row in found.rows("content")] == [  # type: ignore[arg-type]  # bytes
        ("a0", 1_000_000), ("a0.2", 5),
    ]  # fmt: skip
    assert {row["stream"] for row in found.rows("timeline")} == {"a0", "a0.2"}
    assert found.session.payload_bytes_dialer == 1_000_005


def test_a_changed_byte_changes_the_digest(recorded: str, tmp_path: Path) -> None:
    data = Path(recorded).read_bytes()
    at = data.index(b"\0" * 1000) + 500  # inside content
    data = data[:at] + b"\1" + data[at + 1 :]
    other = tmp_path / "other.pcapng"
    other.write_bytes(data)
    plan = AnalysisOptions("nerdbank:version=3").with_content()
    assert digests(analyse(str(other), plan=plan)) != digests(analyse(recorded, plan=plan))
