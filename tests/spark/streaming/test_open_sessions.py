"""Whatever way captures arrive, the tables are those of reading them all at once."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.random_captures import START, Switch, conversations, record, without_spark
from tests.spark.sparkless_query import Run

from polymux.analysis.output.parquet import read_table
from polymux.analysis.output.table_digest import digest_tables
from polymux.analysis.schema.tables import TABLES
from polymux.capture import PcapngWriter, TcpConnectionWriter, hint_comment
from polymux.capture.io.sources import LostInput
from polymux.spark.batch.index_stage import IndexSpan, index_span
from polymux.spark.streaming import capture_folder, index_store
from polymux.spark.streaming.index_store import Indexed, IndexStore
from polymux.spark.streaming.micro_batches import (
    BatchTask,
    FolderFollower,
    divide_into_tasks,
)
from polymux.spark.streaming.offset import FilePart, FolderOffset, NameRanges
from polymux.spark.streaming.open_sessions import SessionSelection, SessionTimeouts
from polymux.spark.streaming.table_output import StreamingTables

FILES = 5
DAYS = 30 if os.environ.get("POLYMUX_SOAK") else 1
WAITS = SessionTimeouts(session_grace=1, session_timeout=20, idle_timeout=60, dedup_window=300)


class Material:
    """Captures in which every session spans several files, and the tables they give."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.paths = [folder / f"talk-{number:05}.pcapng" for number in range(1, FILES + 1)]
        record(self.paths, conversations(7, 6), seed=3)
        without_spark(self.paths, folder / "once")
        self.digest = digest_tables(folder / "once")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(tmp_path_factory.mktemp("follow") / "material")


def fresh(folder: Path, waits: SessionTimeouts = WAITS) -> Run:
    run = Run(folder / "inbox", folder / "out", waits)
    return run


def test_files_one_by_one_give_the_tables_of_all_at_once(
    material: Material, tmp_path: Path
) -> None:
    run = fresh(tmp_path)
    for number, path in enumerate(material.paths):
        run.put(path)
        assert run.step()
        if number + 1 < FILES:
            assert run.open_sessions() > 0
    run.step(2)
    assert run.digest() == material.digest
    assert run.open_sessions() == 0
    assert sorted(read_table(run.out, "captures")["file"].to_pylist()) == sorted(
        str(run.inbox / path.name) for path in material.paths
    )


@settings(max_examples=300 if os.environ.get("POLYMUX_SOAK") else 8, deadline=None)
@given(data=st.data())
def test_order_duplicates_halves_kills_and_replays_change_no_table(
    material: Material, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans(), label="indexed in tasks"):
            patch.setattr(capture_folder, "MIN_PARALLEL_BYTES", 1)
        # Seconds after which what was read is not recognised if it comes again.
        window = data.draw(st.sampled_from([300, 0]), label="dedup window")
        run = fresh(tmp_path_factory.mktemp("any"), replace(WAITS, dedup_window=window))
        check_any_arrival(material, run, data)


def check_any_arrival(material: Material, run: Run, data: st.DataObject) -> None:
    copies = 2 if run.waits.dedup_window else 0
    arrivals: list[tuple[int, str, bool]] = [(n, "", False) for n in range(FILES)]
    arrivals += [
        (n, f"copy-{n}.pcapng", False)
        for n in data.draw(st.sets(st.integers(0, FILES - 1), max_size=copies), label="copies")
    ]
    halves = data.draw(st.sets(st.integers(0, FILES - 1), max_size=2), label="halves")
    arrivals = [(n, name, True) for n, name, _ in arrivals if not name and n in halves] + arrivals
    for n, name, half in data.draw(st.permutations(arrivals), label="order"):
        path = material.paths[n]
        if half:
            if not (run.inbox / path.name).exists():
                share = data.draw(st.floats(0.0, 1.0), label="share")
                run.put(path, size=int(path.stat().st_size * share))
        else:
            run.put(path, name)
        for act in data.draw(st.lists(st.sampled_from(["step", "kill", "replay"]), max_size=3)):
            if act == "kill":
                run.kill()
            elif act == "step":
                run.step(data.draw(st.floats(0.01, 5.0), label="seconds"))
            elif len(run.offsets) > 1:
                run.run_last()
    run.settle()
    assert run.digest() == material.digest
    assert run.open_sessions() == 0
    run.clear()


