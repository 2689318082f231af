"""Spark sessions of either kind: with a driver in this process, or of Spark Connect."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from polymux.core.errors import MissingExtra, PolymuxError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DEFAULT_MASTER", "SparkStartError", "spark_session"]

DEFAULT_MASTER = "local[*]"
REMOTE_VARIABLE = "SPARK_REMOTE"  # by which PySpark itself chooses a server


class SparkStartError(PolymuxError):
    """Spark did not start; the message has the reason from Java's output or from the server."""


@contextmanager
def spark_session(
    master: str = DEFAULT_MASTER,
    *,
    remote: str = "",
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
    app_name: str = "polymux",
    ship: bool = True,
) -> Iterator["SparkSession"]:
    """Start a session on `master`, or on the server `remote`; stop it when the block ends.

    A session on a master has a driver of its own, a Java that is started and ended with it. A
    session on a server of Spark Connect needs no Java here.

    If a session is already active, it is used as it is and left running, and all arguments but
    `remote` are ignored. In a program that was started by `spark-submit`, the session has the
    master and the settings of the launcher; `conf` adds what the launcher does not set. Objects of
    one session (DataFrames, UDFs) cannot be used in the next. After a local session ends, a class
    archive may be created in the background; see `class_data_sharing`.

    Args:
        master: local[*], local[2], spark://host:7077, yarn, k8s://https://host:port or
            local-cluster[workers,cores,megabytes].
        remote: The server, as sc://host:15002, with the parameters that Spark Connect knows:
            sc://host:443/;use_ssl=true;token=... The variable SPARK_REMOTE if neither is given.
        memory: Heap of the driver, such as 512m or 2g.
        conf: Spark settings. They override those chosen here, except Java options, archives and
            PYTHONPATH, which are combined. A server takes settings of SQL only.
        app_name: The name of the application.
        ship: For a cluster or a server: whether to send the installed polymux to the workers.

    Raises:
        MissingExtra: PySpark is not installed, or not what Spark Connect needs of it.
        NoJava: There is no Java that Spark supports.
        SparkStartError: Java or Spark failed to start, or the server refused the session.
        PolymuxError: The master or the server is unknown or does not answer, or memory is
            insufficient. Raised, like the first two, before anything is started.
    """
    if remote and master != DEFAULT_MASTER:
        raise PolymuxError(f"remote {remote} and master {master}: give one of them")
    given = dict(conf or {})
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise MissingExtra("spark", "running on Spark") from None
    # By name: one kind of session does not import what the other needs.
    if not remote and master == DEFAULT_MASTER:
        remote = os.environ.get(REMOTE_VARIABLE, "")
    client = import_module("polymux.spark.runtime.connect_session")
    running = None if remote else client.active_session()
    if running is not None:
        yield running
        return
    if remote:
        with client.connect_session(remote, conf=given, ship=ship) as session:
            yield session
        return
    embedded = import_module("polymux.spark.runtime.embedded_session")
    with embedded.embedded_session(
        master, memory=memory, conf=given, app_name=app_name, ship=ship
    ) as session:
        yield session
