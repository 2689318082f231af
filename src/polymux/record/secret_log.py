"""The secrets of TLS sessions that end in this process, for the recordings of them."""

from __future__ import annotations

import os
import ssl
import tempfile

from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import PcapngWriter

_READ_BYTES = 1 << 16


class SecretLog:
    """Collects the secrets that TLS contexts log, as lines of a key log.

    OpenSSL writes them to a file. It is created with mode 0600 and has no name any more when the
    first secret is written; `close` frees it.

    Args:
        contexts: Those of all connections whose secrets are wanted. They must not have a key log.
    """

    def __init__(self, *contexts: ssl.SSLContext) -> None:
        self._fd, path = tempfile.mkstemp(prefix="polymux-")
        try:
            for context in contexts:
                context.keylog_filename = path
        finally:
            os.unlink(path)
        self._read_offset = 0
        self._incomplete_line = b""

    def take(self) -> bytes:
        """Remove and return the complete lines since the last call."""
        data = self._incomplete_line
        while part := os.pread(self._fd, _READ_BYTES, self._read_offset):
            data += part
            self._read_offset += len(part)
        os.ftruncate(self._fd, 0)  # OpenSSL appends, in this thread
        self._read_offset = 0
        complete, _, self._incomplete_line = data.rpartition(b"\n")
        lines = [line for line in complete.splitlines() if not line.startswith(b"#")]
        return b"".join(line + b"\n" for line in lines)

    def write_to(self, sink: PcapngWriter | RotatingWriter) -> None:
        """Write the lines since the last call as a secrets block, if there are any.

        Called before the first data of a session, so that readers find its secrets before it.
        """
        lines = self.take()
        if lines:
            sink.secrets(lines)

    def close(self) -> None:
        """Free the file."""
        os.close(self._fd)