def test_a_replayed_batch_gives_the_same_rows_after_a_kill(
    material: Material, tmp_path: Path
) -> None:
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
        run.step(3)
        before = run.digest()
        run.kill()
        run.run_last()
        assert run.digest() == before
    run.step(3)
    assert run.digest() == material.digest


def test_the_time_in_which_nobody_looked_is_no_silence(material: Material, tmp_path: Path) -> None:
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
        run.now += 30_000  # less than the patience
        if path == material.paths[0]:
            run.step()
            run.kill()  # and started again only when all have come
    assert run.step(1)
    run.step(2)
    assert run.digest() == material.digest


def test_a_copy_that_comes_long_after_gives_no_row(material: Material, tmp_path: Path) -> None:
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
    run.step(2)
    run.step(100)
    run.kill()
    for number, path in enumerate(material.paths):
        run.put(path, f"again-{number}.pcapng")
        run.step(2)
    run.settle()
    assert run.digest() == material.digest


def test_files_that_do_not_matter_any_more_are_forgotten(
    material: Material, tmp_path: Path
) -> None:
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
    run.step(2)
    run.now += 400_000
    quiet(run.inbox / "other-00001.pcapng", 50_000)
    run.step(2)
    run.settle()
    run.settle()
    place = FolderOffset.from_dict(json.loads(run.offsets[-1]))
    assert not set(place.files) & {path.name for path in material.paths}
    assert place.forgotten >= {path.name for path in material.paths}
    assert len(read_table(run.out, "sessions")) == 7


HOUR_NS = 3_600_000_000_000


class HourlyRecording:
    """A file an hour. Each has a session of its own, and the end of one that began in the file
    before; where `reused`, all of these have the same addresses and ports."""

    def __init__(self, reused: bool = False) -> None:
        self._reused = reused
        self._sink = Switch()
        self._crossing: TcpConnectionWriter | None = None

    def write(self, path: Path, number: int) -> None:
        at = START + number * HOUR_NS
        with PcapngWriter(str(path), sync="none") as writer:
            self._sink.turn_to(writer)
            if self._crossing is not None:
                self._crossing.close(at)
            self._talk("192.0.2.9", 40_000 + number % 20_000, at + 1_000_000).close(at + 2_000_000)
            port = 40_000 + (0 if self._reused else number % 20_000)
            self._crossing = self._talk("192.0.2.8", port, at + HOUR_NS - 1_000_000_000)

    def _talk(self, host: str, port: int, at: int) -> TcpConnectionWriter:
        talk = TcpConnectionWriter(
            self._sink, (host, port), ("198.51.100.2", 9000), at,
            comment=hint_comment("mplex", "acceptor"),
        )  # fmt: skip
        talk.data(0, bytes.fromhex("000161 020568656c6c6f"), at + 1000)
        return talk


@pytest.mark.parametrize("reused", [False, True])
def test_files_are_forgotten_while_every_look_finds_a_new_one(tmp_path: Path, reused: bool) -> None:
    """A file every hour, for thirty days in the long form; all stay in the folder."""
    run = fresh(tmp_path, SessionTimeouts(1, 20, 7200, dedup_window=3600))
    recording = HourlyRecording(reused)
    sizes = []
    hours = DAYS * 24
    for number in range(1, hours + 1):
        path = run.inbox / f"collect-{number:05}.pcapng"
        recording.write(path, number)
        os.utime(path, (run.now / 1000, run.now / 1000))
        assert run.step(3600)
        place = FolderOffset.from_dict(json.loads(run.offsets[-1]))
        sizes.append((len(place.files), len(run.offsets[-1]), run.follower.flow_count))
        if number % 5 == 0:  # what is not an offset or a table is rebuilt from these
            run.kill()
    early, late = sizes[8:16], sizes[-8:]
    assert max(files for files, _, _ in late) <= max(files for files, _, _ in early) <= 6
    assert max(size for _, size, _ in late) <= max(size for _, size, _ in early) + 10
    assert max(flows for _, _, flows in late) <= max(flows for _, _, flows in early)
    run.settle()
    rows = read_table(run.out, "sessions").to_pylist()
    assert [row["ending"] for row in rows].count("clean") == 2 * hours - 1
    assert len(rows) == 2 * hours
    assert run.open_sessions() == 0
    assert max(len(list(run.out.glob(f"{table}/*.parquet"))) for table in TABLES) <= 12


