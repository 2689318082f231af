"""Class data sharing (CDS): an archive of Spark's loaded classes, so that Java starts faster.

Half of the time of a small Spark job is spent in Java loading, verifying and laying out some 14,000
classes. Java can dump the result to an archive and map it in later processes. Creating the archive
takes a training session, which runs one job of each kind (`cds_training`), plus some ten seconds
for the dump: about 25 s and 160 MB in the per-user cache. It is created once per Java and PySpark,
and only on request: by `polymux doctor --class-archive`, or with `POLYMUX_CLASS_DATA=on`.

Java verifies that the archive matches its classes and otherwise ignores it: the archive can make a
session faster, never wrong. It does not verify the archive's content, which is code: so an archive
is used only if no other user can have written it (`usable_file`).

The environment variable `POLYMUX_CLASS_DATA` controls it: `use`, the default, uses an existing
archive, `off` does not, and with `on` a background process of the lowest priority creates it when a
first local session ends. One line then says so and how to turn it off: on standard error if that is
a terminal, otherwise only in the log (`polymux.spark`, level info).
"""

import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from polymux.spark.runtime.java import Java, find_java
from polymux.spark.runtime.spark_home import importable_environ, spark_home
from polymux.spark.runtime.user_cache import cache_folder, make_once, usable_file, usable_folder

log = logging.getLogger("polymux.spark")

MAX_ARCHIVES = 4  # most archives kept in the cache, of about 160 MB each
TRAINING_TIMEOUT_SECONDS = 300.0  # training takes about 25 s on a busy laptop
RETRY_SECONDS = 7 * 86400.0  # after a failure, training is not repeated for a week
NOTICE = (
    "creating an archive of Spark's classes in the background, once, so that later runs start "
    "faster; POLYMUX_CLASS_DATA=use turns this off"
)

# Referenced because Python warns when a running Popen object is collected.
_background_processes: list[subprocess.Popen[bytes]] = []


def is_enabled(*, make: bool = False) -> bool:
    """Whether `POLYMUX_CLASS_DATA` allows using an archive or, with `make`, creating one."""
    value = os.environ.get("POLYMUX_CLASS_DATA", "").lower() or "use"
    return value == "on" or (value == "use" and not make)


def archive_path(java: Java) -> Path:
    """Return the path of the archive for this Java and this interpreter's PySpark.

    Java rejects an archive when a jar was moved or changed, so the name depends on all jars.
    """
    home = spark_home()
    facts = [str(java.runtime), java.version, str(home), os.environ.get("SPARK_CONF_DIR", "")]
    for jar in sorted((home / "jars").glob("*.jar")):
        stat = jar.stat()
        facts.append(f"{jar.name} {stat.st_size} {stat.st_mtime_ns}")
    key = sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return cache_folder() / f"classes-{java.version}-{key}.jsa"


def java_options(java: Java) -> list[str]:
    """Return the Java options that use the archive; empty if there is none yet."""
    archive = archive_path(java)
    if not is_enabled() or ":" in str(archive):  # Java's separator
        return []
    if not usable_file(archive):
        if archive.exists():
            log.warning(
                "%s is not used: another user can have written it; remove it, and make its folder "
                "writable by its owner only",
                archive,
            )
        return []
    with suppress(OSError):  # `_remove_old_archives` goes by the last use
        os.utime(archive)
    base = _base_path(archive)
    files = f"{base}:{archive}" if usable_file(base) else str(archive)
    return ["-Xshare:auto", f"-XX:SharedArchiveFile={files}"]


def create_archive(java: Java, *, requested: bool = False) -> bool:
    """Create the archive unless it exists. Return whether it exists now.

    False means that another process is creating it, that the cache is not writable, or that
    training failed; the reason is then kept beside it (`failure_reason`), and training is not
    repeated for a week.

    Args:
        java: the Java that shall use it.
        requested: whatever `POLYMUX_CLASS_DATA` says, and although training has failed before.
    """
    archive = archive_path(java)
    if requested:
        with suppress(OSError):
            _failure_path(archive).unlink(missing_ok=True)
    elif not is_enabled(make=True) or _failed_recently(archive):
        return False
    try:
        made = make_once(archive, lambda part: train_archive(java, archive, part))
    except (OSError, subprocess.SubprocessError) as failure:
        log.info("the class archive could not be created: %s", failure)
        with suppress(OSError):
            _failure_path(archive).write_text(f"{failure}\n")
        return False
    _remove_old_archives(archive)
    return made


