"""Weights of streams in `polymux.sync`."""

from __future__ import annotations

import pytest

import polymux.sync


def test_a_stream_has_the_weight_it_was_opened_with_until_another_is_set() -> None:
    near, far = polymux.sync.pipe("mplex")
    with near, far:
        stream = near.open("x", weight=5)
        assert stream.weight == 5
        theirs = far.accept()
        assert theirs.weight == 1
        theirs.weight = 256
        assert (stream.weight, theirs.weight) == (5, 256)
        with pytest.raises(ValueError, match="to 256, not 0"):
            near.open("y", weight=0)
        assert near.open_streams == 1
