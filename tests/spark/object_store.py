"""An S3 server on loopback (moto), behind a gate that can be shut, slowed down or made to fail."""

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import boto3  # type: ignore[import-untyped]  # it has no types of its own
from moto.server import ThreadedMotoServer

BUCKET = "captures"


class ObjectStore:
    """The store. `mode` is "open", "slow" or "failing"; `shut` refuses connections for good.

    `sent_bytes` counts what was sent of objects, `gets` the requests for them.
    """

    def __init__(self) -> None:
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        host, port = self._moto.get_host_and_port()
        self.mode = "open"
        self.sent_bytes = self.gets = 0
        self.slow_seconds = 0.2
        self.counting = threading.Lock()
        store = self

        class Gate(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if store.mode == "failing":
                    body = b"<Error><Code>InternalError</Code></Error>"
                    self.send_response(500)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body if self.command != "HEAD" else b"")
                    return
                if store.mode == "slow":
                    time.sleep(store.slow_seconds)
                behind = http.client.HTTPConnection(host, port)
                behind.request(self.command, self.path, headers=dict(self.headers))
                answer = behind.getresponse()
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                size = answer.getheader("Content-Length") or str(len(data))
                self.send_header("Content-Length", size)
                self.end_headers()
                if self.command == "GET" and "list-type" not in self.path:
                    with store.counting:  # before the reader has it, and may look
                        store.sent_bytes += len(data)
                        store.gets += 1
                self.wfile.write(data)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._gate = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
        self.port = self._gate.server_port
        threading.Thread(target=self._gate.serve_forever, args=(0.05,), daemon=True).start()
        self._client = boto3.client(
            "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
            aws_access_key_id="key", aws_secret_access_key="secret",
        )  # fmt: skip
        self._client.create_bucket(Bucket=BUCKET)

    def put(self, name: str, path: Path) -> None:
        self._client.put_object(Bucket=BUCKET, Key=name, Body=path.read_bytes())

    def remove(self, name: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=name)

    def url(self, name: str) -> str:
        query = f"endpoint_override={quote(f'127.0.0.1:{self.port}')}&scheme=http&region=us-east-1"
        return f"s3://key:secret@{BUCKET}/{name}?{query}"

    def shut(self) -> None:
        """Stop answering; connections are refused."""
        self._gate.shutdown()
        self._gate.server_close()

    def close(self) -> None:
        self.shut()
        self._moto.stop()
