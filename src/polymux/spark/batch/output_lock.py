"""The lock of an output directory: one run writes to it at a time.

The lock is a file `_lock` that names its owner: run, host, process and start. The owner renews its
modification time every `RENEW_SECONDS`. A lock is left behind if its process has ended, which is
known on the same host, or if it was not renewed for `STALE_SECONDS`; the next run then takes it
over. Ages are measured by the clock of the file system, which hosts may not share.

The check that a lock is dead, its removal and the new lock are one step under a lock on the
directory, so that of two runs that find it dead one cannot remove the new lock of the other. Some
file systems refuse to lock a directory (NFS does). There a lock that was moved away is put back if
it is not the one that was found dead.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from polymux.capture.io.atomic_write import publish
from polymux.core.errors import PolymuxError, UnwritableOutput
from polymux.live.listener import directory_lock

LOCK_NAME = "_lock"
RENEW_SECONDS = 10.0
STALE_SECONDS = 300.0


class OutputBusy(PolymuxError):
    """Another run writes to the output directory; the text names it and what to do."""


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The process that holds a lock. `started` tells apart processes that had the same number."""

    run: str
    host: str
    pid: int
    started: str
    since: float  # seconds since the epoch, by the owner's clock

    @classmethod
    def this_process(cls, run: str) -> LockOwner:
        return cls(run, _host(), os.getpid(), _start_of(os.getpid()), time.time())

    def is_dead(self, silent_seconds: float) -> bool:
        """Whether the owner has ended; `silent_seconds` is how long the lock was not renewed."""
        if self.host != _host():
            return silent_seconds > STALE_SECONDS
        return not self.started or _start_of(self.pid) != self.started

    def text(self, silent_seconds: float) -> str:
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return (
            f"process {self.pid} on {self.host.partition('/')[0]}, since {begun}, last sign "
            f"{max(0.0, silent_seconds):.0f} s ago"
        )


@dataclass(frozen=True, slots=True)
class FoundLock:
    """The lock of a directory, as it was read.

    The owner is None if the file names none and is young: it is just being written.
    """

    content: bytes
    renewed: float  # modification time
    owner: LockOwner | None
    silent_seconds: float  # since it was renewed, by the clock of the file system


class OutputLock:
    """Holds the lock of an existing directory until `release`.

    Raises:
        OutputBusy: A run that is not dead holds it.
        UnwritableOutput: The directory cannot be written.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / LOCK_NAME
        self._content = json.dumps(asdict(LockOwner.this_process(run))).encode()
        self._released = threading.Event()
        try:
            with _one_at_a_time(folder):
                while not self._create():
                    dead = refuse_if_busy(folder)
                    if dead is not None:
                        self._remove(dead)
        except OSError as problem:
            raise UnwritableOutput(f"{folder}: cannot be written: {problem.strerror}") from None
        try:
            threading.Thread(target=self._renew, name="polymux-lock", daemon=True).start()
        except BaseException:
            self.release()
            raise

    def is_held(self) -> bool:
        """Whether the lock is still this one: another run may have taken it over."""
        try:
            return self._path.read_bytes() == self._content
        except OSError:
            return False

    def release(self) -> None:
        """Give the lock up; does nothing if another run has taken it over."""
        self._released.set()
        with _one_at_a_time(self._path.parent), suppress(OSError):
            if self.is_held():
                self._path.unlink()

    def _create(self) -> bool:
        """Create the lock with its content in one step; False if there is one."""
        part = self._path.with_name(f"{LOCK_NAME}-{uuid.uuid4().hex}")
        part.write_bytes(self._content)
        try:
            os.link(part, self._path)
            return True
        except FileExistsError:
            return False
        except OSError as problem:
            if problem.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            return self._create_without_link()
        finally:
            part.unlink(missing_ok=True)

    def _create_without_link(self) -> bool:
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(fd, "wb") as file:
            file.write(self._content)
        return True

    def _remove(self, dead: FoundLock) -> None:
        """Remove the lock that was found dead; one that has taken its place or was renewed stays.

        Only one of several runs moves it away. The lock of a live run, which can be moved where
        directories cannot be locked, is put back, unless a third run has taken its place: then its
        owner notices that it has lost the lock.
        """
        aside = self._path.with_name(f"{LOCK_NAME}-{uuid.uuid4().hex}")
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return
        try:
            if (aside.read_bytes(), aside.stat().st_mtime) != (dead.content, dead.renewed):
                with suppress(FileExistsError):
                    publish(str(aside), str(self._path))
        finally:
            aside.unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            if not self.is_held():
                return
            with suppress(OSError):
                os.utime(self._path)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock a directory for the block, if its file system can; see the head of this module."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(directory_lock(str(folder)))
        yield


def refuse_if_busy(folder: Path) -> FoundLock | None:
    """Raise OutputBusy if a run that is not dead holds the lock. Return the lock if a dead one
    does, None if there is no lock."""
    found = read_lock(folder)
    if found is None:
        return None
    owner, silent = found.owner, found.silent_seconds
    if owner is None or not owner.is_dead(silent):
        text = "a run that has just begun" if owner is None else owner.text(silent)
        raise OutputBusy(
            f"{folder}: another run writes there ({text}); wait until it has ended, or choose "
            f"another --out. If it is gone, remove {folder / LOCK_NAME}"
        )
    return found


def read_lock(folder: Path) -> FoundLock | None:
    """Read the lock of a directory; None if there is none."""
    path = folder / LOCK_NAME
    try:
        content, renewed = path.read_bytes(), path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    silent = _now_of(folder) - renewed
    owner: LockOwner | None
    try:
        owner = LockOwner(**json.loads(content))
    except (ValueError, TypeError):
        owner = None if silent < STALE_SECONDS else LockOwner("", "", 0, "", renewed)
    return FoundLock(content, renewed, owner, silent)


def _now_of(folder: Path) -> float:
    """Return the time by the clock of the file system."""
    probe = folder / f"{LOCK_NAME}-{uuid.uuid4().hex}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()  # a directory that cannot be written: only looked at
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _host() -> str:
    """Return a name for the processes that can see each other: the host name, the id of the boot,
    and the namespace of process numbers, which containers have of their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _start_of(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; "" if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        if Path("/proc/self/stat").exists():
            return ""
        try:  # a system without /proc
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            pass
        return "unknown"
    return "" if fields[0] == "Z" else fields[19]
