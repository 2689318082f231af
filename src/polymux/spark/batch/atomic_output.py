"""Putting finished tables in place: all of them at once, or none."""

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
    """A directory of tables being written beside the one it will replace.

    Workers write under `staging`; `gather` takes the files of the winning attempts out of it into
    `ready`, and `publish` swaps that in. A worker that was given up may go on writing: what it
    writes stays in `staging`. A run that fails or is killed leaves the old output untouched, and
    its leftovers are removed by the next run.
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
        # The whole name: that of an output `tables-new` begins like one of `tables`.
        ours = re.compile(
            re.escape(STAGING_PREFIX + self.final.name) + "-[0-9a-f]{32}(-ready(-old)?)?"
        )
        for path in self.final.parent.iterdir():
            if ours.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def collect_files(self, files: Iterable[str]) -> None:
        """Take what the attempts that won have written; `files` are relative to staging."""
        # Nothing was written there so far, so nothing made it anew either.
        if not self.ready.is_dir():
            raise PolymuxError(
                f"{self.final}: what was written for it was removed while the run went on; run no "
                "two at once with the same --out"
            )
        for file in files:
            target = self.ready / file
            target.parent.mkdir(exist_ok=True)
            try:
                os.rename(self.staging / file, target)
            except FileNotFoundError:
                raise PolymuxError(
                    f"{self.staging / file}: a worker wrote it, and here it is not: --out must be "
                    "on a file system that the driver and all workers share"
                ) from None

    def publish(self) -> None:
        """Swap the finished tables in."""
        if not self.final.exists():
            os.rename(self.ready, self.final)
        elif not atomic_swap(self.ready, self.final):
            old = self.ready.with_name(self.ready.name + "-old")
            os.rename(self.final, old)
            os.rename(self.ready, self.final)
            shutil.rmtree(old, ignore_errors=True)
        self.discard()

    def discard(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        shutil.rmtree(self.ready, ignore_errors=True)


def check_output(out: str) -> None:
    """Raise if tables cannot be written to `out`; makes its parent directories and nothing else."""
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
        with suppress(FileNotFoundError):  # another run has taken it for a leftover
            probe.rmdir()
    except OSError as problem:
        raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None


def staging_name(final: Path) -> str:
    """A new name beside `final`, which a later run of the same output knows again."""
    return f"{STAGING_PREFIX}{final.name}-{uuid.uuid4().hex}"


def atomic_swap(first: Path, second: Path) -> bool:
    """Swap two names in one step where the system can (Linux)."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        rename = library.renameat2
    except (OSError, AttributeError):
        return False
    done = rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return bool(done == 0)
