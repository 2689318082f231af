"""What a stream of the sink is called, so that a reader can tell attempts apart.

A task that is retried, or a micro-batch that is replayed, sends its rows again on other streams.
Each stream's name says whose it is; when all tasks of a job are done the driver says which of them
count, on a stream of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

DEFAULT_STREAM = "rows"  # the stream of rows that name none
COMMIT_STREAM = "polymux-commit"
PREFIXED, MESSAGES, RAW = "prefixed", "messages", "raw"
_KEYS = ("job", "epoch", "partition", "attempt", "task", "framing")


@dataclass(frozen=True, slots=True)
class StreamLabel:
    """`task` is unlike that of any other attempt. `rows` says how rows are told apart: each after
    its length (four bytes, the highest first), each a message, or not at all."""

    stream: str
    job: str
    epoch: int
    partition: int
    attempt: int
    task: str
    framing: str
    part: int = 1

    def __str__(self) -> str:
        said = {name: getattr(self, name) for name in _KEYS}
        if self.part > 1:
            said["part"] = self.part
        return f"{quote(self.stream, safe='/ :.,-_')}?{urlencode(said)}"

    @property
    def is_commit(self) -> bool:
        return self.stream == COMMIT_STREAM

    @classmethod
    def parse(cls, name: str) -> StreamLabel | None:
        """The label in a stream's name; None if it is not the sink's."""
        stream, mark, query = name.rpartition("?")
        if not mark:
            return None
        said = dict(parse_qsl(query))
        try:
            return cls(
                unquote(stream), said["job"], int(said["epoch"]), int(said["partition"]),
                int(said["attempt"]), said["task"], said["framing"], int(said.get("part", "1")),
            )  # fmt: skip
        except (KeyError, ValueError):
            return None


def commit_label(job: str, epoch: int, task: str) -> StreamLabel:
    return StreamLabel(COMMIT_STREAM, job, epoch, -1, 0, task, RAW)


def encode_commit(tasks: list[str]) -> bytes:
    """What the commit stream carries: the tasks whose rows count."""
    return json.dumps({"tasks": sorted(tasks)}).encode()


def decode_commit(data: bytes) -> list[str]:
    """The tasks of a commit; none if it is not whole."""
    try:
        said = json.loads(data)
        return [str(task) for task in said["tasks"]]
    except (ValueError, KeyError, TypeError):
        return []


def length_prefixed(row: bytes) -> bytes:
    return len(row).to_bytes(4, "big") + row
