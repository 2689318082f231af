"""What an observer keeps of a yamux session: late frames, pings, windows, roles."""

from tests.attacks import raw_frames as words

from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.protocols.registry import create

UPDATE, DATA = words.YAMUX_UPDATE, words.YAMUX_DATA


def rules(observer: Observer) -> list[str]:
    return [v.rule.name for v in observer.take_violations()]


def opened(observer: Observer, number: int) -> None:
    observer.feed(0, words.yamux(UPDATE, words.SYN, number), 1)
    observer.feed(1, words.yamux(UPDATE, words.ACK, number), 2)


def test_a_late_frame_of_a_forgotten_stream_is_no_violation() -> None:
    observer = Observer(create("yamux", Limits(closed_streams_remembered=2)))
    for number in (1, 3, 5, 7):
        opened(observer, number)
        observer.feed(0, words.yamux(UPDATE, words.FIN, number), 3)
        observer.feed(1, words.yamux(UPDATE, words.FIN, number), 4)
    observer.feed(1, words.yamux(UPDATE, 0, 1, 5), 5)  # credit for what was read late
    assert rules(observer) == []
    observer.feed(1, words.yamux(UPDATE, 0, 9, 5), 6)
    assert rules(observer) == ["yamux.unknown-stream"]


def test_a_stream_that_was_forgotten_without_its_ack_is_noted() -> None:
    observer = Observer(create("yamux", Limits(closed_streams_remembered=1)))
    for number in (1, 3, 5):
        observer.feed(0, words.yamux(UPDATE, words.SYN | words.FIN, number), 3)
        observer.feed(1, words.yamux(UPDATE, words.FIN, number), 4)
    assert rules(observer) == ["yamux.unacknowledged"] * 2


def test_pings_that_are_never_answered_do_not_fill_the_memory() -> None:
    observer = Observer(create("yamux", Limits(closed_streams_remembered=4)))
    for value in range(100):
        observer.feed(0, words.yamux(words.YAMUX_PING, words.SYN, 0, value), 1)
    assert len(observer.protocol.pending_replies) == 4
    observer.feed(1, words.yamux(words.YAMUX_PING, words.ACK, 0, 99), 2)
    assert rules(observer) == []


def test_the_round_trip_is_the_sum_of_both_ways_behind_the_observer() -> None:
    observer = Observer(create("yamux"))
    observer.feed(0, words.yamux(words.YAMUX_PING, words.SYN, 0, 1), 1000)
    observer.feed(1, words.yamux(words.YAMUX_PING, words.ACK, 0, 1), 4000)
    assert observer.protocol.round_trip_ns() == 3000
    observer.feed(1, words.yamux(words.YAMUX_PING, words.SYN, 0, 1), 5000)
    observer.feed(0, words.yamux(words.YAMUX_PING, words.ACK, 0, 1), 5500)
    assert observer.protocol.round_trip_ns() == 3500


def test_the_window_is_the_most_that_could_be_sent_at_once() -> None:
    observer = Observer(create("yamux"))
    opened(observer, 1)
    observer.feed(0, words.yamux(DATA, 0, 1, 0, bytes(200_000)), 3)
    observer.feed(1, words.yamux(UPDATE, 0, 1, 100_000), 4)
    (stream,) = observer.protocol.streams.all()
    assert (stream.dialer.window, stream.dialer.peak_in_flight) == (262144, 200_000)
    observer.feed(1, words.yamux(UPDATE, 0, 1, 1_000_000), 5)
    assert stream.dialer.window == 262144 + 900_000
    observer.feed(0, words.yamux(DATA, 0, 1, 0, bytes(262144 + 900_000)), 6)
    assert stream.dialer.peak_in_flight == stream.dialer.window
    assert stream.dialer.blocked_since == 6


def test_content_that_accepts_is_when_the_stream_was_accepted() -> None:
    observer = Observer(create("yamux"))
    observer.feed(0, words.yamux(DATA, words.SYN, 1, 0, b"x"), 3)
    observer.feed(1, words.yamux(DATA, words.ACK, 1, 0, b"y"), 8)
    (stream,) = observer.protocol.streams.all()
    assert (stream.opened_at, stream.accepted_at) == (3, 8)
