"""polymux on Apache Spark: sessions, the batch pipeline, the data source, watching and the sink.

Imports `analysis` and the layers below it; only `cli` imports this package. PySpark is
imported when a session is started, so the package loads without it; the names below are resolved on
first use for the same reason.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polymux.spark.batch.pipeline import Analysis, LakeOptions, LakeRun, analyze
    from polymux.spark.datasource.source import PolymuxSource, register
    from polymux.spark.runtime.doctor import InstallationCheck, checks
    from polymux.spark.runtime.java import Java, NoJava, find_java
    from polymux.spark.runtime.job_progress import Progress, progress
    from polymux.spark.runtime.session import SparkStartError, spark_session

__all__ = [
    "Analysis",
    "InstallationCheck",
    "Java",
    "LakeOptions",
    "LakeRun",
    "NoJava",
    "PolymuxSource",
    "Progress",
    "SparkStartError",
    "analyze",
    "checks",
    "find_java",
    "progress",
    "register",
    "spark_session",
]

_LAZY_MODULES = {
    "Analysis": "batch.pipeline",
    "analyze": "batch.pipeline",
    "InstallationCheck": "runtime.doctor",
    "Java": "runtime.java",
    "LakeOptions": "batch.pipeline",
    "LakeRun": "batch.pipeline",
    "NoJava": "runtime.java",
    "PolymuxSource": "datasource.source",
    "Progress": "runtime.job_progress",
    "SparkStartError": "runtime.session",
    "checks": "runtime.doctor",
    "find_java": "runtime.java",
    "progress": "runtime.job_progress",
    "register": "datasource.source",
    "spark_session": "runtime.session",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
