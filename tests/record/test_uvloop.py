"""The same recording on uvloop."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.loops import pass_on_uvloop

HERE = Path(__file__).parent
# What a proxy or a recorder does with connections. The other tests are about files, or about the
# commands, which run on asyncio's own loop.
ABOUT_CONNECTIONS = [
    "test_proxy.py", "test_early_dialers.py", "test_encapsulations.py", "test_session_recorder.py",
    "test_tls_contexts.py::test_an_upstream_that_cannot_be_verified_gets_nothing",
    "test_tls_contexts.py::test_client_certificates_are_asked_for_and_shown",
]  # fmt: skip


@pytest.mark.timeout(300)
def test_proxied_connections_behave_alike_on_uvloop() -> None:
    pass_on_uvloop((HERE / name for name in ABOUT_CONNECTIONS), more_than=30)
