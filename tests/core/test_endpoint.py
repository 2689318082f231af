"""Details of the sans-IO endpoint's contract."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded
from polymux.protocols.registry import create
from polymux.testing.header_scan import HeaderScan

PIECES = st.one_of(st.binary(max_size=40), st.integers(0, 70_000).map(bytes))


def dialer(text: str) -> Endpoint:
    end = Endpoint(create(text, vantage=0), 0, direct=True)
    end.start(bytes(16))
    return end


@pytest.mark.parametrize("text", ["mplex", "omnistreams:carrier=length"])
def test_aborting_a_stream_twice_sends_one_frame(text: str) -> None:
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


def test_an_offer_that_was_withdrawn_is_not_accepted() -> None:
    end = Endpoint(create("nerdbank", vantage=1), 1)
    (offered, _) = end.receive(bytes.fromhex("94000101c40992a46563686fcd4000 93040101"), 0.0)
    assert offered.stream is not None
    end.accept(offered.stream)
    assert end.data_to_send() == bytes.fromhex("930401ff")  # our own termination, and nothing else


def test_a_message_over_the_limit_is_rejected_with_the_limit_named() -> None:
    end = dialer("omnistreams:carrier=length")
    stream = end.open()
    with pytest.raises(LimitExceeded, match="limit max_frame_bytes=1048576"):
        end.send(stream, bytes(1048577))


@example([bytes(1024)] * 200, 262_144, False)  # quanta that are filled exactly
@given(st.lists(PIECES, max_size=30), st.integers(1, 200_000), st.booleans())
def test_send_many_gives_the_same_frames_and_counters_as_send(
    pieces: list[bytes], room: int, shared: bool
) -> None:
    together, apart = dialer("mplex"), dialer("mplex")
    said = []
    for end in (together, apart):
        stream = end.open(b"x")
        data = end.data_to_send()
        if shared:  # another stream shares the round robin
            end.send(end.open(b"y"), bytes(100))
        if end is together:
            end.send_many(stream, pieces)
        for piece in pieces if end is apart else ():
            end.send(stream, piece)
            data += end.data_to_send()
        while end.pending():
            data += b"".join(end.chunks_to_send(room))
        half = stream.half(0)
        said.append(
            (
                half.content_bytes,
                half.content_units,
                stream.buffers.queued_bytes if stream.buffers else -1,
            )
        )
        assert half.content_bytes == sum(map(len, pieces))
        assert end.scheduler.ready_bytes == 0
        reader = Endpoint(create("mplex", vantage=1), 1, direct=True)
        reader.start(bytes(16))
        reader.receive(data, 1.0)
        theirs = reader.protocol.streams.find(stream.key)
        assert theirs is not None
        assert theirs.half(0).content_bytes == half.content_bytes
        assert theirs.half(0).frames == half.frames
        assert reader.protocol.causality.frames_sent(0) == end.protocol.causality.frames_sent(0)
        chain = HeaderScan(4096)
        assert chain.read(reader.protocol, 0, data, 0, 0) == len(data)
        assert 0 not in list(chain.payload_size)[: chain.used]  # no empty frame
        assert theirs.buffers is not None
        assert b"".join(bytes(part) for part in theirs.buffers.received) == b"".join(pieces)
    assert said[0] == said[1]
