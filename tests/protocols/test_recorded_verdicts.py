"""The reports on thousands of recorded conversations do not change unintentionally."""

from __future__ import annotations

import json

import pytest
from tests.protocols.recorded_verdicts import KINDS, KNOWN, PROTOCOLS, ROOT, digests

EVERY = json.loads(KNOWN.read_text())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_bytes_are_seen_and_answered_as_ever(
    protocol: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the profile path is relative to it
    known = EVERY[f"{protocol} {kind}"]
    for batch, (found, before) in enumerate(zip(digests(protocol, kind), known, strict=True)):
        assert found == before, (
            f"batch {batch} differs; if that is intended, write the digests again:"
            " python -m tests.protocols.recorded_verdicts"
        )
