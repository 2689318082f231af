"""Streamux observed: state of ids without a request."""

from tests.protocols.streamux.one_side import protocol, receive_hex, send_request, sent_hex, side

from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.rules import Certainty
from polymux.protocols.registry import create
from polymux.protocols.streamux.protocol import Streamux

HELLO = bytes([1, 1, 29, 0])  # 1/29
REQUEST, CANCEL, REPLY, ACK = 0xA0000000, 0x0, 0xE0000000, 0x40000000
MOST = 20


def word(kind: int, number: int) -> bytes:
    data = b"x" if kind in (REQUEST, REPLY) else b""
    return (kind + number).to_bytes(4, "little") + data


def new_observer(remembered: int = MOST) -> Observer:
    return Observer(
        create("streamux", Limits(closed_streams_remembered=remembered, max_queued_replies=5))
    )


def greeted(remembered: int = MOST) -> Observer:
    observer = new_observer(remembered)
    observer.feed(0, HELLO, 0)
    observer.feed(1, HELLO, 0)
    return observer


def feed(observer: Observer, side: int, kind: int, *numbers: int) -> None:
    for number in numbers:
        observer.feed(side, word(kind, number), 0)


def observed_protocol(observer: Observer) -> Streamux:
    assert isinstance(observer.protocol, Streamux)
    return observer.protocol


def findings(observer: Observer, rule: str) -> list[Certainty]:
    return [v.certainty for v in observer.take_violations() if v.rule.name == f"streamux.{rule}"]


def test_cancels_of_unused_ids_are_remembered_up_to_the_bound() -> None:
    observer = greeted()
    feed(observer, 0, CANCEL, *range(500))
    p = observed_protocol(observer)
    kept = [number * 2 for number in range(500 - MOST, 500)]
    assert (
        sorted(p.unacknowledged_cancels)
        == sorted(p.locked_keys)
        == list(p.keys_without_stream)
        == kept
    )
    assert len(p.pending_replies) == p.locked_count(0) == MOST
    observer.finish(1, True, True)
    sent_hex = findings(observer, "cancel-unanswered")
    assert sent_hex == [Certainty.POSSIBLE] * (500 - MOST) + [Certainty.CERTAIN] * MOST


def test_an_ack_for_a_cancel_that_was_forgotten_is_only_possibly_wrong() -> None:
    observer = greeted()
    feed(observer, 0, CANCEL, *range(MOST + 1))
    feed(observer, 1, ACK, *range(MOST + 1))
    assert findings(observer, "ack-not-cancelled") == [Certainty.POSSIBLE]
    p = observed_protocol(observer)
    assert [
        len(kept)
        for kept in (
            p.unacknowledged_cancels,
            p.locked_keys,
            p.pending_replies,
            p.keys_without_stream,
        )
    ] == [0, 0, 0, 0]


def test_an_ack_for_a_cancel_that_was_forgotten_is_excused_where_a_request_came_between() -> None:
    observer = greeted()
    feed(observer, 0, CANCEL, *range(MOST + 1))
    feed(observer, 0, REQUEST, 0)
    feed(observer, 1, ACK, 0)
    assert findings(observer, "ack-not-cancelled") == []


def test_acks_that_come_in_time_leave_nothing_behind() -> None:
    observer = greeted()
    for number in range(500):
        feed(observer, 0, CANCEL, number)
        feed(observer, 1, ACK, number)
    assert not observed_protocol(observer).keys_without_stream
    assert not observed_protocol(observer).streams.has_evicted
    feed(observer, 1, ACK, 3)
    assert findings(observer, "ack-not-cancelled") == [Certainty.CERTAIN]


def test_replies_to_nothing_are_remembered_up_to_the_bound() -> None:
    observer = greeted()
    feed(observer, 1, REPLY, *range(500))
    p = observed_protocol(observer)
    assert (
        list(p.ambiguous_ids)
        == list(p.keys_without_stream)
        == [n * 2 for n in range(500 - MOST, 500)]
    )
    observer.take_violations()
    feed(observer, 0, REQUEST, 0, 0)  # the requester may have taken an early reply for its own
    assert observer.take_violations() == []


def test_an_id_that_is_cancelled_repeatedly_leaves_few_pending_replies() -> None:
    observer = greeted()
    feed(observer, 0, REQUEST, *range(50))
    feed(observer, 0, CANCEL, *(number for number in range(50) for _ in range(30)))
    p = observed_protocol(observer)
    assert p.repeated_pending_acks == MOST
    assert len(p.pending_replies) == 50 + MOST
    feed(observer, 1, ACK, *(number for number in range(50) for _ in range(30)))
    assert (
        p.repeated_pending_acks,
        len(p.pending_replies),
        len(p.unacknowledged_cancels),
        p.locked_count(0),
    ) == (0, 0, 0, 0)
    assert findings(observer, "ack-not-cancelled") == []


def test_an_ack_pending_when_its_request_is_evicted_is_reported_then() -> None:
    observer = greeted(3)
    feed(observer, 0, REQUEST, 1)
    feed(observer, 1, REPLY, 1)
    feed(observer, 0, CANCEL, 1)  # crossed the reply
    for number in range(2, 6):
        feed(observer, 0, REQUEST, number)
        feed(observer, 1, REPLY, number)
    (violation,) = observer.take_violations()
    assert (violation.rule.name, violation.stream) == ("streamux.cancel-unanswered", "d1")
    assert violation.certainty is Certainty.POSSIBLE
    observer.finish(1, True, True)
    assert observer.take_violations() == []


def test_what_is_kept_of_unused_ids_goes_on_in_a_snapshot() -> None:
    whole, resumed = greeted(), greeted()
    for observer in (whole, resumed):
        feed(observer, 0, CANCEL, *range(MOST + 3), 9, 9)
        feed(observer, 1, REPLY, 1000)
        observer.take_violations()
    after = new_observer()
    after.restore(resumed.snapshot())
    assert after.snapshot() == whole.snapshot()
    assert (
        observed_protocol(after).locked_count(0),
        observed_protocol(after).repeated_pending_acks,
    ) == (MOST - 1, 2)
    for observer in (whole, after):
        feed(observer, 1, ACK, *range(10))
        feed(observer, 0, CANCEL, *range(200, 210))
        observer.finish(1, True, True)
    assert [str(v) for v in after.take_violations()] == [str(v) for v in whole.take_violations()]


def test_a_live_side_counts_the_ids_it_has_locked() -> None:
    endpoint = side()
    streams = [send_request(endpoint) for _ in range(3)]
    sent_hex(endpoint)
    for stream in streams:
        endpoint.abort(stream)
    sent_hex(endpoint)
    assert (protocol(endpoint).locked_count(0), protocol(endpoint).locked_count(1)) == (3, 0)
    receive_hex(endpoint, "0140")
    assert protocol(endpoint).locked_count(0) == 2
    again = create("streamux")
    again.load(endpoint.protocol.save())
    assert isinstance(again, Streamux)
    assert again.locked_count(0) == 2


def test_a_live_side_answers_every_cancel_whatever_an_observer_would_remember() -> None:
    endpoint = side(1, limits=Limits(closed_streams_remembered=2))
    receive_hex(endpoint, "".join(f"{number:02x}00" for number in range(9)))
    assert sent_hex(endpoint) == "".join(f"{number:02x}40" for number in range(9))
