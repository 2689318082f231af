"""Tables put into place: at any moment those of the last good run, and nothing else is touched."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.lake.lake_runs import append

from polymux.analysis.output.manifest import MANIFEST_NAME, read_manifest, table_files
from polymux.analysis.output.parquet import write_empty_tables
from polymux.analysis.schema.tables import TABLES
from polymux.core.errors import PolymuxError, UnreadableInput, UnwritableOutput
from polymux.spark.batch import output_lock
from polymux.spark.batch.atomic_output import StagedOutput, check_output
from polymux.spark.batch.output_lock import LOCK_NAME, LockOwner, OutputBusy, OutputLock, read_lock
from polymux.spark.lake.lake import open_lake

STEPS = ("rename", "replace", "symlink", "unlink", "rmdir", "mkdir", "link")
SPOKEN_FOR = ("sessions", "frames")


def write_tables(output: StagedOutput, mark: str, empty: bool = False) -> None:
    """What the workers and the driver write in a run; `mark` is in every row."""
    files = {}
    for table in SPOKEN_FOR:
        (output.staging / table).mkdir()
        name = f"{table}/part-{mark}.parquet"
        pq.write_table(pa.table({"mark": [mark] * 3}), output.staging / name)
        files[name] = 3
    output.collect_files(files)
    if empty:
        write_empty_tables(output.ready)


def run(out: Path, mark: str, empty: bool = False) -> None:
    output = StagedOutput(str(out))
    write_tables(output, mark, empty)
    output.publish()


def by_manifest(out: Path) -> set[str]:
    """The runs whose rows a reader of the manifest sees, table by table."""
    return {
        f"{table}:{mark}"
        for table in SPOKEN_FOR
        for path in table_files(out, table)
        for mark in pq.read_table(path)["mark"].to_pylist()
    }


def by_folder(out: Path) -> set[str]:
    """The same, for a reader that takes a folder as it is."""
    return {
        f"{table}:{mark}"
        for table in SPOKEN_FOR
        for path in (out / table).glob("part-*.parquet")
        if path.name != "part-empty.parquet"
        for mark in pq.read_table(path)["mark"].to_pylist()
    }


def rows_of(mark: str) -> set[str]:
    return {f"{table}:{mark}" for table in SPOKEN_FOR}


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the file system one without symbolic links."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system has symbolic links."""
    if request.param == "no links":
        refuse_links(monkeypatch)
    return bool(request.param == "links")


def test_a_run_replaces_the_one_before_and_leaves_only_its_own_files(
    tmp_path: Path, links: bool
) -> None:
    out = tmp_path / "tables"
    run(out, "a")
    run(out, "b", empty=True)
    assert by_manifest(out) == by_folder(out) == rows_of("b")
    manifest = read_manifest(out)
    assert manifest is not None
    assert {file.rows for file in manifest.tables["frames"]} == {3}
    assert set(manifest.tables) == set(TABLES) - {"content"}
    everywhere = [path for path in out.rglob("*.parquet") if path.name != "part-empty.parquet"]
    assert {path.name for path in everywhere} == {"part-b.parquet"}
    hidden = {path.name for path in out.iterdir() if path.name[0] in "._"}
    assert hidden == ({"_current", "_runs"} if links else set())