@pytest.mark.parametrize(
    ("window", "restart"),
    [(3600, False), (3600, True), (8 * 3600, False)],
    ids=["forgotten", "forgotten, restarts", "before it is forgotten"],
)
def test_a_ring_of_files_is_read_round_after_round(
    tmp_path: Path, window: int, restart: bool
) -> None:
    """As `tcpdump -W 6 -G 3600` writes it: the names are used again, the folder never changes."""
    run = fresh(tmp_path, SessionTimeouts(1, 20, 7200, dedup_window=window))
    recording = HourlyRecording()
    for number in range(1, 18):
        written = tmp_path / f"{number}.pcapng"
        recording.write(written, number)
        run.now += 3_600_000
        run.put(written, f"ring{number % 6}.pcapng")
        if number >= 6:
            os.utime(run.inbox, (1, 1))
        if restart:
            run.kill()
        assert run.step(2)
        run.step(2)
    run.settle()
    rows = read_table(run.out, "sessions").to_pylist()
    assert [row["ending"] for row in rows].count("clean") == 2 * 17 - 1
    assert len(rows) == 2 * 17
    assert len(read_table(run.out, "captures")) == 17


@pytest.mark.parametrize("size", ["smaller", "larger"])
def test_a_file_in_the_place_of_one_that_was_read_is_read_as_a_new_one(
    tmp_path: Path, size: str
) -> None:
    run = fresh(tmp_path)
    for number in range(9):
        quiet(tmp_path / f"{number}.pcapng", 50_000 + number, START + number * HOUR_NS, ends=True)
    written = [(tmp_path / f"{number}.pcapng").read_bytes() for number in range(9)]
    files = [b"".join(written[:3]), b"".join(written[3:5]), written[5]]
    for content in files if size == "smaller" else reversed(files):
        (tmp_path / "a.pcapng").write_bytes(content)
        run.put(tmp_path / "a.pcapng")
        for seconds in (2, 2, 50):
            run.step(seconds)
    assert len(read_table(run.out, "sessions")) == 6
    assert len(read_table(run.out, "captures")) == 3


def test_a_file_that_was_touched_or_copied_again_is_not_another_one(tmp_path: Path) -> None:
    run = fresh(tmp_path)
    path = run.inbox / "a.pcapng"
    quiet(path, 40_000, ends=True)
    run.now += 10**12
    run.step()
    run.step(2)
    os.utime(path, (run.now / 1000, run.now / 1000))
    assert not run.step(2)
    run.now += 400_000
    for number in range(3):  # it is forgotten
        quiet(run.inbox / f"other-{number}.pcapng", 50_000 + number, START + number, ends=True)
        run.step(400)
    assert "a.pcapng" in FolderOffset.from_dict(json.loads(run.offsets[-1])).forgotten
    run.kill()
    run.settle()
    assert len(read_table(run.out, "sessions")) == 4
    assert len(read_table(run.out, "captures")) == 4


def test_what_is_whole_is_published_by_the_run_that_sees_it(
    material: Material, tmp_path: Path
) -> None:
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
    available = run.follower.available_files()
    limit = 1  # one file in each batch, as files over the limit come
    while run.step_available(available, limit):
        pass
    assert run.open_sessions() == 0
    assert run.digest() == material.digest
    assert len(read_table(run.out, "captures")) == FILES


def test_a_backlog_indexed_in_tasks_is_published_whole_by_the_run_that_sees_it(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_folder, "MIN_PARALLEL_BYTES", 1)
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
    available = run.follower.available_files()
    while run.step_available(available, 2 * material.paths[0].stat().st_size):
        pass
    assert any('"indexing": "[\\"' in offset for offset in run.offsets)
    assert run.open_sessions() == 0
    assert run.digest() == material.digest


