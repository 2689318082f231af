"""The same sessions on uvloop."""

from __future__ import annotations

from pathlib import Path

from tests.loops import pass_on_uvloop

HERE = Path(__file__).parent
# Whatever is about a transport, its end, or who waits for it. The tests of the way past asyncio's
# transport, straight to its socket (test_socket_writer), have nothing to say here.
ABOUT_TRANSPORTS = [
    "test_sessions.py", "session/test_shutdown.py", "test_bad_input.py",
    "transports/test_process.py", "streams/test_asyncio_adapter.py",
    "transports/test_websocket.py", "session/test_preamble.py",
]  # fmt: skip


def test_all_that_is_said_of_transports_holds_on_uvloop() -> None:
    pass_on_uvloop((HERE / name for name in ABOUT_TRANSPORTS), "-n", "2", more_than=100)
