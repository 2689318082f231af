"""Frames of many sessions share batches without being changed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.recorded_conversation import MS, START, Found, Row, Stage, save

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.arrow_batches import SCHEMAS, frames_batch, kind_names
from polymux.analysis.output.parquet import TableWriter, read_table, write_empty_tables
from polymux.analysis.output.row_batcher import (
    DEFAULT_BATCH_ROWS,
    MAX_PENDING_TEXT_BYTES,
    FrameBatcher,
    RowBatcher,
)
from polymux.analysis.output.row_columns import FramePage
from polymux.analysis.output.table_digest import digest_tables
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions
from polymux.core.frames import FrameRows
from polymux.protocols.registry import create
from polymux.testing.simulator import Simulation

pa.array([0])  # imports pandas here, which takes longer than an example may
PROTOCOLS = {name: create(name) for name in ("mplex", "nerdbank", "omnistreams")}
MIXED = ("mplex", "nerdbank", "nerdbank:version=1", "nerdbank:version=2")
WHOLE = DEFAULT_BATCH_ROWS // 4


def page_of(rows: int, labels: list[str], seed: int = 0) -> FramePage:
    """A page with this many rows, some of them of a stream."""
    rng = Random(seed)
    page = FramePage(FrameRows(rows + rng.randrange(5)), 0)
    batch = page.batch
    page.labels = labels
    for n in range(rows):
        batch.sender[n] = rng.randrange(2)
        batch.frame_index[n] = rng.randrange(1 << 40)
        page.time_us[n] = rng.randrange(1 << 50)
        batch.byte_offset[n] = rng.randrange(1 << 60)
        batch.size[n] = rng.randrange(1 << 30)
        batch.kind[n] = rng.randrange(256)
        page.label_index[n] = rng.randrange(-1, len(labels))
        batch.amount[n] = rng.randrange(-1, 1 << 20)
        batch.payload_bytes[n] = rng.randrange(1 << 30)
        batch.verdict[n] = rng.randrange(3)
    page.row_count = rows
    return page


def by_session(rows: list[Row]) -> dict[object, list[Row]]:
    found: dict[object, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["session_id"]].append(row)
    return found


puts = st.tuples(
    st.integers(0, 5),  # whose
    st.integers(1, 60),
    st.lists(st.sampled_from(["d1", "d3", "a2", "d1#2", "ä"]), unique=True, max_size=4),
    st.integers(0, 99),
)


@given(
    st.lists(puts, max_size=30), st.sampled_from([1, 4, 50, 150, DEFAULT_BATCH_ROWS]), st.booleans()
)
def test_pages_in_any_order_keep_the_rows_of_each_session(
    asked: list[tuple[int, int, list[str], int]], room: int, flushed: bool
) -> None:
    alone, together = Found(), Found()
    batcher = FrameBatcher(together.emit, room)
    for whose, rows, labels, seed in asked:
        protocol = list(PROTOCOLS.values())[whose % 3]
        page = page_of(rows, labels, seed)
        alone.emit("frames", frames_batch(page, kind_names(protocol), [f"s{whose}"]))
        batcher.add(page, f"s{whose}", protocol)
        if flushed and seed < 10:
            batcher.flush()
            assert len(together.rows("frames")) == len(alone.rows("frames"))
    batcher.flush()
    assert by_session(together.rows("frames")) == by_session(alone.rows("frames"))
    for batch in together.batches["frames"]:
        batch.validate(full=True)
        for name in ("session_id", "stream"):
            words = batch[name].dictionary.to_pylist()
            assert len(set(words)) == len(words)
    assert len({str(batch.schema) for batch in together.batches["frames"]}) <= 1


def test_a_page_of_many_rows_is_emitted_at_once_without_a_copy() -> None:
    found = Found()
    batcher = FrameBatcher(found.emit, DEFAULT_BATCH_ROWS)
    batcher.add(page_of(WHOLE - 1, ["d1"]), "other", PROTOCOLS["mplex"])
    batcher.add(page_of(WHOLE, ["d1"]), "long", PROTOCOLS["mplex"])
    (batch,) = found.batches["frames"]
    assert batch["session_id"].to_pylist() == ["long"] * WHOLE
    batcher.add(page_of(WHOLE, ["d1"]), "other", PROTOCOLS["mplex"])  # its first rows go before
    assert [each.num_rows for each in found.batches["frames"]] == [WHOLE, WHOLE - 1, WHOLE]
    page = page_of(WHOLE, [])
    batcher.add(page, "long", PROTOCOLS["mplex"])
    page.batch.size[0] = 77
    assert found.batches["frames"][-1]["size"][0].as_py() == 77


def test_a_batch_that_left_does_not_change_any_more() -> None:
    found = Found()
    batcher = FrameBatcher(found.emit, DEFAULT_BATCH_ROWS)
    page = page_of(10, ["d1", "d3"])
    batcher.add(page, "one", PROTOCOLS["mplex"])
    batcher.flush()
    before = found.rows("frames")
    page.batch.size[0] += 1
    for seed in range(1, 9):
        batcher.add(page_of(1000, ["a2"], seed), f"s{seed}", PROTOCOLS["mplex"])
    assert len(found.batches["frames"]) == 2
    assert found.rows("frames")[:10] == before


def test_as_many_sessions_as_there_are_rows_share_a_batch() -> None:
    found = Found()
    batcher = FrameBatcher(found.emit, DEFAULT_BATCH_ROWS)
    names = [f"s{n}" for n in range(DEFAULT_BATCH_ROWS - 3)]
    for name in names + names[-3:]:
        batcher.add(page_of(1, [name]), name, PROTOCOLS["mplex"])
    batcher.flush()
    assert [batch.num_rows for batch in found.batches["frames"]] == [DEFAULT_BATCH_ROWS]
    assert [row["session_id"] for row in found.rows("frames")] == names + names[-3:]


def test_long_labels_do_not_wait_for_thousands_of_rows() -> None:
    found = Found()
    batcher = FrameBatcher(found.emit, DEFAULT_BATCH_ROWS)
    half = MAX_PENDING_TEXT_BYTES // 2
    batcher.add(page_of(1, ["x" * half]), "one", PROTOCOLS["mplex"])
    batcher.add(page_of(1, ["x" * half]), "two", PROTOCOLS["mplex"])  # is there already
    assert not found.batches["frames"]
    batcher.add(page_of(1, ["y" * half]), "two", PROTOCOLS["mplex"])
    assert [batch.num_rows for batch in found.batches["frames"]] == [3]


# Captures


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Short sessions of several protocols, and some that fill pages of all sizes."""
    folder = tmp_path_factory.mktemp("captures")
    paths = []
    for number in range(24):
        world = Simulation(MIXED[number % 4], number)
        world.run(2000 if number % 6 == 5 else 60)
        record = [(side, data, START + at) for side, data, at in world.record]
        paths.append(
            save(
                folder / f"{number:02}.pcapng", record, START + world.now + MS,
                protocol=MIXED[number % 4], ends=(("192.0.2.1", 40000 + number), ("::1", 9000)),
            )
        )  # fmt: skip
    stage = Stage("mplex")
    stream = stage.open(0, b"long")
    for _ in range(6000):
        stage.send(0, stream, b"x")
        stage.exchange()
    paths.append(stage.save(folder / "long.pcapng"))
    return paths


