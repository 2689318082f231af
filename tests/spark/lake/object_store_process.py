"""An S3 server (moto) in a process of its own.

`deltalake` waits for some answers without letting other threads of its process run, so that a
server in the same process could never answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import boto3  # type: ignore[import-untyped]  # it has no types of its own
from botocore.config import Config  # type: ignore[import-untyped]  # nor has this
from tests.ports import free_port

BUCKET = "captures"


class ObjectStoreProcess:
    """The server; `lake` gives URLs below its bucket."""

    def __init__(self, port: int) -> None:
        self._endpoint = f"127.0.0.1:{port}"

    def lake(self, name: str) -> str:
        query = f"endpoint_override={quote(self._endpoint)}&scheme=http&region=us-east-1"
        return f"s3://key:secret@{BUCKET}/{name}?{query}"

    def make_bucket(self) -> None:
        """Waits until the server answers."""
        client = boto3.client(
            "s3", endpoint_url=f"http://{self._endpoint}", region_name="us-east-1",
            aws_access_key_id="key", aws_secret_access_key="secret",
            config=Config(retries={"max_attempts": 30, "mode": "standard"}),
        )  # fmt: skip
        client.create_bucket(Bucket=BUCKET)


@contextmanager
def object_store_process() -> Iterator[ObjectStoreProcess]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if b"Running on" in line:
                break
        store = ObjectStoreProcess(port)
        store.make_bucket()
        # Its log must be read, or it stops when the pipe is full.
        drain = subprocess.Popen(["cat"], stdin=server.stdout, stdout=subprocess.DEVNULL)
        try:
            yield store
        finally:
            drain.kill()
            drain.wait()
    finally:
        server.terminate()
        server.wait()