@pytest.mark.parametrize("index_in_tasks", [False, True])
def test_a_compressed_file_that_grows_holds_nothing_else_up(
    index_in_tasks: bool, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_folder, "MIN_PARALLEL_BYTES", 1)
    whole = gzip.compress(material.paths[-1].read_bytes())
    (tmp_path / "talk.pcapng.gz").write_bytes(whole)
    ended = tmp_path / "ended.pcapng"
    write_ended_session(ended)
    run = Run(tmp_path / "inbox", tmp_path / "out", WAITS, index_in_tasks)

    sizes = iter(range(300, len(whole) - 100))

    def look() -> None:
        """The compressed file has grown by a byte since the last look."""
        run.put(tmp_path / "talk.pcapng.gz", size=next(sizes))
        run.step(1)

    look()
    run.put(ended)
    for _ in range(5):  # to index it, to read it, its grace of a second
        look()
    assert len(read_table(run.out, "sessions")) == 1
    # Also what arrives later: nothing waits until the compressed file is whole.
    run.put(ended, "copy.pcapng")
    for _ in range(5):
        look()
    assert len(read_table(run.out, "captures")) == 2
    run.put(tmp_path / "talk.pcapng.gz")
    for path in material.paths[:-1]:
        run.put(path)
    run.step(1)
    run.settle()
    run.settle()
    assert len(read_table(run.out, "captures")) == 2 + FILES
    assert sorted(run.tables.index_folder.glob("*")) == []


