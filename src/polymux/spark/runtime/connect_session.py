"""Sessions of Spark Connect: a client here, the driver in a server.

Nothing here needs Java, or the part of PySpark that reaches a driver through it: PySpark's package
`pyspark-client` is enough.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from polymux.core.errors import MissingExtra, PolymuxError
from polymux.spark.runtime.job_progress import interruptible
from polymux.spark.runtime.package_shipping import write_artifacts
from polymux.spark.runtime.session import SparkStartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PORT = 15002
CONNECT_SECONDS = 5.0
_MODULE = "pyspark.sql.connect.session"
_SETTINGS = {"spark.sql.session.timeZone": "UTC"}  # as in the tables


def active_session() -> SparkSession | None:
    """Return the client that this thread or program uses already, if any."""
    module = sys.modules.get(_MODULE)
    session: SparkSession | None = module.SparkSession.getActiveSession() if module else None
    return session


@contextmanager
def connect_session(url: str, *, conf: Mapping[str, str], ship: bool) -> Iterator[SparkSession]:
    """Start a session of its own on the server at `url`; see `session.spark_session`."""
    check_server(url)
    try:
        import pyspark.sql.connect.session  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("connect", "running on a server of Spark Connect") from None
    try:
        session = SparkSession.builder.remote(url).create()
        _configure(session, {**_SETTINGS, **conf})
    except PolymuxError:
        raise
    except Exception as failure:
        reason = next(iter(str(failure).strip().splitlines()), type(failure).__name__)
        raise SparkStartError(f"no session at {_without_parameters(url)}: {reason}") from None
    try:
        if ship:
            ship_to(session)
        with interruptible(session.interruptAll):
            yield session
    finally:
        with suppress(Exception):  # the server may be gone
            session.stop()


def ship_to(session: SparkSession) -> None:
    """Send polymux, as it is installed here, to the workers of a session of Spark Connect.

    The Python of the server and of its workers must have the version and the system of this one,
    with PySpark and pyarrow. What is sent is used by this session only.
    """
    with tempfile.TemporaryDirectory(prefix="polymux-artifacts-") as folder:
        archives, files = write_artifacts(Path(folder))
        session.addArtifacts(*(f"{path}#{path.stem}" for path in archives), archive=True)
        if files:
            session.addArtifacts(*map(str, files), file=True)


def check_server(url: str) -> None:
    """Check the address of a server, and that something answers there; PySpark would try for
    minutes.

    Raises:
        PolymuxError: It is no address of Spark Connect, or nothing answers.
    """
    shown = _without_parameters(url)
    try:
        parts = urlsplit(url.partition(";")[0])
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        host, port = None, 0
    if not url.startswith("sc://") or not host:
        raise PolymuxError(
            f"remote {shown!r} is not a server of Spark Connect; write sc://host:port"
        )
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as failure:
        raise PolymuxError(
            f"no Spark Connect server answers at {shown} ({failure}); check the address, and that "
            "the server is running"
        ) from None


def _configure(session: SparkSession, conf: Mapping[str, str]) -> None:
    for name, value in conf.items():
        try:
            session.conf.set(name, value)
        except Exception as refused:
            if "CANNOT_MODIFY" not in str(refused):
                raise
            raise PolymuxError(
                f"setting {name}: the server has to be started with it, a session cannot set it"
            ) from None


def _without_parameters(url: str) -> str:
    """Return the address without its parameters, of which one is a token."""
    return url.partition("/;")[0]
