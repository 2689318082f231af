"""Spark's loaded classes, kept in the per-user cache so that the next session starts sooner.

Half of the time a small Spark job takes is Java reading, checking and laying out some 14,000
classes. Java can keep the result in a file and map it. Making the file takes a rehearsal (a
session that runs one job of each kind) and some ten seconds more, so it is made once for a Java
and a PySpark, by a process of low priority that starts when the first session has ended.

Java itself checks that the file fits and does without it otherwise: it can make a session
faster, never wrong. `POLYMUX_CLASS_DATA=use` uses what is there but makes nothing, `off` does
neither.
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
from polymux.spark.runtime.user_cache import cache_folder, make_once, usable_folder

log = logging.getLogger("polymux.spark")

MAX_ARCHIVES = 4  # archives of some 160 MB; more than a few Javas or PySparks side by side are rare
TRAINING_TIMEOUT_SECONDS = 300.0  # some 25 s on a busy laptop
RETRY_SECONDS = 7 * 86400.0  # a rehearsal that failed is not tried again before

_background_processes: list[
    subprocess.Popen[bytes]
] = []  # held, as Python warns of one that is dropped


def is_enabled(*, make: bool = False) -> bool:
    """Whether an archive may be used, or even made."""
    said = os.environ.get("POLYMUX_CLASS_DATA", "on").lower()
    return said == "on" or (said == "use" and not make)


def archive_path(java: Java) -> Path:
    """Where the archive for this Java and the PySpark of this interpreter is, or would be.

    Java refuses an archive when a jar has moved or changed, so that is part of the name.
    """
    home = spark_home()
    told = [str(java.runtime), java.version, str(home), os.environ.get("SPARK_CONF_DIR", "")]
    for jar in sorted((home / "jars").glob("*.jar")):
        stat = jar.stat()
        told.append(f"{jar.name} {stat.st_size} {stat.st_mtime_ns}")
    key = sha256("\n".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return cache_folder() / f"classes-{java.version}-{key}.jsa"


def java_options(java: Java) -> list[str]:
    """The Java options that use the archive; none if there is no archive yet."""
    archive = archive_path(java)
    if not is_enabled() or not archive.is_file() or ":" in str(archive):  # Java splits there
        return []
    with suppress(OSError):  # the oldest by last use go first
        os.utime(archive)
    base = _base_path(archive)
    files = f"{base}:{archive}" if base.is_file() else str(archive)
    return ["-Xshare:auto", f"-XX:SharedArchiveFile={files}"]


def create_archive(java: Java) -> bool:
    """Rehearse and keep the archive, unless it is there; say whether it is there now.

    False means that another process is at it, that the cache cannot be written, or that the
    rehearsal failed (then the reason is kept beside it, and it is not tried again for a week).
    """
    archive = archive_path(java)
    if not is_enabled(make=True) or _failed_recently(archive):
        return False
    try:
        made = make_once(archive, lambda part: train_archive(java, archive, part))
    except (OSError, subprocess.SubprocessError) as failure:
        log.info("no class archive could be made: %s", failure)
        with suppress(OSError):
            _failure_path(archive).write_text(f"{failure}\n")
        return False
    _remove_old_archives(archive)
    return made


def create_archive_in_background(java: Java) -> None:
    """Start `prepare` in a process of its own, of low priority, and do not wait for it."""
    archive = archive_path(java)
    if not is_enabled(make=True) or archive.exists() or _failed_recently(archive):
        return
    if not usable_folder(archive.parent):
        return
    log.info("making %s once, in the background, so that Spark starts sooner", archive)
    with suppress(OSError):
        process = subprocess.Popen(
            [sys.executable, "-m", "polymux.spark.runtime.class_data_sharing"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=importable_environ(),  # in which it finds the same Java
            start_new_session=True,
        )
        _background_processes.append(process)


def train_archive(java: Java, archive: Path, part: Path) -> None:
    """Run a session that writes its classes to `part` as it ends."""
    base = _base_path(archive)
    record = [f"-XX:ArchiveClassesAtExit={part}"]
    if not list((java.runtime / "lib" / "server").glob("classes*.jsa")):
        # This Java came without an archive of its own classes, on which ours must stand.
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
        _, told = child.communicate(timeout=TRAINING_TIMEOUT_SECONDS)
    except BaseException:
        child.kill()  # its Java sees the end of its input and goes too
        child.wait()
        raise
    if child.returncode != 0 or not part.is_file():
        last = told.strip().splitlines()[-1:] or ["nothing was written"]
        raise OSError(f"the rehearsal ended with code {child.returncode}: {last[0]}")


def dump_base_archive(java: Java, file: Path) -> None:
    subprocess.run(
        [java.program, "-Xshare:dump", f"-XX:SharedArchiveFile={file}", "-XX:+UseSerialGC"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TRAINING_TIMEOUT_SECONDS,
        check=True,
    )


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
    """Remove the archives longest unused; a Java that has one mapped keeps it until it ends."""
    with suppress(OSError):
        found = sorted(archive.parent.glob("classes-*.jsa"), key=lambda file: file.stat().st_mtime)
        for old in found[:-MAX_ARCHIVES]:
            for file in archive.parent.glob(f"{old.stem}.*"):
                file.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(19)
    create_archive(find_java())
