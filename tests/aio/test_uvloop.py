"""The tests of transports, on uvloop."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.loops import pass_on_uvloop

HERE = Path(__file__).parent
# Every test about a transport, its end, or calls that wait for it. Direct writes to the socket
# (test_socket_writer) exist only with asyncio's own transport.
ABOUT_TRANSPORTS = [
    "test_sessions.py", "session/test_shutdown.py", "test_bad_input.py",
    "transports/test_process.py", "streams/test_asyncio_adapter.py",
    "transports/test_websocket.py", "session/test_preamble.py",
]  # fmt: skip


@pytest.mark.timeout(300)
def test_the_tests_of_transports_pass_on_uvloop() -> None:
    pass_on_uvloop((HERE / name for name in ABOUT_TRANSPORTS), "-n", "2", more_than=100)
