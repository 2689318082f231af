"""Classic Spark sessions that start fast, log little, and leave no process or file behind.

A session owns its Java process: it is launched with a chosen Java, settings and environment, its
output goes to the logger `polymux.spark`, and it is ended with the session. PySpark keeps the
gateway and the active context in class attributes, some of them private; `_stop_context` and
`_end_java` reset these, so that another session can be started in the same process.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polymux.core.errors import MissingExtra, PolymuxError
from polymux.malloc import ARROW_POOL
from polymux.spark.runtime import class_data_sharing as classdata
from polymux.spark.runtime.java import Java, find_java
from polymux.spark.runtime.job_progress import interruptible, quiet_interrupts
from polymux.spark.runtime.jvm_output import JvmOutput
from polymux.spark.runtime.package_shipping import pack, shipping_settings
from polymux.spark.runtime.session import DEFAULT_MASTER, SparkStartError
from polymux.spark.runtime.settings import (
    FAST_START_OPTIONS,
    LOOPBACK,
    Master,
    check_memory,
    check_reachable,
    parse_master,
    session_settings,
    submitted_settings,
    worker_python,
)
from polymux.spark.runtime.spark_home import importable_environ, link_home, pyspark_home, spark_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("polymux.spark")

LAUNCHER_PORT = "PYSPARK_GATEWAY_PORT"  # set by `spark-submit` for the program that it starts
JVM_EXIT_SECONDS = 15.0  # for Java to exit by itself; it takes about 0.1 s
JVM_ARCHIVE_EXIT_SECONDS = 240.0  # the same while it dumps a class archive
_PARTITIONS = "spark.sql.shuffle.partitions"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_gateways_left_open: list[Any] = []  # of sessions that ended with an exception
_start_lock = threading.Lock()  # starting changes `os.environ` temporarily


@contextmanager
def embedded_session(
    master: str,
    *,
    memory: str,
    conf: Mapping[str, str],
    app_name: str,
    ship: bool,
) -> Iterator["SparkSession"]:
    """Start a session whose driver is a Java process of this one; see `session.spark_session`."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("spark", "running on Spark") from None
    running = SparkContext._active_spark_context
    if running is not None:
        log.info("using the Spark session that is already running on %s", running.master)
        yield SparkSession.getActiveSession() or SparkSession(running)
        return
    if LAUNCHER_PORT in os.environ:
        with _submitted_session(master, conf, app_name, ship) as session:
            yield session
        return
    where = parse_master(master)
    own = dict(conf)
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if name in os.environ:
            raise PolymuxError(f"{name} is set, which makes PySpark a remote client: unset it")
    java = find_java()
    check_memory(own.get("spark.driver.memory", memory))
    check_reachable(where)
    folder = Path(tempfile.mkdtemp(prefix="polymux-spark-"))
    try:
        home = _home(where, folder)
        options = classdata.java_options(java) if home == spark_home() else []
        if ship and not where.local:
            pack(folder / "polymux.zip")
            own |= shipping_settings(folder / "polymux.zip", own)
        settings = session_settings(
            where,
            memory=memory,
            app_name=app_name,
            folder=folder,
            java_options=options,
            conf=own,
        )
        context, gateway = _start(where, java, home, settings)
        failed = False
        try:
            with quiet_interrupts(), interruptible(context.cancelAllJobs):
                session = SparkSession(context)
                if where.local and _PARTITIONS not in own:
                    session.conf.set(_PARTITIONS, str(2 * context.defaultParallelism))
                yield session
        except Exception:
            failed = True
            raise
        finally:
            alive = gateway is None or gateway.proc.poll() is None
            _stop_context(context, alive)
            if gateway is not None and failed and alive:
                # PySpark's exceptions fetch their text from Java, so it must outlive them. It is
                # ended when the next session starts, or with this process.
                _gateways_left_open.append(gateway)
            elif gateway is not None:
                dumping = "-XX:ArchiveClassesAtExit" in settings[_JAVA_OPTIONS]
                _end_java(gateway, JVM_ARCHIVE_EXIT_SECONDS if dumping else JVM_EXIT_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if where.local and gateway is not None:
        classdata.create_archive_in_background(java)


@contextmanager
def _submitted_session(
    master: str, conf: Mapping[str, str], app_name: str, ship: bool
) -> Iterator["SparkSession"]:
    """Start a session in the Java of `spark-submit`, which also ends it; see `spark_session`."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    with _start_lock:
        # Creates the connection to the launcher's Java, from which the settings are read.
        SparkContext._ensure_initialized()
        settings = SparkConf()
    given = settings.get("spark.master", DEFAULT_MASTER) or DEFAULT_MASTER
    if master not in (DEFAULT_MASTER, given):
        raise PolymuxError(
            f"spark-submit has chosen the master {given}, not {master}: leave --master to it"
        )
    where = parse_master(given)
    launcher = dict(settings.getAll())
    own = submitted_settings(where, app_name) | dict(conf) | launcher
    folder = Path(tempfile.mkdtemp(prefix="polymux-spark-"))
    try:
        if ship and not where.local:
            pack(folder / "polymux.zip")
            own |= shipping_settings(folder / "polymux.zip", own)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for name, value in own.items():
            settings.set(name, value)
        context = SparkContext(conf=settings)
        try:
            with quiet_interrupts(), interruptible(context.cancelAllJobs):
                yield SparkSession(context)
        finally:
            _stop_context(context, alive=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    master: Master, java: Java, home: Path, settings: dict[str, str]
) -> tuple["SparkContext", "Any | None"]:
    """Launch Java and create the context. The gateway is None if a Java was already running."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    sigint = signal.getsignal(signal.SIGINT)
    with quiet_interrupts(), _start_lock, _patched_environ(_java_environ(master, java, home)):
        while _gateways_left_open:
            _end_java(_gateways_left_open.pop(), JVM_EXIT_SECONDS)
        # Only now: a SparkConf belongs to the current Java.
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        if SparkContext._gateway is not None:
            return SparkContext(conf=conf), None
        output = JvmOutput()
        gateway = None
        try:
            with output.descriptor() as out:
                streams = {"stdout": out, "stderr": out}
                gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call] # PySpark's
            context = SparkContext(conf=conf, gateway=gateway)
        except Exception as failure:
            reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
            if gateway is None:
                reason = output.reason() or reason
            else:
                _end_java(gateway, JVM_EXIT_SECONDS)
            raise SparkStartError(f"Spark did not start with {java.text}: {reason}") from None
        except BaseException:  # Ctrl-C
            if gateway is not None:
                gateway.proc.kill()  # a regular exit during start-up would log errors
                _end_java(gateway, JVM_EXIT_SECONDS)
            raise
        finally:
            # SparkContext installs a SIGINT handler for good, which calls Java over the connection
            # that the signal has interrupted.
            if threading.current_thread() is threading.main_thread() and sigint is not None:
                signal.signal(signal.SIGINT, sigint)
    return context, gateway


