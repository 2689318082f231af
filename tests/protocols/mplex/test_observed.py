"""mplex watched: how streams end, and names longer than anybody needs."""

from __future__ import annotations

import pytest
from tests.attacks.raw_frames import uvarint

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PeerViolation
from polymux.core.observer import Observer
from polymux.core.streams import StreamState
from polymux.protocols.registry import create

OPENED, HALF_CLOSED, CLOSED_BACK = b"\x08\x00", b"\x0c\x00", b"\x0b\x00"  # on id 1, the dialer's
RESET, RESET_BACK = b"\x0e\x00", b"\x0d\x00"
KEPT = 64 * 1024


def frame(number: int, flag: int, payload: bytes) -> bytes:
    return uvarint(number * 8 + flag) + uvarint(len(payload)) + payload


def observe(*turns: tuple[int, bytes], vantage: int = 2) -> Observer:
    observer = Observer(create("mplex", vantage=vantage))
    for side, data in turns:
        observer.feed(side, data, 0)
    return observer


def newest(observer: Observer) -> StreamState:
    return observer.protocol.streams.all()[-1]


def ended(observer: Observer) -> tuple[str, int]:
    stream = newest(observer)
    return observer.protocol.ending(stream), stream.reset_by


# The first stop decides the ending


@pytest.mark.parametrize("vantage", [0, 1, 2])
@pytest.mark.parametrize("late", [(0, RESET), (1, RESET_BACK)])
def test_a_reset_of_a_stream_that_both_sides_closed_changes_nothing(
    late: tuple[int, bytes], vantage: int
) -> None:
    closed = ((0, OPENED + HALF_CLOSED), (1, CLOSED_BACK))
    observer = observe(*closed, late, late, vantage=vantage)
    assert ended(observer) == ("clean", -1)
    assert newest(observer).error is None


def test_a_reset_after_ones_own_close_ends_a_stream_that_the_peer_has_not_closed() -> None:
    assert ended(observe((0, OPENED + HALF_CLOSED + RESET))) == ("reset", 0)
    assert ended(observe((0, OPENED), (1, CLOSED_BACK), (0, RESET))) == ("reset", 0)


def test_a_close_that_may_be_about_an_earlier_use_does_not_keep_a_reset_from_counting() -> None:
    again = OPENED + RESET + OPENED + HALF_CLOSED
    assert ended(observe((0, again), (1, CLOSED_BACK), (0, RESET))) == ("reset", 0)


# Long texts


@pytest.mark.parametrize("step", [1000, 70_000, 10**6])
def test_a_long_name_is_no_fault_and_is_kept_in_part(step: int) -> None:
    name = bytes(range(256)) * 280
    data = frame(1, 0, name) + frame(1, 2, b"hi") + frame(1, 6, name)
    observer = observe(*((0, data[at : at + step]) for at in range(0, len(data), step)))
    stream = newest(observer)
    assert (stream.name, stream.error, stream.dialer.content_bytes) == (name[:KEPT], name[:KEPT], 2)
    assert [v.rule.name for v in observer.take_violations()] == ["mplex.reset-with-payload"]
    assert observer.accounts_for_all_bytes()
    assert observer.rows is not None
    (batch,) = observer.rows.take()
    assert [batch.payload_bytes[i] for i in range(batch.used)] == [len(name), 2, len(name)]


@pytest.mark.parametrize(("size", "reports"), [(KEPT + 1, 0), (1 << 20, 0), ((1 << 20) + 1, 1)])
def test_a_name_is_too_long_beyond_the_largest_payload(size: int, reports: int) -> None:
    observer = observe((0, frame(1, 0, bytes(size))))
    found = [v.rule.name for v in observer.take_violations()]
    assert found == ["mplex.frame-too-long"] * reports
    assert newest(observer).label() == "d1"


def test_a_live_side_still_refuses_what_it_would_have_to_buffer() -> None:
    end = Endpoint(create("mplex", vantage=1), 1)
    with pytest.raises(PeerViolation, match="frame-too-long"):
        end.receive(frame(1, 0, bytes(KEPT + 1))[:100], 0.0)
