"""A recording that is still being written: one file, or the files of a rotation in their order.

A recorder writes `NAME.part` and publishes it as `NAME`; the open file stays the same one. Files of
a rotation are read as if they were one capture: a pcapng file may have several sections, and of a
following pcap file the header is left out.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from polymux.capture.io.atomic_write import PART_SUFFIX, names_file
from polymux.capture.io.paths import is_url
from polymux.capture.io.pipes import CHUNK_BYTES, CapturePipe
from polymux.core.errors import CaptureError

_NUMBERED: Final = re.compile(r"(.*)-(\d+)(\.[^.]+(?:\.(?:gz|zst|xz))?)$")
_SUFFIXES: Final = (".pcapng", ".pcap", ".cap", ".gz", ".zst", ".xz")
_PCAP_MAGICS: Final = (
    b"\xa1\xb2\xc3\xd4", b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1",
)  # fmt: skip
_PCAP_HEADER_BYTES: Final = 24
# A file that its recorder did not publish is left for the next one after this many seconds.
ABANDONED_SECONDS: Final = 2.0

ListFiles = Callable[[], list[str]]


class GrowingCapture(CapturePipe):
    """Reads a recording while it is written. `read` never waits.

    `read` returns None while there is nothing new, and b"" at the end of a recording: once its only
    file was published. The end of a rotation, and of a file that never was a `.part`, is not known.
    The file of a rotation that was published and read is closed, and opened again if it grows.

    Args:
        path: what to call the recording.
        files: returns the names of its files so far, in their order, published or not.
        rotates: further files may follow.
    """

    def __init__(self, path: str, files: ListFiles, rotates: bool) -> None:
        super().__init__(path, -1)
        self.total_bytes = 0
        """Bytes read, of all files."""
        self.size_bytes = 0
        """Size of the files seen so far."""
        self.is_recording = False
        """Whether a recorder has the current file open, as far as its name shows."""
        self._file = -1
        # Device and inode of the current file while it is closed, but may still grow.
        self._closed_file: tuple[int, int] | None = None
        self._was_part = False
        self._list = files
        self._rotates = rotates
        self._published_name = ""
        self._position = 0
        self._done: set[str] = set()
        self._idle_since = 0.0
        self._first_file = True
        self._at_start = True

    def close(self) -> None:
        """Close the current file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read_raw(self) -> bytes | None:
        """The next bytes as they are stored; see `read`."""
        while True:
            if self._file < 0 and not self._open_again() and not self._open_next():
                return None
            try:
                data = os.read(self._file, CHUNK_BYTES)
            except OSError as failure:
                raise CaptureError(f"cannot be read: {failure.strerror}", self.path) from None
            if data:
                self._idle_since = 0.0
                self._position += len(data)
                self.total_bytes += len(data)
                if not self._at_start or self._first_file:
                    self._at_start = False
                    return data
                self._at_start = False
                if data[:4] in _PCAP_MAGICS:
                    data = data[_PCAP_HEADER_BYTES:]
                if data:
                    return data
                continue
            size = os.fstat(self._file).st_size
            if size < self._position:
                raise CaptureError("became shorter while it was read", self.path, size)
            if not self._at_end_of_file():
                if self._rotates and not self.is_recording and self._is_read_up():
                    status = os.fstat(self._file)
                    self._closed_file = (status.st_dev, status.st_ino)
                    self.close()
                return None
            self.close()
            if not self._rotates:
                return b""

    def _at_end_of_file(self) -> bool:
        """Whether the current file is complete, and another follows or none can follow."""
        self.is_recording = self.is_recording and not names_file(self._published_name, self._file)
        if not self._rotates:
            # The recorder may have written between our last read and its publishing.
            return self._was_part and not self.is_recording and self._is_read_up()
        if not self._unread_files():
            return False
        if not self.is_recording:
            return self._is_read_up()
        now = time.monotonic()
        self._idle_since = self._idle_since or now
        return now - self._idle_since >= ABANDONED_SECONDS

    def _is_read_up(self) -> bool:
        return os.fstat(self._file).st_size == self._position

    def _unread_files(self) -> list[str]:
        return [name for name in self._list() if name.removesuffix(PART_SUFFIX) not in self._done]

    def _open_again(self) -> bool:
        """Open the file that was closed when it was read up; False if it did not grow.

        A file that is gone, or another one by its name, did not grow.
        """
        if self._closed_file is None:
            return False
        try:
            status = os.stat(self._published_name)
            if (status.st_dev, status.st_ino) != self._closed_file:
                return False
            if status.st_size == self._position:
                return False
            fd = os.open(self._published_name, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError as failure:
            raise CaptureError(f"cannot be read: {failure.strerror}", self.path) from None
        os.lseek(fd, self._position, os.SEEK_SET)
        self._file = fd
        self._closed_file = None
        return True

    def _open_next(self) -> bool:
        """Open the next file of the recording; False if there is none yet."""
        for name in self._unread_files():
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
            except FileNotFoundError:
                continue  # published since it was listed: under its other name next time
            except OSError as failure:
                raise CaptureError(f"cannot be read: {failure.strerror}", name) from None
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise CaptureError("is not a regular file", name)
            self._file = fd
            self._closed_file = None
            self._first_file = not self._done
            self._at_start = True
            self._published_name = name.removesuffix(PART_SUFFIX)
            self._was_part = self.is_recording = name.endswith(PART_SUFFIX)
            self._done.add(self._published_name)
            self._position = 0
            self.size_bytes += os.fstat(fd).st_size
            return True
        return False


def growing_captures(path: str) -> list[GrowingCapture]:
    """The recordings at `path`: a file, its `.part`, the files of a rotation or of several.

    Raises:
        CaptureError: There is nothing to read.
    """
    if is_url(path):
        raise CaptureError("only local files can be watched while they are written", path)
    part = path + PART_SUFFIX
    if os.path.exists(path) or os.path.exists(part):
        return [GrowingCapture(path, lambda: [path if os.path.exists(path) else part], False)]
    if path.endswith(PART_SUFFIX) and os.path.exists(path.removesuffix(PART_SUFFIX)):
        return growing_captures(path.removesuffix(PART_SUFFIX))
    folder, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    # `NAME-p1` and so on are those of several processes, each a rotation.
    own = re.compile(re.escape(stem) + r"(?:-p\d+)?")
    captures = []
    for key in sorted(_recordings(folder)):
        if own.fullmatch(key[0]) and key[1] == extension:
            name = os.path.join(folder, key[0] + extension)
            captures.append(GrowingCapture(name, partial(_files_of, folder, key), True))
    if captures:
        return captures
    raise CaptureError("no such file, nor files of a rotation by this name", path)


def _files_of(folder: str, key: tuple[str, str]) -> list[str]:
    return _recordings(folder).get(key, [])


class CaptureFolder:
    """The recordings in a directory, which share one listing of it.

    Files with the same name but for their numbers are one recording.

    Raises:
        CaptureError: It cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: set[tuple[str, str]] = set()
        self._files = _recordings(path)

    def list_again(self) -> None:
        """Look which files there are now, for all recordings. CaptureError as for the class."""
        self._files = _recordings(self._path)

    def new_recordings(self) -> list[GrowingCapture]:
        """Those that were found since the last call."""
        made = []
        for key in sorted(self._files.keys() - self._known):
            self._known.add(key)
            name = os.path.join(self._path, key[0] + key[1])
            made.append(GrowingCapture(name, partial(self._files_of, key), True))
        return made

    def _files_of(self, key: tuple[str, str]) -> list[str]:
        return self._files.get(key, [])


def _recordings(folder: str) -> dict[tuple[str, str], list[str]]:
    """The captures in a directory by recording (stem, extension), each in its order.

    Of a file that is just being published, only its final name is listed.
    """
    found: dict[tuple[str, str], dict[tuple[int, str], str]] = {}
    try:
        names = os.listdir(folder or ".")
    except OSError as failure:
        raise CaptureError(f"cannot be read: {failure.strerror}", folder) from None
    for name in sorted(names):  # NAME before NAME.part
        final = name.removesuffix(PART_SUFFIX)
        if name.startswith(".") or not final.endswith(_SUFFIXES):
            continue
        numbered = _NUMBERED.match(final)
        stem, extension = os.path.splitext(final)
        key = (numbered[1], numbered[3]) if numbered else (stem, extension)
        place = (int(numbered[2]) if numbered else 0, final)
        found.setdefault(key, {}).setdefault(place, os.path.join(folder, name))
    return {key: [files[place] for place in sorted(files)] for key, files in found.items()}
