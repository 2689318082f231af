"""Putting finished tables in place: all of them at once, or none."""

from __future__ import annotations

import ctypes
import os
import shutil
import uuid
from pathlib import Path

from ..core.errors import PolymuxError

STAGING = ".polymux-staging-"
EXCHANGE = 2  # renameat2's flag: swap two names in one step
AT_HERE = -100


class Output:
    """A directory of tables being written beside the one it will replace.

    Workers write under `staging`; `publish` swaps it in. A run that fails or is killed leaves the
    old output untouched, and its leftovers are removed by the next run.
    """

    def __init__(self, out: str) -> None:
        self.final = Path(out).absolute()
        if self.final.exists() and not self.final.is_dir():
            raise PolymuxError(f"{out}: is a file; --out names a directory")
        if self.final.is_dir() and any(self.final.iterdir()) and not self.is_ours(self.final):
            raise PolymuxError(f"{out}: holds something other than polymux tables; choose another")
        try:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            self.staging = self.final.parent / f"{STAGING}{self.final.name}-{uuid.uuid4().hex}"
            self.clear_leftovers()
            self.staging.mkdir()
        except OSError as problem:
            raise PolymuxError(f"{out}: cannot be written: {problem.strerror}") from None

    @staticmethod
    def is_ours(folder: Path) -> bool:
        return (folder / "sessions").is_dir()

    def clear_leftovers(self) -> None:
        for path in self.final.parent.glob(f"{STAGING}{self.final.name}-*"):
            shutil.rmtree(path, ignore_errors=True)

    def keep_only(self, files: set[str]) -> None:
        """Remove what attempts that did not win have written. `files` are relative to staging."""
        for path in self.staging.rglob("*.parquet"):
            if str(path.relative_to(self.staging)) not in files:
                path.unlink()

    def publish(self) -> None:
        """Swap the finished tables in."""
        if not self.final.exists():
            os.rename(self.staging, self.final)
        elif not exchange(self.staging, self.final):
            old = self.staging.with_name(self.staging.name + "-old")
            os.rename(self.final, old)
            os.rename(self.staging, self.final)
            shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(self.staging, ignore_errors=True)

    def abandon(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step where the system can (Linux)."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        rename = library.renameat2
    except (OSError, AttributeError):
        return False
    done = rename(AT_HERE, os.fsencode(one), AT_HERE, os.fsencode(other), EXCHANGE)
    return bool(done == 0)
