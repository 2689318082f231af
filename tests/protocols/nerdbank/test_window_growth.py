"""Window growth requests: what a live side replies, byte by byte."""

from __future__ import annotations

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.frames import Frame
from polymux.core.limits import Limits
from polymux.core.streams import StreamState
from polymux.protocols.nerdbank.codec import WINDOW_ADJUST
from polymux.protocols.nerdbank.rules import WINDOW_SHRUNK
from polymux.protocols.registry import create

OFFER = "94 00 {:02x} 01 c4 06 92 a1 78 cd 03e8"  # the dialer's window is 1000
WISH = "93 08 {:02x} 01"
CONTENT = "94 02 {:02x} 01 c4 01 21"
TERMINATED = "93 04 {:02x} 01"
READING_COMPLETED = "93 06 {:02x} 01"


def widened(number: int, window: int) -> bytes:
    """Return the acceptor's reply, for windows of 128 to 65535 bytes."""
    return bytes.fromhex(f"94 07 {number:02x} ff c4 04 91 cd {window:04x}")


class Acceptor:
    """A live acceptor that announces windows of 1000 bytes, and a dialer in plain bytes."""

    def __init__(self, grown: int = 1 << 20, growth: int = 1 << 20) -> None:
        limits = Limits(
            receive_window=1000, max_receive_window=grown, max_window_growth_total=growth
        )
        self.end = Endpoint(create("nerdbank", limits, vantage=1), 1, direct=True)

    def receive_hex(self, text: str, number: int) -> bytes:
        self.end.receive(bytes.fromhex(text.format(number)), 0.0)
        return self.end.data_to_send()

    def channel(self, number: int, window: int = 0) -> StreamState:
        self.receive_hex(OFFER, number)
        stream = self.end.protocol.streams.find(number * 4)
        assert stream is not None
        self.end.accept(stream, window)
        self.end.data_to_send()
        return stream

    def request_growth(self, number: int) -> bytes:
        return self.receive_hex(WISH, number)


def test_each_wish_makes_the_window_four_times_as_large_up_to_the_limit() -> None:
    side = Acceptor(grown=17_000)
    stream = side.channel(1)
    assert [side.request_growth(1) for _ in range(4)] == [
        widened(1, 4000), widened(1, 16_000), widened(1, 17_000), widened(1, 17_000)
    ]  # fmt: skip
    assert (stream.dialer.window, stream.dialer.credit_granted) == (17_000, 17_000)


def test_a_growth_request_is_answered_by_whether_earlier_content_was_read_before_the_reply() -> (
    None
):
    side = Acceptor()
    stream = side.channel(1)
    both = bytes.fromhex((CONTENT + WISH).format(1, 1))
    side.end.receive(both, 0.0)
    assert side.end.pending()
    assert side.end.data_to_send() == widened(1, 1000)
    side.end.receive(both, 0.0)
    assert stream.buffers is not None
    taken = side.end.take_received(stream.buffers)
    side.end.read(stream, sum(map(len, taken)))
    assert side.end.data_to_send() == widened(1, 4000)
    assert not side.end.pending()


def test_a_growth_request_whose_channel_ends_before_the_reply_is_dropped() -> None:
    side = Acceptor()
    side.channel(1)
    side.end.receive(bytes.fromhex(WISH.format(1)), 0.0)
    side.end.receive(bytes.fromhex(TERMINATED.format(1)), 0.0)
    assert widened(1, 4000) not in side.end.data_to_send()
    assert not side.end.pending()


def test_a_window_already_beyond_the_limit_is_repeated_and_never_shrinks() -> None:
    side = Acceptor(grown=500)
    side.channel(1)
    assert side.request_growth(1) == widened(1, 1000)


def test_the_smallest_window_is_repeated_too() -> None:
    side = Acceptor(grown=1)
    side.channel(1, window=1)
    assert side.request_growth(1) == bytes.fromhex("94 07 01 ff c4 02 91 01")


def test_while_something_is_unread_the_window_is_repeated() -> None:
    side = Acceptor()
    stream = side.channel(1)
    side.receive_hex(CONTENT, 1)
    assert side.request_growth(1) == widened(1, 1000)
    assert stream.buffers is not None
    assert len(side.end.take_received(stream.buffers)) == 1
    assert side.request_growth(1) == widened(1, 4000)