def _home(master: Master, folder: Path) -> Path:
    """Return the SPARK_HOME of the driver."""
    if master.kind == "local-cluster":
        # Its workers write to SPARK_HOME, which must not be the installed package.
        return link_home(pyspark_home(), folder / "home")
    return pyspark_home() if master.needs_full_spark_home else spark_home()


def _java_environ(master: Master, java: Java, home: Path) -> dict[str, str]:
    """Return the environment of Java, which the workers of a local session inherit."""
    environ = {
        **importable_environ(),
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": worker_python(master, os.environ.get("PYSPARK_PYTHON")),
        "SPARK_LAUNCHER_OPTS": " ".join(FAST_START_OPTIONS),
        "SPARK_HOME": str(home),
    }
    if master.local:
        environ["PYSPARK_DRIVER_PYTHON"] = environ["PYSPARK_PYTHON"]
        environ.setdefault(*ARROW_POOL)
    if master.loopback:
        environ["SPARK_LOCAL_IP"] = LOOPBACK
    return environ


@contextmanager
def _patched_environ(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables during the block and restore them afterwards."""
    former = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _stop_context(context: "SparkContext", alive: bool) -> None:
    """Stop the session and reset PySpark's class attributes. `alive`: its Java still runs."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    if alive and session is not None:
        with suppress(Exception):
            session.stop()
    if alive:
        with suppress(Exception):
            context.stop()
    else:
        context._accumulatorServer.shutdown()
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SparkContext._active_spark_context = None


def _end_java(gateway: Any, seconds: float) -> None:
    """End the Java behind `gateway`; kill it if it does not exit within `seconds`."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] = gateway.proc
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()  # Java exits at the end of its input
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