def create_archive_in_background(java: Java) -> None:
    """Start `create_archive` in a background process of low priority, if it is needed.

    Prints `NOTICE` once, when the process has started; see the module's documentation.
    """
    archive = archive_path(java)
    if not is_enabled(make=True) or archive.exists() or _failed_recently(archive):
        return
    if not usable_folder(archive.parent):
        return
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "polymux.spark.runtime.class_data_sharing"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # So that it finds the same Java, and creates the archive without a terminal.
            env={**importable_environ(), "POLYMUX_CLASS_DATA": "on"},
            start_new_session=True,
        )
    except OSError as failure:
        log.info("the class archive could not be created: %s", failure)
        return
    _background_processes.append(process)
    if sys.stderr is not None and sys.stderr.isatty():
        print(NOTICE, file=sys.stderr)
    else:
        log.info("%s (%s)", NOTICE, archive)


def train_archive(java: Java, archive: Path, part: Path) -> None:
    """Run the training session, whose Java dumps its classes to `part` when it ends.

    Raises:
        OSError: Training failed, or no archive was written.
        subprocess.SubprocessError: It took longer than `TRAINING_TIMEOUT_SECONDS`.
    """
    base = _base_path(archive)
    record = [f"-XX:ArchiveClassesAtExit={part}"]
    if not list((java.runtime / "lib" / "server").glob("classes*.jsa")):
        # The archive needs one of Java's own classes as its base, which this Java lacks.
        make_once(base, lambda file: dump_base_archive(java, file))
        record.append(f"-XX:SharedArchiveFile={base}")
    child = subprocess.Popen(
        [sys.executable, "-m", "polymux.spark.runtime.cds_training", *record],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={
            **importable_environ(),
            "JAVA_HOME": str(java.home),
            "POLYMUX_CLASS_DATA": "off",
        },
    )
    try:
        _, errors = child.communicate(timeout=TRAINING_TIMEOUT_SECONDS)
    except BaseException:
        child.kill()  # its Java ends at the end of its standard input
        child.wait()
        raise
    if child.returncode != 0 or not part.is_file():
        last = errors.strip().splitlines()[-1:] or ["nothing was written"]
        raise OSError(f"the training session ended with code {child.returncode}: {last[0]}")


def dump_base_archive(java: Java, file: Path) -> None:
    """Dump an archive of Java's own classes to `file`."""
    subprocess.run(
        [java.program, "-Xshare:dump", f"-XX:SharedArchiveFile={file}", "-XX:+UseSerialGC"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TRAINING_TIMEOUT_SECONDS,
        check=True,
    )


def failure_reason(java: Java) -> str:
    """Why the archive could not be created the last time; "" if that is not known."""
    try:
        return _failure_path(archive_path(java)).read_text().strip()
    except OSError:
        return ""


def _base_path(archive: Path) -> Path:
    return archive.with_suffix(".base")


def _failure_path(archive: Path) -> Path:
    return archive.with_suffix(".failed")


def _failed_recently(archive: Path) -> bool:
    try:
        return time.time() - _failure_path(archive).stat().st_mtime < RETRY_SECONDS
    except OSError:
        return False


def _remove_old_archives(archive: Path) -> None:
    """Remove the least recently used archives. A Java that has one mapped keeps its pages."""
    with suppress(OSError):
        files = sorted(archive.parent.glob("classes-*.jsa"), key=lambda file: file.stat().st_mtime)
        for old in files[:-MAX_ARCHIVES]:
            for file in archive.parent.glob(f"{old.stem}.*"):
                file.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(19)
    create_archive(find_java())
