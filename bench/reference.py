"""The C reference: built in a temporary folder by the benchmark, called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "reference.c"
ROWS = 16384


class NoCompiler(Exception):
    """The reference cannot be built; the message gives the reason."""


class Reference:
    """The library. `loop` returns a new connection."""

    def __init__(self) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise NoCompiler("no C compiler was found, so there is no C floor")
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "reference.so"
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise NoCompiler(f"the C reference was not compiled: {done.stderr.strip()}")
            self.library = ctypes.CDLL(str(library))
        word = ctypes.c_int64
        self.library.loop_new.argtypes = [word, word]
        self.library.loop_new.restype = ctypes.c_void_p
        self.library.loop_free.argtypes = [ctypes.c_void_p]
        self.library.loop_counts.argtypes = [ctypes.c_void_p] * 3
        for name in ("mplex_feed", "nerdbank_feed"):
            feed = getattr(self.library, name)
            feed.argtypes = [ctypes.c_void_p, word, ctypes.c_char_p, word, word]
            feed.restype = word
        self.library.chain_new.argtypes = [word]
        self.library.chain_new.restype = ctypes.c_void_p
        for name in ("mplex_chain", "nerdbank_chain", "streamux_chain"):
            chain = getattr(self.library, name)
            chain.argtypes = [ctypes.c_void_p, word, ctypes.c_char_p, word]
            chain.restype = word
        self.columns = self.library.chain_new(ROWS)

    def chain(self, protocol: str, data: bytes) -> int:
        """Decode the dialer's headers in `data` into columns. Return their number."""
        return int(getattr(self.library, f"{protocol}_chain")(self.columns, 0, data, len(data)))

    def loop(self, protocol: str, findings: int) -> Loop:
        return Loop(self.library, protocol, findings)


class Loop:
    """One connection in C."""

    def __init__(self, library: ctypes.CDLL, protocol: str, findings: int) -> None:
        self.library = library
        self.feed_function = getattr(library, f"{protocol}_feed")
        self.state = library.loop_new(ROWS, findings)

    def feed(self, side: int, data: bytes, at: int) -> None:
        """Feed the next bytes of one side, which must end with a complete frame."""
        read = self.feed_function(self.state, side, data, len(data), at)
        if read != len(data):
            raise ValueError(f"the C reference stopped at byte {read} of {len(data)}")

    def counts(self) -> tuple[list[int], list[int]]:
        """Counts of violations by rule, and of rows that are clean, crossed and in violation."""
        rules = (ctypes.c_int64 * 64)()
        verdicts = (ctypes.c_int64 * 3)()
        self.library.loop_counts(self.state, rules, verdicts)
        return list(rules), list(verdicts)

    def close(self) -> None:
        self.library.loop_free(self.state)
        self.state = None
