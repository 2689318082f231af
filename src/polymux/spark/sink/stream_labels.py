"""Names of the sink's streams, by which a reader distinguishes attempts.

A retried task or a replayed micro-batch sends its rows again on other streams. The name of each
stream identifies the attempt. When all tasks of a job have succeeded, the driver sends a commit,
the list of the attempts that count, on a stream of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

DEFAULT_STREAM = "rows"  # for rows without a value in the column `stream`
COMMIT_STREAM = "polymux-commit"
PREFIXED, MESSAGES, RAW = "prefixed", "messages", "raw"
_KEYS = ("job", "epoch", "partition", "attempt", "task", "framing")


@dataclass(frozen=True, slots=True)
class StreamLabel:
    """The name of one stream, written as `STREAM?job=...&epoch=...` and so on.

    `task` is unique to the attempt. `framing` is how rows are separated: PREFIXED, each after its
    length (four bytes, big-endian); MESSAGES, one message each; RAW, not at all. `part` counts the
    streams of one attempt with the same name.
    """

    stream: str
    job: str
    epoch: int
    partition: int
    attempt: int
    task: str
    framing: str
    part: int = 1

    def __str__(self) -> str:
        values = {name: getattr(self, name) for name in _KEYS}
        if self.part > 1:
            values["part"] = self.part
        return f"{quote(self.stream, safe='/ :.,-_')}?{urlencode(values)}"

    @property
    def is_commit(self) -> bool:
        return self.stream == COMMIT_STREAM

    @classmethod
    def parse(cls, name: str) -> StreamLabel | None:
        """Parse the name of a stream; return None if it is not one of a sink."""
        stream, mark, query = name.rpartition("?")
        if not mark:
            return None
        values = dict(parse_qsl(query))
        try:
            return cls(
                unquote(stream),
                values["job"],
                int(values["epoch"]),
                int(values["partition"]),
                int(values["attempt"]),
                values["task"],
                values["framing"],
                int(values.get("part", "1")),
            )
        except (KeyError, ValueError):
            return None


def commit_label(job: str, epoch: int, task: str) -> StreamLabel:
    return StreamLabel(COMMIT_STREAM, job, epoch, -1, 0, task, RAW)


def encode_commit(tasks: list[str]) -> bytes:
    """Encode the content of a commit stream: the tasks whose rows count."""
    return json.dumps({"tasks": sorted(tasks)}).encode()


def decode_commit(data: bytes) -> list[str]:
    """Decode the tasks of a commit; empty if it is incomplete or malformed."""
    try:
        return [str(task) for task in json.loads(data)["tasks"]]
    except (ValueError, KeyError, TypeError):
        return []


def length_prefixed(row: bytes) -> bytes:
    return len(row).to_bytes(4, "big") + row
