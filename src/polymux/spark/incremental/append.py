"""Captures to a lake of tables, run by run: what was read before is not read again.

The steps of `batch.pipeline`, on what is new, with three more:

1. compare the inputs with the ledger of what was read (`ledger`);
2. index the new captures, and take up the packets of sessions that were not over
   (`carried_packets`);
3. find the sessions of the lake that late packets touch, and index their captures again, for these
   flows only (`touched_sessions`); those whose captures are gone stay (`kept_sessions`);
4. analyze; rows of sessions that are still not over are provisional (`open_rule`, `lake_output`);
5. write files that have rows of touched sessions anew without them (`row_removal`);
6. commit: one version of the lake, all tables at once (`spark.lake`).

After each run the tables have the rows of one analysis of all captures read so far.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import CaptureLimits, FileSummary
from polymux.capture.io.discovery import CaptureFile, find_inputs
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.paths import AnyPaths, is_url, open_private
from polymux.core.errors import CaptureError, CaptureUnavailable, PolymuxError, UnwritableOutput
from polymux.core.urls import place_of, with_credentials_of, without_credentials
from polymux.spark.batch.analyze_stage import StageResult, analyze_sessions, plan_analyze_tasks
from polymux.spark.batch.index_stage import (
    IndexSpan,
    cut_in_tasks,
    indexed_spans,
    merge_by_file,
    plan_index_tasks,
    run_index_stage,
    total_bytes,
)
from polymux.spark.batch.pipeline import Analysis, LakeOptions, LakeRun
from polymux.spark.batch.reference_shuffle import (
    INDEX_FOLDER,
    INDEX_SUFFIX,
    FlowSelection,
    IndexResult,
    IndexTotals,
    ReferenceReader,
)
from polymux.spark.incremental.carried_packets import PAYLOAD_SUFFIX, load_carried
from polymux.spark.incremental.kept_sessions import KeptSessions, RemainingFlows
from polymux.spark.incremental.lake_output import (
    CARRIED_PREFIX,
    SECRETS_PREFIX,
    LakeOutput,
    StoredFiles,
)
from polymux.spark.incremental.ledger import KEYS_SETTING, Ledger, changed_captures
from polymux.spark.incremental.open_rule import DAY_NS, OpenRule
from polymux.spark.incremental.row_removal import CAPTURES_TABLE, files_of_dates, without_rows
from polymux.spark.incremental.touched_sessions import (
    TouchedSessions,
    find_new_packets,
    find_touched,
    unpack_new_packets,
)
from polymux.spark.lake.lake import Lake, Staging, TaskOutput, open_lake
from polymux.spark.lake.store import DataFile, StateFile
from polymux.spark.runtime.job_progress import job_description
from polymux.spark.runtime.session_jobs import Counters, jobs_of
from polymux.spark.runtime.stages import run_stage
from polymux.spark.runtime.worker_checks import check_workers
from polymux.spark.runtime.worker_memory import freeze_gc, release_memory, use_spark_local_dirs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER_NAME = "ledger"
MAX_NAMED = 3  # captures that an error names
Item = TypeVar("Item")
Result = TypeVar("Result")


class MissingCaptures(PolymuxError):
    """Captures of a day that is to be replaced are gone; the text names them."""


@dataclass(frozen=True, slots=True)
class AppendSettings:
    """What decides the rows of a lake, and how a run reads captures.

    Args:
        options: What is analyzed, and how; its keys are those that the caller named.
        filters: Only these flows, each as `host:port`.
        limits: Limits for reading captures.
        reprocess: Days whose captures are read again, and whose rows are replaced.
        forget: Whether captures of these days that are gone are forgotten, with their rows.
        by_sensor: Whether tables are divided by sensor too.
        carry_ns: How long a session that has not ended may be silent until it counts as over; and
            how long no run may have read a capture of its sensor, until all of it count so.
        max_partition_bytes: Target size of a task; 0 chooses one.
        exchange: A directory that the driver and all workers share, through which tasks exchange
            references; "": in the lake, and if that is not in a directory, in the temporary
            directory of this machine, which only sessions on it share.
    """

    options: AnalysisOptions
    filters: tuple[str, ...] = ()
    limits: CaptureLimits = field(default_factory=CaptureLimits)
    reprocess: tuple[date, ...] = ()
    by_sensor: bool = False
    carry_ns: int = 7 * DAY_NS
    max_partition_bytes: int = 0
    exchange: str = ""
    forget: bool = False

    def recorded(self) -> dict[str, str]:
        """The options that all runs of a lake must share, as text."""
        options = self.options
        ports = " ".join(f"{port}={text}" for port, text in sorted(options.ports.items()))
        return {
            "protocol": options.protocol,
            "port": ports,
            "filter": " ".join(sorted(self.filters)),
            "content": "true" if "content" in options.tables else "false",
            "sensor": options.sensors.name,
            "sensor-from": options.sensors.pattern,
            "by-sensor": "true" if self.by_sensor else "false",
            KEYS_SETTING: "true" if options.keys else "false",
        }

    def days(self) -> set[str]:
        """The days to be replaced, as YYYY-MM-DD."""
        return {day.isoformat() for day in self.reprocess}


@dataclass
class Appended:
    """What a run has read and written.

    Attributes:
        captures: The captures that were read as a whole: new ones and those read again.
        total: Counters of the sessions that were analyzed, carried ones included.
        indexed_packets: TCP packets that were to be analyzed.
        capture_bytes: Size of `captures`.
        read_bytes: What was read of captures, in all stages.
        skipped: How many captures were as they had been read before.
        forgotten: How many captures that are gone were forgotten.
        touched: How many sessions of the lake were over and have been replaced.
        open_sessions: How many sessions are not over; their rows are provisional.
        kept: The sessions that packets touch and that stay: their captures are gone.
        left_out: How many packets of the time of `kept` are in no session.
        version: The version of the lake; 0 if there was nothing to do.
        seconds: By stage.
    """

    captures: list[FileSummary] = field(default_factory=list)
    total: StageResult = field(default_factory=StageResult)
    indexed_packets: int = 0
    capture_bytes: int = 0
    read_bytes: int = 0
    skipped: int = 0
    forgotten: int = 0
    touched: int = 0
    open_sessions: int = 0
    kept: KeptSessions = field(default_factory=KeptSessions)
    left_out: int = 0
    version: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class InputPlan:
    """What a run reads: captures as a whole. `replaced` are those of the ledger whose packets in
    the lake do not count any more: they are read again, or gone and `forgotten`."""

    whole: list[CaptureFile]
    replaced: frozenset[str]
    forgotten: frozenset[str]
    skipped: int


def append_captures(
    spark: SparkSession,
    paths: AnyPaths,
    lake: Lake,
    settings: AppendSettings,
    on_stage: Callable[[str], Any] = lambda name: None,
) -> Appended:
    """Add captures to a lake. What is in the lake itself is none.

    `on_stage` is called with the name of each stage as it begins.

    Raises:
        CaptureError: An input cannot be found.
        CaptureUnavailable: An input cannot be read, or changed during the run.
        ChangedCaptures: A capture that was read before has other content now.
        MissingCaptures: Captures of a day that is to be replaced are gone.
        OtherSettings: The lake was made with other options.
        OutputBusy, ConcurrentCommit: Another run writes to the lake.
        LakeError: The lake cannot be read or written.
    """
    files = [file for file in find_inputs(paths) if not _is_inside(lake, file.path)]
    staging = lake.begin()
    try:
        with _exchange_folder(staging, settings.exchange) as folder:
            run = _Run(spark, lake, staging, str(folder), settings, on_stage)
            done = run.append(files)
    except BaseException:
        lake.discard(staging)
        raise
    if not done.version:
        lake.end(staging)
    return done


def analyze_into_lake(
    spark: SparkSession,
    paths: AnyPaths,
    url: str,
    options: AnalysisOptions,
    filters: tuple[str, ...],
    limits: CaptureLimits,
    max_partition_bytes: int,
    how: LakeOptions,
    append: bool,
    on_stage: Callable[[str], Any] | None,
) -> Analysis:
    """Analyze captures into the lake at a directory or URL; the work of `pipeline.analyze`.

    Raises:
        PolymuxError: There is a lake already, and `append` was not asked for; and see
            `append_captures`.
    """
    lake = open_lake(url, how.format, catalog=how.catalog)
    before = lake.current()
    if before is not None and not append:
        raise PolymuxError(
            f"{lake.location}: is a lake of version {before.number}: add captures to it with "
            "--append (append=True), or choose another place"
        )
    settings = AppendSettings(
        replace(options, layout=TableLayout(sorts_files=True)),  # divided by date anyway
        filters,
        limits,
        tuple(how.reprocess),
        how.by_sensor,
        int(how.carry_days * DAY_NS),
        max_partition_bytes,
        how.exchange,
        how.forget,
    )
    done = append_captures(spark, paths, lake, settings, on_stage or (lambda name: None))
    version = done.version or (before.number if before is not None else 0)
    return Analysis(
        lake.location,
        done.captures,
        done.total,
        done.seconds,
        done.indexed_packets,
        done.capture_bytes,
        done.read_bytes,
        LakeRun(
            version,
            done.skipped,
            done.touched,
            done.open_sessions,
            done.kept.count,
            done.left_out,
            done.kept.gone,
            done.forgotten,
        ),
    )


@contextmanager
def _exchange_folder(staging: Staging, exchange: str) -> Iterator[Path]:
    """A new folder for what tasks exchange; it is removed after the block."""
    if not exchange:
        with staging.output.folder() as folder:
            yield folder
        return
    try:
        found = tempfile.mkdtemp(prefix="polymux-", dir=exchange)
    except OSError as problem:
        raise UnwritableOutput(f"{exchange}: cannot be written: {problem.strerror}") from None
    try:
        yield Path(found)
    finally:
        shutil.rmtree(found, ignore_errors=True)


class _Run:
    """One run of `append_captures`; `folder` is where its tasks exchange references."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        staging: Staging,
        folder: str,
        settings: AppendSettings,
        on_stage: Callable[[str], Any],
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._staging = staging
        self._parent = staging.parent
        self._folder = folder
        self._settings = settings
        self._options = settings.options
        self._on_stage = on_stage
        self._done = Appended()
        self._urls: dict[str, str] = {}  # of an input at each place
        self._again: dict[str, CaptureFile] = {}  # captures of touched sessions, as they are now
        self._cores = jobs_of(spark).parallelism()
        self._ledger = self._read_ledger()

    def append(self, files: list[CaptureFile]) -> Appended:
        """Run all steps."""
        plan = self._plan_inputs(files)
        done = self._done
        done.skipped = plan.skipped
        done.forgotten = len(plan.forgotten)
        if not plan.whole and not plan.forgotten:
            return done
        check_workers(self._spark, [file.path for file in plan.whole], self._folder)
        with self._stage("index"):
            indexed = self._index(plan.whole)
            spans = indexed_spans(indexed)
            now = time.time_ns()
            ledger = self._ledger.without(plan.forgotten)
            ledger = ledger.updated(spans, plan.whole, self._settings.recorded(), now)
            touched, carried = self._take_up(indexed, plan.replaced)
            again = self._index_again(touched, indexed.buckets)
            done.captures = merge_by_file(summary for summary, _ in spans)
            done.capture_bytes = total_bytes(plan.whole)
            for more in (again, carried):
                indexed.merge(more)
        carry = self._settings.carry_ns
        rule = OpenRule(ledger.newest, carry, ledger.unheard(now, carry))
        with self._stage("analyze"):
            stored = self._analyze(indexed, rule)
        with self._stage("publish"):
            self._commit(ledger, stored, touched, plan.replaced)
        done.read_bytes = indexed.read_bytes + done.total.read_bytes
        done.indexed_packets = indexed.packets - stored.left_out
        done.left_out = stored.left_out
        done.touched = len(touched.dates)
        done.open_sessions = stored.open_sessions
        return done

    # What is read

    def _read_ledger(self) -> Ledger:
        if self._parent is None:
            return Ledger()
        state = self._parent.state.get(LEDGER_NAME)
        if state is None:
            raise PolymuxError(
                f"{self._lake.location}: has no ledger of the captures it was made from: another "
                "program wrote it; choose another directory"
            )
        ledger = Ledger.decode(self._lake.read_state(state))
        ledger.check_settings(self._settings.recorded())
        return ledger

    def _plan_inputs(self, files: list[CaptureFile]) -> InputPlan:
        """Decide which captures are read.

        Raises:
            ChangedCaptures: One has other content than before, and none of its days is replaced.
            MissingCaptures: One of a day that is replaced is gone.
        """
        limits = self._settings.limits
        named = {without_credentials(file.path): file for file in files}
        self._urls = {place_of(name): file.path for name, file in named.items()}
        new, grown, changed = self._ledger.compare(named.values(), limits)
        bounds = [_bounds(day) for day in self._settings.reprocess]
        of_days = {
            path
            for path, capture in self._ledger.captures.items()
            if any(capture.overlaps(*bound) for bound in bounds)
        }
        unwanted = [file for file in changed if without_credentials(file.path) not in of_days]
        if unwanted:
            raise changed_captures(unwanted)
        again = {without_credentials(file.path): file for file in grown}
        again |= {path: named[path] for path in of_days & named.keys()}
        rest = of_days - again.keys()
        found, gone = self._find_again(rest)
        if gone and not self._settings.forget:
            raise missing_captures(gone)
        again |= found
        whole = sorted([*new, *again.values()], key=lambda file: file.path)
        skipped = named.keys() - {without_credentials(file.path) for file in whole}
        return InputPlan(whole, frozenset([*again, *gone]), frozenset(gone), len(skipped))

    def _find_again(self, paths: Iterable[str]) -> tuple[dict[str, CaptureFile], list[str]]:
        """List captures of the ledger that are read again; also return those that are gone.

        Raises:
            CaptureUnavailable: It cannot be found out whether one is gone.
        """
        found: dict[str, CaptureFile] = {}
        gone = []
        for path in sorted(paths):
            try:
                files = find_inputs([self._with_credentials(path)])
            except CaptureUnavailable:  # it may well be there
                raise
            except CaptureError:
                files = []
            if [without_credentials(file.path) for file in files] == [path]:
                found[path] = files[0]
            else:  # its name may be a pattern that others match, or a directory's now
                gone.append(path)
        return found, gone

    def _with_credentials(self, path: str) -> str:
        """The path of a capture; a URL with the credentials of an input at the same place."""
        url = self._urls.get(place_of(path), "") if is_url(path) else ""
        return with_credentials_of(path, url) if url else path

    def _index(self, files: Sequence[CaptureFile]) -> IndexTotals:
        size = self._settings.max_partition_bytes
        cut = cut_in_tasks(self._spark, self._folder)
        return self._index_spans(plan_index_tasks(files, self._cores, size, cut))

    def _index_spans(self, tasks: list[list[IndexSpan]], buckets: int = 0) -> IndexTotals:
        settings = self._settings
        return run_index_stage(
            self._spark,
            tasks,
            self._folder,
            settings.limits,
            tuple(self._options.ports),
            settings.filters,
            sensors=self._options.sensors,
            buckets=buckets,
        )

    def _take_up(
        self, indexed: IndexTotals, reread: frozenset[str]
    ) -> tuple[TouchedSessions, IndexTotals]:
        """Find the sessions of the lake that the new packets touch, and load carried packets.

        Sessions whose captures are gone, or are others now, stay as they were written.
        """
        carried = self._load_carried(indexed.buckets, reread, TouchedSessions())
        if self._parent is None:
            return TouchedSessions(), carried
        together = IndexTotals(indexed.buckets)
        together.merge(indexed)
        together.merge(carried)
        find = partial(_find_new_packets, self._folder, together.names, self._ledger.newest)
        packets = self._map(find, self._plan_flows(together))
        sessions = [file for file in self._parent.files.get("sessions", ()) if not file.provisional]
        touched = find_touched(
            unpack_new_packets(packets),
            reread,
            self._settings.days(),
            self._ledger.captures,
            lambda columns: self._lake.batches(sessions, columns),
        )
        found, gone = self._find_again(touched.captures)
        _, _, changed = self._ledger.compare(found.values(), self._settings.limits)
        self._done.kept = touched.keep([*gone, *(without_credentials(f.path) for f in changed)])
        self._again = found
        if touched.captures:  # they have carried packets too, perhaps
            carried = self._load_carried(indexed.buckets, reread, touched)
        return touched, carried

    def _load_carried(
        self, buckets: int, reread: frozenset[str], touched: TouchedSessions
    ) -> IndexTotals:
        """Bring the packets of sessions that were not over to the tasks of this run."""
        totals = IndexTotals(buckets)
        state = {} if self._parent is None else self._parent.state
        refs = [file for name, file in state.items() if _is_carried(name, INDEX_SUFFIX)]
        if refs:
            load = partial(
                _load_carried,
                self._staging.output,
                self._folder,
                buckets,
                reread,
                touched.flows_by_capture(),
            )
            pairs = [(file, state[_payload_of(file.name)]) for file in refs]
            for packed in self._map(load, pairs):
                totals.add(IndexResult.unpack(packed))
        return totals

    def _index_again(self, touched: TouchedSessions, buckets: int) -> IndexTotals:
        """Index the captures of touched sessions, for their flows only."""
        if not touched.captures:
            return IndexTotals(buckets)
        files = [self._again[path] for path in sorted(touched.captures)]
        cut = cut_in_tasks(self._spark, self._folder)
        tasks = plan_index_tasks(files, self._cores, self._settings.max_partition_bytes, cut)
        flows = {self._again[name].path: frozenset(f) for name, f in touched.captures.items()}
        return self._index_spans(
            [[replace(span, flows=flows[span.path]) for span in task] for task in tasks], buckets
        )

    # What is written

    def _analyze(self, indexed: IndexTotals, rule: OpenRule) -> StoredFiles:
        """Analyze all sessions and store their rows, which nothing names yet."""
        state = {} if self._parent is None else self._parent.state
        kept = [self._lake.read_state(f) for n, f in state.items() if n.startswith(SECRETS_PREFIX)]
        secrets = [*indexed.secrets, *kept]
        counters = jobs_of(self._spark).counters()
        task = _AnalyzeTask(
            self._staging.output,
            self._folder,
            indexed.names,
            self._options.with_run(self._staging.run).with_secrets(secrets),
            self._settings.limits,
            rule,
            self._settings.by_sensor,
            KeyLog().merged(secrets),
            self._done.kept,
            counters,
        )
        stored = StoredFiles()
        with counters.kept_current():
            for result, files in self._map(task, self._plan_flows(indexed)):
                self._done.total.add(result)
                stored.add(files)
        seen = self._done.total.packets + stored.left_out
        if seen != indexed.packets:
            raise PolymuxError(
                f"the analysis saw {seen} of the {indexed.packets} packets "
                "that the index found: nothing was committed; this is a bug in polymux, please "
                "report it"
            )
        return stored

    def _commit(
        self,
        ledger: Ledger,
        stored: StoredFiles,
        touched: TouchedSessions,
        reread: frozenset[str],
    ) -> None:
        """Remove what is replaced, and commit."""
        output, parent = self._staging.output, self._parent
        added, removed = list(stored.data), []
        if parent is not None:
            removed += [file for file in parent.all_files() if file.provisional]
            work: list[tuple[DataFile, str]] = []
            if touched.dates:
                dates = set(touched.dates.values())
                work += [(file, "session_id") for file in files_of_dates(parent, dates)]
            if reread:
                work += [(file, "file") for file in parent.files.get(CAPTURES_TABLE, ())]
            rewrite = partial(_without_rows, output, frozenset(touched.dates), reread)
            for (file, _), written in zip(work, self._map(rewrite, work), strict=True):
                if written is not None:
                    removed.append(file)
                    added += written
        added += self._store_captures()
        state = [*stored.state, output.store_state(LEDGER_NAME, ledger.encode())]
        version = self._lake.commit(
            self._staging,
            added=added,
            removed=removed,
            state=state,
            operation="reprocess" if self._settings.reprocess else "append",
            options={
                **self._settings.recorded(),
                "reprocess": " ".join(sorted(self._settings.days())),
            },
        )
        self._done.version = version.number

    def _store_captures(self) -> list[DataFile]:
        with self._staging.output.folder() as folder:
            layout = self._options.with_run(self._staging.run).layout
            with TableWriter(folder, "captures", layout) as writer:
                writer.add_captures(self._done.captures)
            return self._staging.output.store(folder)

    def _plan_flows(self, totals: IndexTotals) -> list[FlowSelection]:
        """Divide the flows into tasks, each with all of its flows, also those of one file."""
        size = self._settings.max_partition_bytes
        tasks = plan_analyze_tasks(totals, self._cores, size)
        return [replace(selection, leaves_local=False) for selection in tasks]

    def _map(self, run: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Run a function on each item, in a task of its own."""
        return list(run_stage(self._spark, run, items, self._folder))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._on_stage(name)
        started = time.perf_counter()
        with job_description(self._spark, f"polymux: {name} captures to {self._lake.location}"):
            yield
        self._done.seconds[name] = time.perf_counter() - started


@dataclass(frozen=True)
class _AnalyzeTask:
    """The function of an analyze task."""

    output: TaskOutput
    staging: str
    names: list[str]
    options: AnalysisOptions
    limits: CaptureLimits
    rule: OpenRule
    by_sensor: bool
    secrets: KeyLog  # those of captures
    kept: KeptSessions
    counters: Counters

    def __call__(self, selection: FlowSelection) -> tuple[StageResult, StoredFiles]:
        freeze_gc("analyze")
        use_spark_local_dirs()
        release_memory()
        flows = ReferenceReader(self.staging, self.names, selection)
        result = StageResult()
        with self.output.folder() as folder:
            layout = self.options.layout
            sink = LakeOutput(folder, self.rule, self.by_sensor, layout, self.secrets)
            remaining = RemainingFlows(flows, self.kept)
            # The writers outlive the files: closing these may find that one has changed.
            with sink, UrlFilePool(self.limits, flows.identities, flows.copies) as files:
                analyze_sessions(remaining, files, sink, self.options, result)
            result.read_bytes = files.bytes_read
            stored = sink.store(self.output)
            stored.left_out = remaining.left_out
        self.counters.add(
            {
                "input_bytes": result.read_bytes,
                "output_rows": sum(file.rows for file in stored.data),
                "output_bytes": sum(file.size for file in stored.data),
                "sessions": result.sessions,
                "frames": result.frames,
                "violations": result.violations,
            }
        )
        return result, stored


def missing_captures(gone: Sequence[str]) -> MissingCaptures:
    """The error for captures of a day that is to be replaced, which are gone."""
    more = f" and {len(gone) - MAX_NAMED} more" if len(gone) > MAX_NAMED else ""
    return MissingCaptures(
        f"{', '.join(gone[:MAX_NAMED])}{more}: gone, but needed again (their day is replaced); "
        "restore them, or forget them with their rows (--forget, forget=True)"
    )


def _find_new_packets(
    folder: str, names: list[str], newest: dict[str, int], selection: FlowSelection
) -> bytes:
    return find_new_packets(folder, names, selection, newest)


def _load_carried(
    output: TaskOutput,
    folder: str,
    buckets: int,
    gone: frozenset[str],
    gone_of_flows: frozenset[Any],
    files: tuple[StateFile, StateFile],
) -> bytes:
    """Load the carried packets of one task of the run before."""
    refs, payload = files
    with output.folder() as place:
        path = Path(place, "carried" + INDEX_SUFFIX)
        path.write_bytes(output.storage.read(refs.path))
        copy = _payload_copy(output, folder, payload)
        return load_carried([str(path)], [copy], folder, buckets, gone, gone_of_flows)


def _payload_copy(output: TaskOutput, folder: str, file: StateFile) -> str:
    """The local path of a state file with payload; a copy, if the lake is on an object store."""
    storage = output.storage
    if not is_url(storage.url):
        return str(Path(storage.url, file.path))
    path = Path(folder, INDEX_FOLDER, uuid.uuid4().hex + PAYLOAD_SUFFIX)
    path.parent.mkdir(exist_ok=True)
    stored = storage.arrow_filesystem.open_input_stream(storage.arrow_path(file.path))
    with stored as source, open_private(path) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return str(path)


def _without_rows(
    output: TaskOutput,
    sessions: frozenset[str],
    captures: frozenset[str],
    work: tuple[DataFile, str],
) -> list[DataFile] | None:
    file, key = work
    return without_rows(file, key, captures if key == "file" else sessions, output)


def _is_inside(lake: Lake, path: str) -> bool:
    """Whether an input is a file of the lake."""
    location = unquote(without_credentials(path)) if is_url(path) else path
    return lake.storage.name_of(location) is not None


def _is_carried(name: str, suffix: str) -> bool:
    return name.startswith(CARRIED_PREFIX) and name.endswith(suffix)


def _payload_of(name: str) -> str:
    """The name of the state file with the payload of these references."""
    return name.removesuffix(INDEX_SUFFIX) + PAYLOAD_SUFFIX


def _bounds(day: date) -> tuple[int, int]:
    """The first instant of a day in UTC and the first after it, in nanoseconds since 1970."""
    begin = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000_000
    return begin, begin + DAY_NS
