"""Copying a pcapng file without its secrets blocks, or with one more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from polymux.capture.io.paths import PRIVATE_FILE
from polymux.capture.io.sources import Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.capture.pcapng import blocks
from polymux.capture.pcapng.block_types import BYTE_ORDER_MAGIC, DECRYPTION_SECRETS, SECTION
from polymux.capture.pcapng.scanner import u32
from polymux.core.errors import CaptureError

_COPY_BYTES = 1 << 20
_HEAD_BYTES = 12  # type, length, and the byte-order magic of a section


def strip_secrets(path: str, out: str, limits: CaptureLimits | None = None) -> int:
    """Copy a pcapng file without its decryption secrets; return how many blocks were left out.

    Raises:
        CaptureError: The file cannot be read or is not pcapng, or `out` exists or cannot be
            written; then `out` has been removed.
    """
    return _copy(path, out, b"", limits or CaptureLimits())


def inject_secrets(
    path: str, key_log: bytes, out: str, limits: CaptureLimits | None = None
) -> None:
    """Copy a pcapng file with a secrets block after its first section header, before any packet.

    Raises:
        CaptureError: As for `strip_secrets`.
    """
    _copy(path, out, key_log, limits or CaptureLimits())


def _copy(path: str, out: str, key_log: bytes, limits: CaptureLimits) -> int:
    """Copy; without `key_log` secrets blocks are left out, otherwise it is added."""
    source = open_source(path, limits)
    try:
        try:
            fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        except FileExistsError:
            raise CaptureError("exists already; choose another name", out) from None
        except OSError as problem:
            raise CaptureError(f"cannot be written: {problem.strerror}", out) from None
        try:
            with os.fdopen(fd, "wb") as target:
                stripped = 0
                first = True
                start = end = 0  # of the bytes that are copied together
                for offset, kind, length, big in _blocks(source, limits):
                    if kind == DECRYPTION_SECRETS and not key_log:
                        stripped += 1
                        _copy_range(source, target.write, start, end)
                        start = end = offset + length
                        continue
                    end = offset + length
                    if first and key_log:
                        _copy_range(source, target.write, start, end)
                        target.write(blocks.secrets(key_log, big))
                        start = end
                    first = False
                _copy_range(source, target.write, start, end)
                target.flush()
                os.fsync(target.fileno())
            return stripped
        except OSError as problem:
            os.unlink(out)
            raise CaptureError(f"cannot be written: {problem.strerror}", out) from None
        except BaseException:
            os.unlink(out)
            raise
    finally:
        source.close()


def _blocks(source: Source, limits: CaptureLimits) -> Iterator[tuple[int, int, int, bool]]:
    """Offset, type, length and byte order of each block; an incomplete last one is left out.

    Raises:
        CaptureError: The file is not pcapng, or a block is invalid.
    """
    offset, big = 0, False
    data, base = b"", 0
    while True:
        if base + len(data) - offset < _HEAD_BYTES:
            data, base = source.window(offset, _COPY_BYTES), offset
            if len(data) < _HEAD_BYTES:
                if offset == 0:
                    raise CaptureError("not a pcapng file", source.path, 0)
                return
        at = offset - base
        kind = u32(data, at, big)
        if u32(data, at, True) == SECTION:
            kind, big = int(SECTION), u32(data, at + 8, True) == BYTE_ORDER_MAGIC
        elif offset == 0:
            raise CaptureError("not a pcapng file: only pcapng can hold secrets", source.path, 0)
        length = int(u32(data, at + 4, big))
        if length < 12 or length % 4 or length > limits.max_block_bytes:
            raise CaptureError(f"a block of {length} bytes is invalid", source.path, offset)
        if offset + length > base + len(data) and not source.window(offset + length - 1, 1):
            return
        yield offset, int(kind), length, big
        offset += length
        if offset > base + len(data):
            data, base = b"", offset


def _copy_range(source: Source, write: Callable[[bytes], int], start: int, end: int) -> None:
    while start < end:
        data = source.window(start, min(_COPY_BYTES, end - start))
        if not data:
            return
        write(data)
        start += len(data)