@pytest.mark.parametrize("how", ["truncated", "unreadable", "grows"])
def test_a_run_ends_though_a_new_file_cannot_be_read_yet(
    how: str, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_permission(span: IndexSpan, *others: Any) -> Indexed:
        if how == "unreadable" and span.path.endswith(".gz"):
            raise LostInput(f"{span.path}: permission denied")
        return index_span(span, *others)

    monkeypatch.setattr(capture_folder, "MIN_PARALLEL_BYTES", 1)
    monkeypatch.setattr(capture_folder, "index_span", without_permission)
    monkeypatch.setattr(index_store, "index_span", without_permission)
    (tmp_path / "a.pcapng.gz").write_bytes(gzip.compress(material.paths[0].read_bytes()))
    run = fresh(tmp_path)
    run.put(tmp_path / "a.pcapng.gz", size=300)
    run.now += 1
    for path in material.paths:
        run.put(path)
    run.now += 1
    available = run.follower.available_files()
    batches = 0
    while run.step_available(available, 1):  # one file in each batch: the compressed one first
        batches += 1
        assert batches < 10 * FILES
        if how == "grows":
            run.put(tmp_path / "a.pcapng.gz", size=300 + batches)
    assert run.open_sessions() == 0
    assert run.digest() == material.digest
    assert sorted(run.tables.index_folder.glob("*")) == []


def write_ended_session(path: Path) -> None:
    with PcapngWriter(path) as writer:
        connection = TcpConnectionWriter(writer, ("192.0.2.1", 1), ("192.0.2.2", 2), START)
        connection.data(0, b"\x08\x03abc\x0a\x05hello", START + 1000)
        connection.end(0, START + 2000)
        connection.end(1, START + 3000)


def test_a_batch_has_as_many_tasks_as_the_session_has_room_for() -> None:
    sessions = [SessionSelection((), frozenset({str(n)}), 40_000) for n in range(100)]
    for most in (1, 3, 8, 40, 200):
        tasks = divide_into_tasks(BatchTask(), sessions, [], most)
        assert len(tasks) == min(most, 100)
        assert sorted(next(iter(s.session_ids)) for task in tasks for s in task.finished) == sorted(
            map(str, range(100))
        )
    assert len(divide_into_tasks(BatchTask(), sessions[:1], [], 40)) == 1


def test_new_files_are_indexed_by_several_processes_with_the_same_result(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_folder, "MIN_PARALLEL_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    run = Run(tmp_path / "inbox", tmp_path / "out", WAITS, index_in_tasks=False)
    for path in material.paths:
        run.put(path)
    (run.inbox / "text.pcapng").write_text("not a capture")
    run.step(2)
    run.settle()
    assert run.digest() == material.digest


def test_a_backlog_is_indexed_by_the_tasks_of_a_batch_of_its_own(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def index_on_driver(*_: object) -> None:
        raise AssertionError("the driver has indexed a file")

    monkeypatch.setattr(capture_folder, "MIN_PARALLEL_BYTES", 1)
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
    store = run.tables.index_folder
    with monkeypatch.context() as patch:
        patch.setattr(capture_folder, "index_span", index_on_driver)
        assert run.step(2)
        place = FolderOffset.from_dict(json.loads(run.offsets[-1]))
        assert place == FolderOffset(indexing=frozenset(path.name for path in material.paths))
        assert len(list(store.iterdir())) == FILES
        assert run.step(2)
        run.step(2)
    assert run.digest() == material.digest
    assert list(store.iterdir()) == []
    # What a killed query has left is not used: it may be of other options.
    run.put(material.paths[0], "copy.pcapng")
    assert run.step(2)
    assert len(list(store.iterdir())) == 1
    run.kill()
    assert not store.exists()
    run.settle()
    assert run.digest() == material.digest
    assert not store.exists()


def test_the_files_of_a_backlog_are_divided_between_as_many_tasks_as_there_may_be(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_folder, "MIN_PARALLEL_BYTES", 1)
    for path in material.paths:
        shutil.copy(path, tmp_path)
    follower = FolderFollower(str(tmp_path), max_tasks=3, store=IndexStore(str(tmp_path / "x")))
    start = FolderOffset()
    end = follower.next_offset(start, 1 << 40)
    tasks = [task.to_index for task in follower.plan_batch(start, end) if task.to_index]
    assert sorted(map(len, tasks)) == [1, 2, 2]
    assert sorted(name for task in tasks for name in task) == sorted(
        str(tmp_path / path.name) for path in material.paths
    )


@pytest.mark.parametrize("how", ["removed", "shortened", "replaced"])
def test_a_file_lost_after_it_was_indexed_fails_the_batch_and_is_named(
    how: str, material: Material, tmp_path: Path
) -> None:
    run = fresh(tmp_path)
    for path in material.paths[:-1]:
        run.put(path)
        run.step(2)
    before = run.digest()
    run.put(material.paths[-1])
    lost = run.inbox / material.paths[1].name
    if how == "removed":
        lost.unlink()
    elif how == "shortened":
        os.truncate(lost, 3000)
    else:
        lost.write_bytes(material.paths[2].read_bytes() * 2)
    with pytest.raises(LostInput, match=lost.name):
        run.step(2)
    assert run.digest() == before
    # After a restart too, until it is back.
    run.kill()
    if how == "removed":
        with pytest.raises(LostInput, match=lost.name):
            run.run_last()
    run.put(material.paths[1])
    run.kill()
    run.run_last()
    run.step(2)
    run.settle()
    assert run.digest() == material.digest


def test_small_files_of_batches_are_merged_and_no_row_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fresh(tmp_path)
    for number in range(12):
        quiet(run.inbox / f"a-{number:05}.pcapng", 40_000 + number, START + number, ends=True)
        os.utime(run.inbox / f"a-{number:05}.pcapng", (run.now / 1000, run.now / 1000))
        run.step(2)
        run.step(2)
        if number == 6:  # killed while files are merged: after the note, before anything else
            with monkeypatch.context() as patch:
                patch.setattr(StreamingTables, "_finish_compaction", stop)
                for more in range(8):
                    quiet(run.inbox / f"b-{more}.pcapng", 50_000 + more, START, ends=True)
                    os.utime(run.inbox / f"b-{more}.pcapng", (run.now / 1000, run.now / 1000))
                    try:
                        run.step(2)
                    except InterruptedError:
                        break
            run.kill()
            run.run_last()
    run.settle()
    sessions = read_table(run.out, "sessions")
    names = sessions["session_id"].to_pylist()
    assert len(names) == len(set(names)) >= 13
    assert len(list(run.out.glob("sessions/batch*.parquet"))) < 12
    plain = pq.read_table(run.out / "sessions")
    assert sorted(plain["session_id"].to_pylist()) == sorted(names)


def stop(*_: object) -> None:
    raise InterruptedError


def quiet(path: Path, port: int, at: int = START, ends: bool = False) -> None:
    """A session that says something and, perhaps, ends."""
    with PcapngWriter(str(path)) as writer:
        scribe = TcpConnectionWriter(
            writer, ("192.0.2.9", port), ("198.51.100.2", 9000), at,
            comment=hint_comment("mplex", "acceptor"),
        )  # fmt: skip
        scribe.data(0, bytes.fromhex("000161 020568656c6c6f"), at + 1000)
        if ends:
            scribe.close(at + 2000)


def test_a_session_without_an_end_is_over_when_the_captures_go_on_without_it(
    tmp_path: Path,
) -> None:
    run = fresh(tmp_path)
    quiet(run.inbox / "a-00001.pcapng", 40_000)
    run.step()
    run.step(40)
    assert run.open_sessions() == 1, "nothing has come since: it may go on"
    quiet(run.inbox / "a-00002.pcapng", 40_001, START + 30_000_000_000, ends=True)
    run.now += 1
    run.step()
    run.step(25)
    run.step(25)
    rows = read_table(run.out, "sessions").to_pylist()
    assert sorted(row["ending"] for row in rows) == ["clean", "unknown"]
    assert run.open_sessions() == 0


def test_a_session_without_an_end_is_over_when_nothing_comes_for_long(tmp_path: Path) -> None:
    run = fresh(tmp_path)
    quiet(run.inbox / "a-00001.pcapng", 40_000)
    run.step()
    run.step(2)  # the file itself has settled
    assert not run.step(30)
    assert run.step(40)
    assert len(read_table(run.out, "sessions")) == 1


def test_no_more_than_the_limit_is_taken_at_once(material: Material, tmp_path: Path) -> None:
    run = fresh(tmp_path)
    for path in material.paths:
        run.put(path)
    for _ in range(FILES):
        assert run.step(0.01, most=1)
    assert all(
        len(FolderOffset.from_dict(json.loads(offset)).files) == number
        for number, offset in enumerate(run.offsets[: FILES + 1])
    )
    run.step(2)
    assert run.digest() == material.digest


def test_what_is_no_capture_is_a_row_once_it_does_not_change_any_more(tmp_path: Path) -> None:
    run = fresh(tmp_path)
    (run.inbox / "empty.pcapng").write_bytes(b"")
    (run.inbox / "text.pcapng").write_text("not a capture")
    run.now += 10**12  # the files are old
    run.step()
    run.settle()
    rows = read_table(run.out, "captures").to_pylist()
    assert [row["status"] for row in rows] == ["unreadable", "unreadable"]


NAMES = st.sets(
    st.one_of(
        st.builds("collect-{:05}.pcapng".format, st.integers(0, 300)),
        st.builds("2026-11-{:02}/{:02}.pcap".format, st.integers(1, 9), st.integers(0, 5)),
        st.builds("{}.pcap{}".format, st.integers(0, 10**9), st.integers(0, 12)),
        st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=9),
    )
)


@given(NAMES)
def test_names_are_packed_and_unpacked_without_loss(names: set[str]) -> None:
    packed = NameRanges(names)
    assert NameRanges.unpack(json.loads(json.dumps(packed.pack()))) == packed
    assert set(packed) == names == packed
    assert len(packed) == len(names)


@given(NAMES, NAMES)
def test_ranges_of_names_are_a_set(names: set[str], others: set[str]) -> None:
    packed = NameRanges(names)
    assert packed.with_names(others) == NameRanges(names | others)
    assert packed.without_names(others) == NameRanges(names - others)
    assert [name in packed for name in others] == [name in names for name in others]


def test_a_file_of_a_name_in_the_set_is_another_one_if_it_was_modified_later() -> None:
    names = NameRanges().with_files({"a-1": 5, "a-2": 7, "b": 3})
    for each in (names, NameRanges.unpack(json.loads(json.dumps(names.pack())))):
        assert each == names
        later = {(name, at) for name in ("a-1", "a-3", "b") for at in (3, 7, 8)}
        assert {case for case in later if each.is_another(*case)} == {
            ("a-1", 8), ("b", 7), ("b", 8)
        }  # fmt: skip
    again = names.without_names({"a-1", "a-2"}).with_files({"a-1": 2})
    assert again.is_another("a-1", 3)
    assert not NameRanges({"a-1"}).is_another("a-1", 8)


def test_a_long_rotation_is_packed_into_a_few_bytes() -> None:
    names = {f"collect-{number:05}.pcapng" for number in range(1, 90_000)}
    assert len(json.dumps(NameRanges(names).pack())) < 100
    days = {f"2026/11/{day:02}/{hour:02}.pcap" for day in range(1, 31) for hour in range(24)}
    assert len(json.dumps(NameRanges(days).pack())) < 100


def test_a_place_is_written_down_and_read_back() -> None:
    place = FolderOffset(
        5, {"a": (FilePart(1, 2, 3), FilePart(4, 4, 9))}, NameRanges({"b-1", "b-2"})
    )
    assert FolderOffset.from_dict(json.loads(json.dumps(place.to_dict()))) == place
