"""Publishing finished tables atomically: all of them, or none."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from polymux.capture.io.remote import is_url, local_path
from polymux.core.errors import PolymuxError, UnwritableOutput

STAGING_PREFIX = ".polymux-staging-"
RENAME_EXCHANGE = 2  # renameat2's flag: swap two names in one step
AT_FDCWD = -100


class StagedOutput:
    """A directory of tables that is written beside the one it will replace.

    Workers write below `staging`; `collect_files` moves the files of successful attempts to
    `ready`, and `publish` swaps that into place. An attempt that Spark has abandoned may go on
    writing: its files stay in `staging`. A run that fails or is killed leaves the old output
    unchanged, and the next run removes its leftovers.

    Raises:
        PolymuxError: `out` cannot hold tables; see `check_output`.
        UnwritableOutput: The directories cannot be created.
    """

    def __init__(self, out: str) -> None:
        check_output(out)
        self.final = Path(local_path(out)).absolute()
        name = staging_name(self.final)
        self.staging = self.final.parent / name
        self.ready = self.final.parent / f"{name}-ready"
        try:
            self.clear_leftovers()
            self.staging.mkdir()
            self.ready.mkdir()
        except OSError as problem:
            raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None

    def clear_leftovers(self) -> None:
        """Remove the directories of earlier runs with the same output."""
        # Match the full name: the leftovers of `tables-new` also begin with `tables`.
        ours = re.compile(
            re.escape(STAGING_PREFIX + self.final.name) + "-[0-9a-f]{32}(-ready(-old)?)?"
        )
        for path in self.final.parent.iterdir():
            if ours.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def collect_files(self, files: Iterable[str]) -> None:
        """Move the files of successful attempts to `ready`; `files` are relative to `staging`.

        Raises:
            PolymuxError: A file is missing: another run removed it, or the workers use another
                file system.
        """
        if not self.ready.is_dir():
            raise PolymuxError(
                f"{self.final}: its files were removed during the run; do not run two at once "
                "with the same --out"
            )
        for file in files:
            target = self.ready / file
            target.parent.mkdir(exist_ok=True)
            try:
                os.rename(self.staging / file, target)
            except FileNotFoundError:
                raise PolymuxError(
                    f"{self.staging / file}: a worker wrote it, but it is not here: --out must be "
                    "on a file system that the driver and all workers share"
                ) from None

    def publish(self) -> None:
        """Put the finished tables into place and remove the former ones."""
        if not self.final.exists():
            os.rename(self.ready, self.final)
        elif not atomic_swap(self.ready, self.final):
            old = self.ready.with_name(self.ready.name + "-old")
            os.rename(self.final, old)
            os.rename(self.ready, self.final)
            shutil.rmtree(old, ignore_errors=True)
        self.discard()

    def discard(self) -> None:
        """Remove everything that was written."""
        shutil.rmtree(self.staging, ignore_errors=True)
        shutil.rmtree(self.ready, ignore_errors=True)


def check_output(out: str) -> None:
    """Check that tables can be written to `out`. Creates its parent directories.

    Raises:
        PolymuxError: `out` is a URL, a file, or a directory that contains something else.
        UnwritableOutput: Its parent directory is not writable.
    """
    final = Path(local_path(out)).absolute()
    if is_url(local_path(out)):
        raise PolymuxError(
            f"{out}: tables are written to a directory that the driver and all workers see; "
            "copy them elsewhere when they are finished"
        )
    if final.exists() and not final.is_dir():
        raise PolymuxError(f"{out}: is a file; --out names a directory")
    try:
        if final.is_dir() and any(final.iterdir()) and not (final / "sessions").is_dir():
            raise PolymuxError(f"{out}: holds something other than polymux tables; choose another")
        final.parent.mkdir(parents=True, exist_ok=True)
        probe = final.parent / staging_name(final)
        probe.mkdir()
        with suppress(FileNotFoundError):  # another run has removed it as a leftover
            probe.rmdir()
    except OSError as problem:
        raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None


def staging_name(final: Path) -> str:
    """Return a new name beside `final`, which `clear_leftovers` of a later run matches."""
    return f"{STAGING_PREFIX}{final.name}-{uuid.uuid4().hex}"


def atomic_swap(first: Path, second: Path) -> bool:
    """Exchange two directories atomically. Return False if the system cannot (only Linux can)."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        rename = library.renameat2
    except (OSError, AttributeError):
        return False
    done = rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return bool(done == 0)