def written(paths: list[str], folder: Path, *, waits: bool) -> pa.Table:
    with read_sessions(paths) as reading, TableWriter(folder) as writer:
        for session in reading:
            analyze_session(
                session, AnalysisOptions(), writer.emit, batcher=writer.batcher if waits else None
            )
    write_empty_tables(folder)
    return read_table(folder, "frames")


def test_a_writer_has_the_frames_of_each_session_as_if_it_were_alone(
    captures: list[str], tmp_path: Path
) -> None:
    alone = written(captures, tmp_path / "alone", waits=False)
    together = written(captures, tmp_path / "together", waits=True)
    assert together.schema.equals(alone.schema)
    assert together.schema.equals(SCHEMAS["frames"])
    assert by_session(together.to_pylist()) == by_session(alone.to_pylist())
    assert digest_tables(tmp_path / "together") == digest_tables(tmp_path / "alone")


def test_frames_that_wait_are_counted_and_written(captures: list[str], tmp_path: Path) -> None:
    frames = 0
    with read_sessions(captures) as reading, TableWriter(tmp_path) as writer:
        for session in reading:
            frames += analyze_session(
                session, AnalysisOptions(), writer.emit, batcher=writer.batcher
            ).frames
            if session.reassembled_bytes[0] % 2:
                assert writer.row_counts()["frames"] == frames
    assert frames > 7000
    assert read_table(tmp_path, "frames").num_rows == frames


def test_frames_of_short_sessions_are_few_batches(captures: list[str]) -> None:
    alone, together = Found(), Found()
    batcher = RowBatcher(together.emit)
    short = [path for n, path in enumerate(captures[:24]) if n % 6 != 5]
    with read_sessions(short) as reading:
        for walked, session in enumerate(reading, 1):
            analyze_session(session, AnalysisOptions(), alone.emit)
            assert len(by_session(alone.rows("frames"))) == walked  # emitted without batching
            analyze_session(session, AnalysisOptions(), together.emit, batcher=batcher)
    assert not together.batches["frames"]
    batcher.flush()
    assert len(alone.batches["frames"]) >= len(short)
    assert len(together.batches["frames"]) == 2  # protocols
