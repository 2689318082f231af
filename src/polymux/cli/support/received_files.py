"""What a server received, as numbered files and a manifest. No name from the wire names a file."""

from __future__ import annotations

import hashlib
import json

from polymux.cli.support.stream_files import append_private, create_private_folder

MANIFEST = "manifest.jsonl"


class ReceivedFiles:
    """A directory of `stream-000001.bin` and so on; one line of the manifest for each."""

    def __init__(self, folder: str) -> None:
        self.folder = create_private_folder(folder)
        self.count = 0

    def create_file(self, peer: str, stream: str, name: str) -> ReceivedFile:
        """The file of the next stream."""
        self.count += 1
        return ReceivedFile(self, f"stream-{self.count:06d}.bin", peer, stream, name)

    def append(self, file: str, data: bytes) -> None:
        append_private(self.folder / file, data)


class ReceivedFile:
    """One stream. Closed between writes: there may be more streams than files can be open."""

    def __init__(self, files: ReceivedFiles, file: str, peer: str, stream: str, name: str) -> None:
        self.files = files
        self.file = file
        self.size = 0
        self._digest = hashlib.sha256()
        self._entry = {"file": file, "peer": peer, "stream": stream, "name": name}
        files.append(file, b"")

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._digest.update(data)
        self.files.append(self.file, data)

    def close(self, ending: str) -> None:
        """The stream is over: into the manifest."""
        row = {
            **self._entry,
            "ending": ending,
            "bytes": self.size,
            "sha256": self._digest.hexdigest(),
        }
        self.files.append(MANIFEST, json.dumps(row, ensure_ascii=True).encode() + b"\n")
