"""Masters and settings of a Spark session, with the reason for each setting."""

import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polymux.core.errors import PolymuxError
from polymux.malloc import ARROW_POOL
from polymux.spark.runtime.host_memory import MIB, available_memory, parse_size
from polymux.text.units import size_text

LOOPBACK = "127.0.0.1"
MIN_HEAP_BYTES = 512 * MIB  # Spark itself refuses less than 450 MiB
NON_HEAP_BYTES = 300 * MIB  # classes, compiled code, threads and buffers of the driver

# Garbage collector and compiler for a Java that lives for seconds. C1 alone produces code that is 2
# to 3 times slower than that of C2: right for a driver that only schedules tasks, wrong for the
# executors of a cluster.
FAST_START_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
)
QUIET_OPTIONS = ("-Xlog:disable", "-Xlog:all=error:stderr")

# A failed task raises in Python with its complete trace; Spark would log two more copies. Spark
# applies the level of the gateway's logger to everything.
LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


@dataclass(frozen=True, slots=True)
class Master:
    """A Spark master: threads of this process's Java, local processes, or a cluster."""

    url: str
    kind: Literal["local", "local-cluster", "cluster"]

    @property
    def local(self) -> bool:
        """Whether driver and workers share one Java."""
        return self.kind == "local"

    @property
    def needs_full_spark_home(self) -> bool:
        """Whether the driver distributes files of its SPARK_HOME, such as its Python archives."""
        return self.kind == "cluster" and not self.url.startswith("spark://")

    @property
    def loopback(self) -> bool:
        """Whether only this machine connects to the driver."""
        hosts = [host for host, _ in self.addresses()]
        is_local = bool(hosts) and all(host in (LOOPBACK, "localhost") for host in hosts)
        return is_local or self.kind != "cluster"

    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each standalone master; empty for other kinds of cluster."""
        if not self.url.startswith("spark://"):
            return []
        pairs = [text.rpartition(":") for text in self.url[len("spark://") :].split(",")]
        return [(host.strip("[]"), int(port)) for host, _, port in pairs]


def parse_master(url: str) -> Master:
    """Parse a master URL.

    Raises:
        PolymuxError: Spark or polymux does not support it.
    """
    if re.fullmatch(r"local(\[(\*|[1-9]\d{0,4})(\s*,\s*\d{1,4})?\])?", url):
        return Master(url, "local")
    if re.fullmatch(r"local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]", url):
        return Master(url, "local-cluster")
    address = r"(\[[0-9a-fA-F:]+\]|[^\s,:/]+):\d{1,5}"
    if re.fullmatch(rf"spark://{address}(,{address})*", url) or re.fullmatch(
        r"yarn|k8s://\S+", url
    ):
        return Master(url, "cluster")
    if url.startswith("sc://"):
        raise PolymuxError(
            f"master {url}: this is a server of Spark Connect; give it as --remote, in Python as "
            "spark_session(remote=...), or give the address of the cluster's master"
        )
    raise PolymuxError(
        f"master {url!r} is not known; write local[*], local[2], spark://host:7077, yarn, "
        "k8s://https://host:port or local-cluster[workers,cores,megabytes]"
    )


def check_reachable(master: Master, timeout: float = 5.0) -> None:
    """Check that one of the standalone masters accepts connections; Spark would try for a minute.

    Raises:
        PolymuxError: None answers within `timeout` seconds each.
    """
    addresses = master.addresses()
    if not addresses:
        return
    reason = ""
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout).close()
        except (OSError, OverflowError) as failure:
            reason = str(failure)
        else:
            return
    raise PolymuxError(
        f"no Spark master answers at {master.url} ({reason}); check the address, and that the "
        "master is running"
    )


def check_memory(memory: str, free: int | None = None) -> None:
    """Check the heap of a driver; `free` is the available memory in bytes, measured if None.

    Raises:
        PolymuxError: It is too small for Spark or too large for the machine.
    """
    heap = parse_size(memory)
    if heap < MIN_HEAP_BYTES:
        raise PolymuxError(f"memory {memory} is too little for Spark: give 512m or more")
    free = available_memory() if free is None else free
    need = heap + NON_HEAP_BYTES
    if free is not None and free < need:
        fits = "" if free < MIN_HEAP_BYTES + NON_HEAP_BYTES else " or give less, for example 512m"
        raise PolymuxError(
            f"Spark with memory {memory} needs {size_text(need)}, but only {size_text(free)} "
            f"are free: close something{fits}"
        )


def session_settings(
    master: Master,
    *,
    memory: str,
    app_name: str,
    folder: Path,
    java_options: Sequence[str],
    conf: Mapping[str, str],
) -> dict[str, str]:
    """Return all settings of a new session. `conf` overrides them, and adds to the Java options.

    `folder` is the temporary folder of the session; the logging configuration is written there.

    Raises:
        PolymuxError: `conf` contains spark.master.
    """
    if "spark.master" in conf:
        raise PolymuxError("give the master as master=..., not as the setting spark.master")
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J)
    options = [*QUIET_OPTIONS, f"-Dlog4j2.configurationFile={log4j}", *java_options]
    settings = submitted_settings(master, app_name) | {
        "spark.master": master.url,
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.local:
        options = [*FAST_START_OPTIONS, *options]
        # By default Spark creates a folder `spark-warehouse` in the working directory.
        settings["spark.sql.warehouse.dir"] = (folder / "warehouse").as_uri()
        # The driver's ports are on the loopback interface, where other users could connect. Spark
        # makes the secret itself; a cluster has one of its own.
        settings["spark.authenticate"] = "true"
    if master.loopback:
        settings["spark.driver.host"] = LOOPBACK
        settings["spark.driver.bindAddress"] = LOOPBACK
    settings["spark.driver.extraJavaOptions"] = join_options(
        options, conf.get("spark.driver.extraJavaOptions", "")
    )
    return settings | {
        name: value for name, value in conf.items() if name != "spark.driver.extraJavaOptions"
    }


def submitted_settings(master: Master, app_name: str) -> dict[str, str]:
    """Return the settings that can still be chosen in a Java that another launcher has started."""
    settings = {
        "spark.app.name": app_name,
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.session.timeZone": "UTC",  # as in the tables
        "spark.python.worker.reuse": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }
    if not master.local:
        settings[f"spark.executorEnv.{ARROW_POOL[0]}"] = ARROW_POOL[1]
    return settings


def worker_python(master: Master, chosen: str | None) -> str:
    """Return the Python of the workers: this one or, on a cluster, the user's choice."""
    return sys.executable if master.local or not chosen else chosen


def join_options(options: Sequence[str], user_options: str) -> str:
    """Join Java options into one string, quoted for Spark's launcher."""
    return " ".join([*(_quoted(option) for option in options), user_options]).strip()


def _quoted(option: str) -> str:
    if not re.search(r"[\s\"'\\]", option):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
