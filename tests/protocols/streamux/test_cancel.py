"""A live Streamux side that cancels, is cancelled, and reuses its ids."""

import pytest
from tests.protocols.streamux.one_side import (
    opened_stream,
    protocol,
    receive_hex,
    send_request,
    sent_hex,
    side,
)

from polymux.core.errors import LimitExceeded, NoFreeIds
from polymux.core.events import Aborted, Closed, Control, Data, Ended, Opened
from polymux.core.frames import Frame
from polymux.core.limits import Limits
from polymux.protocols.registry import create
from polymux.protocols.streamux.rules import CANCEL, REQUEST_LAST

FOUR_IDS = "streamux:length_bits=12,id_bits=2"
TWO_IDS = "streamux:length_bits=13,id_bits=1"


# Cancels


def test_a_cancel_drops_what_is_queued_and_locks_the_id() -> None:
    endpoint = side()
    stream = endpoint.open()
    endpoint.send(stream, b"one")
    endpoint.send(stream, b"two")
    sent_hex(endpoint)
    endpoint.abort(stream)
    assert sent_hex(endpoint) == "0000"
    events = receive_hex(endpoint, "20c0 6f6b")  # a reply on its way is dropped
    assert not any(isinstance(event, Data) for event in events)
    assert any(isinstance(event, Control) for event in receive_hex(endpoint, "0040"))
    assert protocol(endpoint).ending(stream) == "cancelled"
    assert endpoint.counters.hits == {"streamux.reply-before-end": 1}


def test_a_cancel_is_sent_once() -> None:
    endpoint = side()
    stream = send_request(endpoint)
    sent_hex(endpoint)
    endpoint.abort(stream)
    endpoint.abort(stream)
    assert sent_hex(endpoint) == "0000"
    endpoint.abort(stream)
    assert sent_hex(endpoint) == ""


def test_a_cancel_is_acknowledged_ahead_of_everything_that_is_queued() -> None:
    endpoint = side(1)
    first, second = (
        opened_stream(receive_hex(endpoint, "1180 21")),
        opened_stream(receive_hex(endpoint, "1280 21")),
    )
    endpoint.send(second, b"two")
    endpoint.end(second)
    endpoint.send(first, b"one")
    endpoint.end(first)
    events = receive_hex(endpoint, "0100")
    assert any(isinstance(event, Aborted) and event.stream is first for event in events)
    assert sent_hex(endpoint) == "0140" + "32c0" + b"two".hex()


def test_every_cancel_is_acknowledged_also_a_second_one_and_one_for_nothing() -> None:
    endpoint = side(1)
    receive_hex(endpoint, "1180 21")
    receive_hex(endpoint, "0100 0100 0900")
    assert sent_hex(endpoint) == "0140 0140 0940".replace(" ", "")
    receive_hex(endpoint, "0100")
    assert sent_hex(endpoint) == "0140"
    assert not endpoint.protocol.pending_replies


def test_a_cancel_that_the_final_reply_overtook_is_not_sent() -> None:
    endpoint = side(text=TWO_IDS, peer="010d0100")
    stream = send_request(endpoint)
    sent_hex(endpoint)
    endpoint.abort(stream)
    receive_hex(endpoint, "04c0 6f6b")
    send_request(endpoint)  # on the other id
    send_request(endpoint, b"again")
    assert sent_hex(endpoint) == "03803f" + "0a80" + b"again".hex()


def test_an_empty_reply_that_a_cancel_overtook_is_not_sent() -> None:
    endpoint = side(1)
    endpoint.abort(opened_stream(receive_hex(endpoint, "1180 21")))
    receive_hex(endpoint, "0100")
    assert sent_hex(endpoint) == "0140"


def test_a_request_aborted_before_anything_was_sent_sends_nothing() -> None:
    endpoint = side(text=TWO_IDS)
    stream = endpoint.open()
    endpoint.send(stream, b"x")
    endpoint.abort(stream)
    assert sent_hex(endpoint) == ""
    assert [endpoint.open().stream_id, endpoint.open().stream_id] == [1, 0]


def test_aborting_a_call_that_was_cancelled_half_way_leaves_no_pending_reply() -> None:
    endpoint = side(1)
    stream = opened_stream(receive_hex(endpoint, "1100 21"))
    receive_hex(endpoint, "0100")
    endpoint.abort(stream)
    assert sent_hex(endpoint) == "0140"
    assert not endpoint.protocol.pending_replies


# Ids


