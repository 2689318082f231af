"""Counters of the analysis, as accumulators and in Spark's own metrics.

The input and output columns of Spark's pages stay empty for Python tasks: the executor's JVM counts
them, and a Python worker has no way to report any. What a task can do is add to an accumulator
(`RunCounters.add`). PySpark's accumulators have no name, and Spark shows only those that have one:
the driver therefore copies the sums to named accumulators of its JVM and registers these with
Spark's metrics system. They are gauges named `polymux.sessions` and so on of the source
`AccumulatorSource`, for its JSON page, JMX, Prometheus and every other sink that is configured.

The sums are those of the application. A task that is repeated counts once, as Spark counts the
updates of result tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

COUNTERS = (
    "input_bytes",  # read of the captures, in all stages
    "input_packets",  # of TCP, found by the index
    "output_rows",
    "output_bytes",  # of table files
    "sessions",
    "frames",
    "violations",
)
COPY_SECONDS = 2.0  # between two copies to the metrics of a running stage
_of_applications: dict[str, RunCounters] = {}


class SumByName(AccumulatorParam[dict[str, int]]):
    """Adds dictionaries of sums."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        return {name: value1.get(name, 0) + value2.get(name, 0) for name in value1 | value2}


class RunCounters:
    """The counters of one application. Use `run_counters`.

    It travels with tasks, which may only `add`.
    """

    def __init__(self, context: SparkContext) -> None:
        self._sums = context.accumulator({}, SumByName())
        self._copied: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._lock = threading.Lock()
        self._gauges = _register_gauges(context)

    def __getstate__(self) -> dict[str, object]:
        return {"_sums": self._sums}

    def add(self, counts: Mapping[str, int]) -> None:
        """Add to the counters named, in a task or on the driver."""
        self._sums.add(dict(counts))

    def values(self) -> dict[str, int]:
        """The sums of all finished tasks. Only on the driver."""
        return {name: self._sums.value.get(name, 0) for name in COUNTERS}

    def copy_to_metrics(self) -> None:
        """Bring the metrics of Spark up to date."""
        with self._lock:
            values = self.values()
            for name, gauge in self._gauges.items():
                if values[name] != self._copied[name]:
                    gauge.add(values[name] - self._copied[name])
                    self._copied[name] = values[name]

    def metrics(self) -> dict[str, int]:
        """The values that Spark's metrics have now."""
        return {name: int(gauge.value()) for name, gauge in self._gauges.items()}

    @contextmanager
    def kept_current(self) -> Iterator[None]:
        """Copy to the metrics while the block runs, and once more at its end."""
        ended = threading.Event()

        def copy_regularly() -> None:
            with suppress(Exception):  # the session may have ended, or its Java died
                while not ended.wait(COPY_SECONDS):
                    self.copy_to_metrics()

        copier = threading.Thread(target=copy_regularly, name="polymux-metrics", daemon=True)
        copier.start()
        try:
            yield
        finally:
            ended.set()
            copier.join()
            with suppress(Exception):
                self.copy_to_metrics()


def run_counters(spark: SparkSession) -> RunCounters:
    """Return the counters of the session's application."""
    context = spark.sparkContext
    found = _of_applications.get(context.applicationId)
    if found is None:
        _of_applications.clear()  # a process has one application at a time
        found = _of_applications[context.applicationId] = RunCounters(context)
    return found


def _register_gauges(context: SparkContext) -> dict[str, Any]:
    """Create accumulators in the JVM and register them; return them by the names of `COUNTERS`.

    Returns none of them where the platform lets no program reach its JVM: the analysis does not
    depend on them.
    """
    with suppress(Exception):
        return _new_gauges(context)
    return {}


def _new_gauges(context: SparkContext) -> dict[str, Any]:
    jvm: Any = context._jvm  # PySpark has no public way to Spark's metrics
    scala_context = context._jsc.sc()
    gauges = {name: scala_context.longAccumulator(f"polymux.{name}") for name in COUNTERS}
    by_name = jvm.java.util.HashMap()
    for name, gauge in gauges.items():
        by_name.put(f"polymux.{name}", gauge)
    sources = jvm.org.apache.spark.metrics.source
    companion = getattr(getattr(sources, "LongAccumulatorSource$"), "MODULE$")  # of Scala
    companion.register(scala_context, jvm.PythonUtils.toScalaMap(by_name))
    return gauges
