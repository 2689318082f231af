"""Small promises of a sans-IO endpoint."""

from __future__ import annotations

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded
from polymux.protocols.registry import create


def dialer(text: str) -> Endpoint:
    end = Endpoint(create(text, vantage=0), 0, direct=True)
    end.start(bytes(16))
    return end


@pytest.mark.parametrize("text", ["mplex", "omnistreams:carrier=length"])
def test_giving_a_stream_up_twice_says_it_once(text: str) -> None:
    once, twice = dialer(text), dialer(text)
    for end, times in ((once, 1), (twice, 2)):
        stream = end.open()
        end.data_to_send()
        for _ in range(times):
            end.abort(stream)
    said = once.data_to_send()
    assert said
    assert twice.data_to_send() == said
    assert twice.data_to_send() == b""


def test_a_message_that_is_too_long_is_refused_with_the_size_that_would_do() -> None:
    end = dialer("omnistreams:carrier=length")
    stream = end.open()
    with pytest.raises(LimitExceeded, match="limit frame=1048576"):
        end.send(stream, bytes(1048577))