def test_ids_are_drawn_in_order_and_used_again_longest_free_first() -> None:
    endpoint = side(text=FOUR_IDS, peer="010c0200")
    streams = [send_request(endpoint) for _ in range(4)]
    assert [stream.stream_id for stream in streams] == [0, 1, 2, 3]
    with pytest.raises(NoFreeIds):
        endpoint.open()
    sent_hex(endpoint)
    receive_hex(endpoint, "02c0 00c0")  # empty replies to 2, then 0
    assert [send_request(endpoint).stream_id for _ in range(2)] == [2, 0]
    with pytest.raises(NoFreeIds):
        endpoint.open()


def test_ids_stay_taken_while_their_acks_are_withheld() -> None:
    endpoint = side(text=TWO_IDS, peer="010d0100")
    for _ in range(2):
        stream = send_request(endpoint)
        sent_hex(endpoint)
        endpoint.abort(stream)
        sent_hex(endpoint)
    with pytest.raises(NoFreeIds):
        endpoint.open()
    receive_hex(endpoint, "00c0")  # a reply to a cancelled request frees nothing
    with pytest.raises(NoFreeIds):
        endpoint.open()
    receive_hex(endpoint, "0040")
    assert endpoint.open().stream_id == 0


def test_an_id_taken_by_put_is_not_drawn_until_it_is_free() -> None:
    endpoint = side(text=FOUR_IDS, peer="010c0200")
    endpoint.send_frame(Frame(REQUEST_LAST, 2 * 1, b"x"))
    assert [endpoint.open().stream_id for _ in range(3)] == [0, 2, 3]
    receive_hex(endpoint, "01c0")
    assert endpoint.open().stream_id == 1


def test_an_id_that_waits_for_its_first_chunk_is_not_drawn_twice() -> None:
    endpoint = side(text=TWO_IDS, peer="010d0100")
    stream = endpoint.open()
    endpoint.send_frame(Frame(CANCEL, stream.key))  # without effect, which is allowed
    receive_hex(endpoint, "0040")
    assert endpoint.open().stream_id == 1
    with pytest.raises(NoFreeIds):
        endpoint.open()


def test_a_saved_side_goes_on_drawing_ids_where_it_stopped() -> None:
    first = side(text=FOUR_IDS, peer="010c0200")
    for _ in range(3):
        send_request(first)
    sent_hex(first)
    receive_hex(first, "02c0 00c0")
    first.open()  # a fresh one, not yet used
    second = create(FOUR_IDS, vantage=0)
    second.load(first.protocol.save())
    drawn = [[p.allocate(0) >> 1 for _ in range(3)] for p in (first.protocol, second)]
    assert drawn == [[2, 0, -1], [2, 0, -1]]
    assert second.save()["ids"] == first.protocol.save()["ids"]


def test_a_second_use_of_an_id_has_the_same_events_as_the_first() -> None:
    for cut in range(1, 7):
        endpoint = side(1)
        endpoint.end(opened_stream(receive_hex(endpoint, "1580 21")))
        sent_hex(endpoint)
        wire = bytes.fromhex("4580 61626364")
        events = endpoint.receive(wire[:cut], 0.0) + endpoint.receive(wire[cut:], 0.0)
        kinds = [type(event) for event in events if not isinstance(event, Data)]
        assert kinds == [Closed, Opened, Ended]  # the first use, then the second
        assert opened_stream(events).label() == "d5.2"


def test_ids_that_wait_do_not_pile_up() -> None:
    endpoint = side(text="streamux:length_bits=1,id_bits=29", peer="01011d00")
    drawn = set()
    for _ in range(9000):
        number: int = send_request(endpoint, b"x").stream_id
        drawn.add(number)
        endpoint.data_to_send()
        endpoint.receive((0xC0000000 + number).to_bytes(4, "little"), 0.0)
    ids = protocol(endpoint).dialer_ids
    assert len(drawn) == ids.next_unused == 4096  # then those released longest ago
    assert len(ids.freed) <= 2 * 4097


def test_asking_for_a_free_id_again_and_again_keeps_it_once() -> None:
    endpoint = side()
    for _ in range(20):
        endpoint.send_frame(Frame(REQUEST_LAST, protocol(endpoint).next_free_key(0), b"x"))
        endpoint.data_to_send()
        receive_hex(endpoint, "00c0")
    assert protocol(endpoint).dialer_ids.freed == []


def test_a_flood_of_cancels_meets_the_bound_of_unread_answers() -> None:
    endpoint = side(1, limits=Limits(max_queued_replies=20))
    receive_hex(endpoint, "0500" * 30)
    assert len(endpoint.scheduler.control_queue) == 20
    with pytest.raises(LimitExceeded, match="max_queued_replies"):
        receive_hex(endpoint, "0500")  # none of them was allocated in the meantime