def test_files_of_others_stay_where_they_are(tmp_path: Path, links: bool) -> None:
    out = tmp_path / "tables"
    run(out, "a")
    (out / "thesis.txt").write_text("mine")
    (out / "report.html").write_text("mine too")
    (out / "extra").mkdir()
    (out / "extra" / "part-x.parquet").write_text("and this")
    run(out, "b")
    assert (out / "thesis.txt").read_text() == "mine"
    assert (out / "report.html").read_text() == "mine too"
    assert (out / "extra" / "part-x.parquet").read_text() == "and this"
    assert by_manifest(out) == rows_of("b")


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Make the process end without any further act at the n-th change of the file system."""

    def arm(number: int) -> list[int]:
        count = [0]
        for name in STEPS:
            honest = getattr(os, name)

            def act(
                *args: object, honest: Callable[..., object] = honest, **more: object
            ) -> object:
                count[0] += 1
                if count[0] == number:
                    os._exit(77)
                return honest(*args, **more)

            monkeypatch.setattr(os, name, act)
        return count

    return arm


def in_child(act: Callable[[], None]) -> int:
    """Run in a forked process. Returns its exit code."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_run_killed_at_any_step_leaves_the_old_tables_or_the_new_ones(
    tmp_path: Path, links: bool, stop_at: Callable[[int], list[int]]
) -> None:
    seen: set[str] = set()
    out = tmp_path / "tables"
    run(tmp_path / "before", "old")
    for number in range(1, 500):
        shutil.copytree(tmp_path / "before", out, symlinks=True)

        def act(number: int = number, out: Path = out) -> None:
            output = StagedOutput(str(out))
            write_tables(output, "new")
            stop_at(number)
            output.publish()

        code = in_child(act)
        found = by_manifest(out)
        assert found in (rows_of("old"), rows_of("new")), number
        if links:
            assert by_folder(out) == found
        seen |= found
        if code == 0:
            assert found == rows_of("new")
            break
        assert code == 77
        if number % 3:
            shutil.rmtree(out)
            continue
        # The next run finds the lock of a dead process, and clears up behind it.
        run(out, "next")
        assert by_manifest(out) == by_folder(out) == rows_of("next")
        left = {path.name for path in out.rglob("*")} & {"part-old.parquet", "part-new.parquet"}
        assert not left
        temporary = [path.name for path in out.iterdir() if len(path.name) > 20]
        assert not temporary
        shutil.rmtree(out)
    assert seen == rows_of("old") | rows_of("new")


def test_a_first_run_killed_at_any_step_leaves_no_table_or_all(
    tmp_path: Path, links: bool, stop_at: Callable[[int], list[int]]
) -> None:
    for number in range(1, 500):
        out = tmp_path / f"tables{number}"

        def act(number: int = number, out: Path = out) -> None:
            output = StagedOutput(str(out))
            write_tables(output, "new")
            stop_at(number)
            output.publish()

        code = in_child(act)
        assert by_manifest(out) in (set(), rows_of("new")), number
        assert not links or by_folder(out) == by_manifest(out), number
        if number % 2:
            run(out, "next")
            assert by_manifest(out) == by_folder(out) == rows_of("next")
        if code == 0:
            return
    raise AssertionError("publishing takes too many steps")


def test_tables_without_a_manifest_count_until_those_of_a_run_without_links_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: Callable[[int], list[int]]
) -> None:
    refuse_links(monkeypatch)
    for number in range(1, 100):
        out = tmp_path / f"tables{number}"
        for table in SPOKEN_FOR:
            (out / table).mkdir(parents=True)
            pq.write_table(pa.table({"mark": ["old"] * 3}), out / table / "part-0.parquet")

        def act(number: int = number, out: Path = out) -> None:
            output = StagedOutput(str(out))
            write_tables(output, "new")
            stop_at(number)
            output.publish()

        code = in_child(act)
        assert by_manifest(out) in (rows_of("old"), rows_of("new")), number
        if code == 0:
            assert by_manifest(out) == by_folder(out) == rows_of("new")
            return
    raise AssertionError("publishing takes too many steps")


def test_tables_of_an_earlier_layout_are_replaced(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    write_empty_tables(out)
    (out / "frames" / "part-0.parquet").write_bytes(b"old")
    run(out, "b")
    assert by_manifest(out) == by_folder(out) == rows_of("b")
    assert not [path for path in out.rglob("*.parquet") if path.name == "part-0.parquet"]


def test_a_folder_of_tables_with_a_file_of_others_in_it_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    write_empty_tables(out)
    (out / "frames" / "mine.csv").write_text("mine")
    with pytest.raises(PolymuxError, match=r"something other than polymux tables \(frames/mine"):
        StagedOutput(str(out))
    assert (out / "frames" / "mine.csv").read_text() == "mine"


@pytest.mark.parametrize("foreign", ["frames/notes.csv", "frames/date=2026-11-01/mine", "content"])
def test_a_file_of_others_in_a_copy_of_tables_is_refused_before_the_run(
    tmp_path: Path, foreign: str
) -> None:
    run(tmp_path / "tables", "a")
    out = tmp_path / "copy"
    shutil.copytree(tmp_path / "tables" / "_current", out)
    run(out, "b")  # of tables alone, a copy can be replaced
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "tables" / "_current", out)
    (out / foreign).parent.mkdir(exist_ok=True)
    (out / foreign).write_text("mine")
    for start in (check_output, StagedOutput):
        with pytest.raises(PolymuxError, match=rf"\({foreign}\); choose another"):
            start(str(out))
    assert (out / foreign).read_text() == "mine"


