"""The thin edge to Apache Spark: finding Java, starting a session, checking an installation.

Imports `analysis` and what lies below it; only `cli` and `report` import this. PySpark itself is
imported when a session is asked for, so this package loads without it. The names below are
looked up on first use for the same reason.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polymux.spark.doctor import Check, checks
    from polymux.spark.java import Java, NoJava, find_java
    from polymux.spark.jobs import Progress, progress
    from polymux.spark.pipeline import Analysis, analyze
    from polymux.spark.session import SparkStartError, spark_session
    from polymux.spark.source import PolymuxSource, register

__all__ = [
    "Analysis",
    "Check",
    "Java",
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

_HOMES = {
    "Analysis": "pipeline",
    "analyze": "pipeline",
    "Check": "doctor",
    "Java": "java",
    "NoJava": "java",
    "PolymuxSource": "source",
    "Progress": "jobs",
    "SparkStartError": "session",
    "checks": "doctor",
    "find_java": "java",
    "progress": "jobs",
    "register": "source",
    "spark_session": "session",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
