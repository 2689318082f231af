"""Asking a process for its state: the client of `polymux.metrics.StateSocket`."""

from __future__ import annotations

import json
import socket
from typing import Any, Final

from polymux.aio import BadUrl, Unreachable
from polymux.live.errors import describe_os_error
from polymux.live.urls import parse_url
from polymux.metrics.state_socket import REQUEST, STATE_VERSION

TIMEOUT_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 << 20


class StateClient:
    """A connection to a state socket.

    Args:
        url: of a Unix socket.

    Raises:
        BadUrl: It is none.
        Unreachable: No process answers there.
    """

    def __init__(self, url: str) -> None:
        address = parse_url(url)
        if address.scheme != "unix":
            raise BadUrl(
                f"{url}: watch a process at the unix:// URL that it was given (record --top, "
                "collect --top, or polymux.metrics.StateSocket), or a capture by its name"
            )
        self.url = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_SECONDS)
        try:
            self._socket.connect(address.path)
        except OSError as problem:
            self._socket.close()
            raise Unreachable(f"{self.url}: {describe_os_error(problem)}") from None

    def close(self) -> None:
        self._socket.close()

    def request(self) -> dict[str, Any]:
        """Return the state of the process.

        Raises:
            Unreachable: It is gone, or does not answer, or not with a state, or with an error.
        """
        parts: list[bytes] = []
        size = 0
        try:
            self._socket.sendall(REQUEST + b"\n")
            while not parts or not parts[-1].endswith(b"\n"):
                part = self._socket.recv(1 << 18)
                size += len(part)
                if not part:
                    raise Unreachable(f"{self.url}: the process has closed the connection")
                if size > MAX_ANSWER_BYTES:
                    raise Unreachable(f"{self.url}: the answer is over {MAX_ANSWER_BYTES} bytes")
                parts.append(part)
        except OSError as problem:
            raise Unreachable(f"{self.url}: {describe_os_error(problem)}") from None
        try:
            state = json.loads(b"".join(parts))
        except ValueError:
            raise Unreachable(f"{self.url}: the answer is no state of a process") from None
        if not isinstance(state, dict) or not isinstance(state.get("polymux"), int):
            raise Unreachable(f"{self.url}: the answer is no state of a polymux process")
        if state["polymux"] > STATE_VERSION:
            raise Unreachable(
                f"{self.url}: the state has version {state['polymux']}, this polymux reads up to "
                f"{STATE_VERSION}; install a later one"
            )
        if "error" in state:
            raise Unreachable(f"{self.url}: {state['error']}")
        return state