def test_a_file_that_comes_to_a_copy_of_tables_during_the_run_stays(tmp_path: Path) -> None:
    run(tmp_path / "tables", "a")
    shutil.copytree(tmp_path / "tables" / "_current", tmp_path / "copy")
    output = StagedOutput(str(tmp_path / "copy"))
    write_tables(output, "b")
    (tmp_path / "copy" / "frames" / "notes.csv").write_text("mine")
    output.publish()
    run(tmp_path / "copy", "c")
    assert [path.read_text() for path in (tmp_path / "copy").rglob("notes.csv")] == ["mine"]
    assert by_manifest(tmp_path / "copy") == by_folder(tmp_path / "copy") == rows_of("c")
    assert not list((tmp_path / "copy").rglob("part-a.parquet"))


def test_a_copy_that_followed_links_is_refused_before_the_run(tmp_path: Path) -> None:
    run(tmp_path / "tables", "a")
    shutil.copytree(tmp_path / "tables", tmp_path / "copy")
    with pytest.raises(PolymuxError, match="_current in it is no link"):
        check_output(str(tmp_path / "copy"))
    assert by_manifest(tmp_path / "copy") == rows_of("a")


def test_a_lake_is_refused_because_its_tables_would_be_replaced(tmp_path: Path) -> None:
    append(open_lake(str(tmp_path / "lake")), 1, ["2026-11-01"])
    files = sorted(path for path in (tmp_path / "lake").rglob("*") if path.is_file())
    with pytest.raises(PolymuxError, match=r"is a lake.*--append"):
        StagedOutput(str(tmp_path / "lake"))
    assert sorted(path for path in (tmp_path / "lake").rglob("*") if path.is_file()) == files


def test_a_url_is_refused_without_its_credentials() -> None:
    with pytest.raises(PolymuxError, match=r"s3://bucket/tables: .*--append") as caught:
        check_output("s3://key:secret@bucket/tables?region=eu-west-1")
    assert "secret" not in str(caught.value)


def test_two_runs_with_one_output_refuse_each_other_and_the_first_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    first = StagedOutput(str(out))
    with pytest.raises(OutputBusy, match=rf"process {os.getpid()} on .*last sign \d+ s ago"):
        StagedOutput(str(out))
    with pytest.raises(OutputBusy, match="choose another --out"):
        check_output(str(out))
    write_tables(first, "a")
    first.publish()
    assert by_manifest(out) == rows_of("a")
    run(out, "b")
    assert by_manifest(out) == rows_of("b")


def lock_of(out: Path, **changed: object) -> None:
    out.mkdir(exist_ok=True)
    owner = {
        "run": "0" * 32, "host": "elsewhere/1", "pid": 1, "started": "5", "since": 0.0, **changed
    }  # fmt: skip
    (out / LOCK_NAME).write_text(json.dumps(owner))