@pytest.mark.parametrize(("growth", "window"), [(3000, 4000), (2999, 1000)])
def test_a_window_grows_by_no_more_than_all_may_together(growth: int, window: int) -> None:
    side = Acceptor(growth=growth)
    side.channel(1)
    assert side.request_growth(1) == widened(1, window)


@pytest.mark.parametrize(("growth", "window"), [(6000, 4000), (5999, 1000)])
def test_what_other_channels_have_grown_is_counted(growth: int, window: int) -> None:
    side = Acceptor(growth=growth)
    side.channel(1)
    side.channel(2)
    assert side.request_growth(1) == widened(1, 4000)
    assert side.request_growth(2) == widened(2, window)


@pytest.mark.parametrize(("growth", "window"), [(15_000, 16_000), (14_999, 4000)])
def test_what_a_channel_has_grown_itself_is_counted_once(growth: int, window: int) -> None:
    side = Acceptor(growth=growth)
    side.channel(1)
    assert side.request_growth(1) == widened(1, 4000)
    assert side.request_growth(1) == widened(1, window)


@pytest.mark.parametrize(("growth", "window"), [(3000, 4000), (2999, 1000)])
def test_a_channel_with_less_than_the_usual_window_leaves_no_more_to_others(
    growth: int, window: int
) -> None:
    side = Acceptor(growth=growth)
    side.channel(1, window=400)
    side.channel(2)
    assert side.request_growth(2) == widened(2, window)


@pytest.mark.parametrize(("growth", "window"), [(3500, 4000), (3499, 1000)])
def test_a_channel_accepted_with_more_than_the_usual_window_has_grown(
    growth: int, window: int
) -> None:
    side = Acceptor(growth=growth)
    side.channel(1, window=1500)
    side.channel(2)
    assert side.request_growth(2) == widened(2, window)


def test_what_a_channel_had_grown_is_there_for_others_when_it_is_over() -> None:
    side = Acceptor(growth=3000)
    side.channel(1)
    side.channel(2)
    assert side.request_growth(1) == widened(1, 4000)
    assert side.request_growth(2) == widened(2, 1000)
    assert side.receive_hex(TERMINATED, 1) == bytes.fromhex("93 04 01 ff")
    assert side.request_growth(2) == widened(2, 4000)


@pytest.mark.parametrize(
    ("window", "violations"),
    [(-1, 0), (0, WINDOW_SHRUNK), (999, WINDOW_SHRUNK), (1000, 0), (1001, 0)],
)
def test_a_smaller_window_is_a_violation_before_it_is_sent(window: int, violations: int) -> None:
    side = Acceptor()
    frame = Frame(WINDOW_ADJUST, side.channel(1).key, b"", window)
    assert side.end.connection.validate_outgoing(1, frame, 0) == violations


# Replies and queued content


def test_a_reply_to_a_growth_request_keeps_content_that_waits_for_credit() -> None:
    side = Acceptor()
    stream = side.channel(1)
    side.end.send(stream, b"a" * 1200)
    assert side.end.data_to_send() == bytes.fromhex("94 02 01 ff c5 03e8") + b"a" * 1000
    assert side.request_growth(1) == widened(1, 4000)
    side.end.receive(bytes.fromhex("94 05 01 01 c4 04 91 cd 03e8"), 0.0)
    side.end.resume(stream)
    assert side.end.data_to_send() == bytes.fromhex("94 02 01 ff c4 c8") + b"a" * 200


def test_a_peer_that_stops_reading_gets_no_queued_content_but_the_end() -> None:
    side = Acceptor()
    stream = side.channel(1)
    side.end.send(stream, b"a" * 1200)
    side.end.data_to_send()
    assert side.receive_hex(READING_COMPLETED, 1) == bytes.fromhex("93 03 01 ff")
    side.end.receive(bytes.fromhex("94 05 01 01 c4 04 91 cd 03e8"), 0.0)
    side.end.resume(stream)
    assert side.end.data_to_send() == b""
