"""Start a Spark session that is up quickly, says little, and leaves nothing behind."""

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polymux.core.errors import MissingExtra, PolymuxError
from polymux.spark.runtime import class_data_sharing as classdata
from polymux.spark.runtime.java import Java, find_java
from polymux.spark.runtime.job_progress import Progress, interruptible, progress, quiet_interrupts
from polymux.spark.runtime.jvm_output import JvmOutput
from polymux.spark.runtime.package_shipping import pack, shipping_settings
from polymux.spark.runtime.settings import (
    ARROW_POOL,
    FAST_START_OPTIONS,
    LOOPBACK,
    Master,
    check_memory,
    check_reachable,
    parse_master,
    session_settings,
    worker_python,
)
from polymux.spark.runtime.spark_home import importable_environ, link_home, pyspark_home, spark_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["Progress", "SparkStartError", "progress", "spark_session"]

log = logging.getLogger("polymux.spark")

JVM_EXIT_SECONDS = 15.0  # for Java to end by itself; it takes a tenth of a second
JVM_ARCHIVE_EXIT_SECONDS = 240.0  # the same while it writes down its classes
_PARTITIONS = "spark.sql.shuffle.partitions"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_gateways_left_open: list[Any] = []  # gateways of sessions that failed
_start_lock = threading.Lock()  # the environment is changed for a moment


class SparkStartError(PolymuxError):
    """Spark did not start; the text is the reason as far as Java told it."""


@contextmanager
def spark_session(
    master: str = "local[*]",
    *,
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
    app_name: str = "polymux",
    ship: bool = True,
) -> Iterator["SparkSession"]:
    """A session on `master`, stopped with its Java when the block ends.

    If a session is active already it is used as it is and left running, whatever is asked for
    here. `memory` is the heap of the driver. `conf` goes over every setting chosen here, and
    adds to Java options, archives and PYTHONPATH. For a cluster the installed polymux is packed
    and sent to the workers unless `ship` is false.

    Raises before anything is started: `MissingExtra` without PySpark, `NoJava`, and
    `PolymuxError` for a master that is not known or does not answer and for too little memory.
    After an exception in the block the session is stopped all the same. Objects of one session
    (DataFrames, UDFs) cannot be used in the next: it has another Java.
    """
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
    where = parse_master(master)
    own = {} if conf is None else dict(conf)
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
                # PySpark's exceptions ask Java for their text, so it must outlive them. It ends
                # with this process, or when the next session starts.
                _gateways_left_open.append(gateway)
            elif gateway is not None:
                recording = "-XX:ArchiveClassesAtExit" in settings[_JAVA_OPTIONS]
                _end_java(gateway, JVM_ARCHIVE_EXIT_SECONDS if recording else JVM_EXIT_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if where.local and gateway is not None:
        classdata.create_archive_in_background(java)


def _start(
    master: Master, java: Java, home: Path, settings: dict[str, str]
) -> tuple["SparkContext", "Any | None"]:
    """Launch Java and make the context. The gateway is None if a Java was running already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    sigint = signal.getsignal(signal.SIGINT)
    with quiet_interrupts(), _start_lock, _patched_environ(_java_environ(master, java, home)):
        while _gateways_left_open:
            _end_java(_gateways_left_open.pop(), JVM_EXIT_SECONDS)
        # Not before: it lives in the Java of the moment.
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        if SparkContext._gateway is not None:
            return SparkContext(conf=conf), None
        output = JvmOutput()
        gateway = None
        try:
            with output.descriptor() as out:
                streams = {"stdout": out, "stderr": out}
                gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call] # theirs
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
                gateway.proc.kill()  # asked to end while it starts, it would log what that breaks
                _end_java(gateway, JVM_EXIT_SECONDS)
            raise
        finally:
            # The context takes over Ctrl-C for good, with a handler that asks Java over the very
            # connection it has interrupted.
            if threading.current_thread() is threading.main_thread() and sigint is not None:
                signal.signal(signal.SIGINT, sigint)
    return context, gateway


def _home(master: Master, folder: Path) -> Path:
    """The SPARK_HOME of the driver."""
    if master.kind == "local-cluster":
        # Its workers write to it, and otherwise that is where PySpark is installed.
        return link_home(pyspark_home(), folder / "home")
    return pyspark_home() if master.needs_full_spark_home else spark_home()


def _java_environ(master: Master, java: Java, home: Path) -> dict[str, str]:
    """The environment Java starts in, and hands on to the workers of a local session."""
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
    """Have these variables for a while, then put back what was there of them."""
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
    """Stop the session. If its Java has died there is nobody to tell, and nothing is said."""
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
    """End the Java behind `gateway`, by force if it takes longer than that."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] = gateway.proc
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()  # its sign to leave
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