def test_a_lock_of_another_host_counts_until_it_was_not_renewed_for_long(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    run(out, "a")
    lock_of(out)
    with pytest.raises(OutputBusy, match="process 1 on elsewhere, since"):
        StagedOutput(str(out))
    long_ago = os.stat(out / LOCK_NAME).st_mtime - output_lock.STALE_SECONDS - 5
    os.utime(out / LOCK_NAME, (long_ago, long_ago))
    run(out, "b")
    assert by_manifest(out) == rows_of("b")
    assert not (out / LOCK_NAME).exists()


def test_a_lock_of_this_host_counts_while_its_process_lives(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    here = LockOwner.this_process("1" * 32)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = LockOwner.this_process("").started
        assert started
        stat = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        lock_of(out, host=here.host, pid=other.pid, started=stat)
        with pytest.raises(OutputBusy):
            StagedOutput(str(out))
        lock_of(out, host=here.host, pid=other.pid, started="another start")
        run(out, "a")
        assert other.stdin is not None
        other.stdin.write(b"\n")
    lock_of(out, host=here.host, pid=other.pid, started=stat)
    run(out, "b")
    assert by_manifest(out) == rows_of("b")


def test_a_lock_that_another_run_took_over_is_noticed_before_anything_is_published(
    tmp_path: Path,
) -> None:
    out = tmp_path / "tables"
    run(out, "a")
    late = StagedOutput(str(out))
    write_tables(late, "late")
    lock_of(out)
    with pytest.raises(PolymuxError, match="taken its lock"):
        late.publish()
    late.discard()
    assert by_manifest(out) == rows_of("a")
    assert read_lock(out) is not None, "it belongs to the other run"


def test_a_lock_is_renewed_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_lock, "RENEW_SECONDS", 0.01)
    lock = OutputLock(tmp_path, "1" * 32)
    os.utime(tmp_path / LOCK_NAME, (1, 1))
    for _ in range(500):
        found = read_lock(tmp_path)
        if found is not None and found.silent_seconds < 100:
            break
    assert found is not None
    assert found.silent_seconds < 100
    lock.release()
    assert read_lock(tmp_path) is None


def refuse_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the file system one that cannot lock directories."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "not a file that can be locked")

    monkeypatch.setattr(fcntl, "flock", refuse)


def before_rename(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` before the next rename, which moves away a lock that was found dead."""
    honest = os.rename

    def rename(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", honest)
        act()
        honest(source, target)

    monkeypatch.setattr(os, "rename", rename)


def dead_lock(out: Path) -> None:
    lock_of(out, host=LockOwner.this_process("").host, started="an earlier start")


def test_of_two_runs_that_find_a_dead_lock_the_first_takes_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_lock(tmp_path)
    taken: list[OutputLock] = []
    refused: list[OutputBusy] = []

    def take() -> None:
        try:
            taken.append(OutputLock(tmp_path, "2" * 32))
        except OutputBusy as busy:
            refused.append(busy)

    second = threading.Thread(target=take)

    def start_second() -> None:
        second.start()
        second.join(0.3)  # it waits until the first has the lock

    before_rename(monkeypatch, start_second)
    first = OutputLock(tmp_path, "1" * 32)
    second.join()
    assert first.is_held()
    assert not taken
    assert len(refused) == 1
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_a_live_lock_that_was_taken_for_dead_is_put_back_where_directories_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_flock(monkeypatch)
    dead_lock(tmp_path)
    others: list[OutputLock] = []
    before_rename(monkeypatch, lambda: others.append(OutputLock(tmp_path, "2" * 32)))
    with pytest.raises(OutputBusy, match=f"process {os.getpid()} on"):
        OutputLock(tmp_path, "1" * 32)
    assert others[0].is_held()
    others[0].release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_renewed_after_it_was_found_stale_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_of(tmp_path)
    os.utime(tmp_path / LOCK_NAME, (1, 1))
    content = (tmp_path / LOCK_NAME).read_bytes()
    before_rename(monkeypatch, lambda: os.utime(tmp_path / LOCK_NAME))
    with pytest.raises(OutputBusy, match="process 1 on elsewhere"):
        OutputLock(tmp_path, "1" * 32)
    assert (tmp_path / LOCK_NAME).read_bytes() == content


def test_a_lock_is_given_up_if_the_run_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "tables"
    run(out, "a")
    before = sorted(path.name for path in out.rglob("*"))
    honest = os.mkdir

    def mkdir(path: str, *more: int) -> None:
        if str(path).endswith("_staging"):
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", mkdir)
        with pytest.raises(UnwritableOutput, match="No space left"):
            StagedOutput(str(out))
        patch.setattr(threading.Thread, "start", lambda thread: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            StagedOutput(str(out))
    assert sorted(path.name for path in out.rglob("*")) == before
    run(out, "b")


@pytest.mark.parametrize("flock", [True, False])
@pytest.mark.parametrize("look", [1, 2])
def test_a_run_that_begins_beside_one_that_clears_up_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int, flock: bool
) -> None:
    dead = tmp_path / "dead"
    run(dead, "a")
    assert in_child(lambda: os._exit(write_and_leave(dead))) == 7
    if not flock:
        refuse_flock(monkeypatch)
    left = [path for path in (dead / "_runs").iterdir() if (path / "_staging").is_dir()]
    begun: list[StagedOutput] = []
    refused: list[OutputBusy] = []
    looks = 0
    honest = os.readlink

    def begin_at_look(path: Path) -> str:
        """Begin a run in `dead` at the n-th look at which of its runs is published."""
        nonlocal looks
        looks += path == dead / "_current"
        if looks == look:
            monkeypatch.setattr(os, "readlink", honest)
            try:
                begun.append(StagedOutput(str(dead)))
            except OutputBusy as busy:
                refused.append(busy)
        return honest(path)

    monkeypatch.setattr(os, "readlink", begin_at_look)
    run(tmp_path / "tables", "b")
    assert not left[0].exists()
    assert (len(begun), len(refused)) == ((1, 0) if look == 1 else (0, 1))
    for output in begun:
        write_tables(output, "c")
        output.publish()
        assert by_manifest(dead) == rows_of("c")
    assert not (dead / LOCK_NAME).exists()


def test_a_killed_run_is_cleared_up_by_the_next_run_of_any_output_beside_it(
    tmp_path: Path,
) -> None:
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    run(dead, "a")
    left: list[Path] = []
    assert in_child(lambda: os._exit(write_and_leave(dead))) == 7
    left = [path for path in (dead / "_runs").iterdir() if (path / "_staging").is_dir()]
    busy = StagedOutput(str(alive))
    assert len(left) == 1
    run(tmp_path / "third", "b")
    assert not left[0].exists()
    assert busy.staging.is_dir()
    assert by_manifest(dead) == rows_of("a")
    busy.discard()


def write_and_leave(out: Path) -> int:
    write_tables(StagedOutput(str(out)), "never")
    return 7


def test_looking_whether_an_output_can_be_written_leaves_nothing_beside_it(tmp_path: Path) -> None:
    check_output(str(tmp_path / "tables"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    first = StagedOutput(str(tmp_path / "tables"))
    write_tables(first, "a")
    first.discard()
    assert list(tmp_path.iterdir()) == []
    run(tmp_path / "tables", "b")
    before = sorted(path.name for path in (tmp_path / "tables").rglob("*"))
    second = StagedOutput(str(tmp_path / "tables"))
    write_tables(second, "c")
    second.discard()
    assert sorted(path.name for path in (tmp_path / "tables").rglob("*")) == before
    assert by_manifest(tmp_path / "tables") == rows_of("b")


def test_files_that_a_worker_wrote_elsewhere_are_named(tmp_path: Path) -> None:
    output = StagedOutput(str(tmp_path / "tables"))
    with pytest.raises(PolymuxError, match=r"part-1\.parquet: a worker wrote it, but"):
        output.collect_files({"frames/part-1.parquet": 1})
    output.discard()


def test_a_copy_of_the_current_run_is_an_output_of_its_own(tmp_path: Path) -> None:
    run(tmp_path / "tables", "a")
    shutil.copytree(tmp_path / "tables" / "_current", tmp_path / "copy")
    shutil.rmtree(tmp_path / "tables")
    assert by_manifest(tmp_path / "copy") == rows_of("a")


@pytest.mark.parametrize("content", ["{", '{"polymux-manifest": 99}', "[]", ""])
def test_a_manifest_that_cannot_be_read_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(content)
    with pytest.raises(UnreadableInput, match="not a readable manifest"):
        table_files(tmp_path, "frames")


def test_a_manifest_names_only_files_below_it(tmp_path: Path) -> None:
    run(tmp_path / "tables", "a")
    manifest = tmp_path / "tables" / MANIFEST_NAME
    text = manifest.read_text().replace("frames/part-a", "../part-a")
    manifest.unlink()
    manifest.write_text(text)
    with pytest.raises(UnreadableInput, match="is not below it"):
        table_files(tmp_path / "tables", "frames")


@pytest.fixture(autouse=True)
def no_locks_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no power is lost here
    yield
    for lock in tmp_path.rglob(LOCK_NAME):
        lock.unlink()  # its thread ends
