"""A yamux endpoint: acceptance, credit, windows that grow, pings, Go Away and resets."""

import pytest
from tests.attacks import raw_frames as words

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, NoFreeIds, PeerViolation
from polymux.core.events import Aborted, Accepted, Control, Data, Opened
from polymux.core.limits import Limits
from polymux.core.streams import StreamState
from polymux.protocols.registry import create
from polymux.protocols.yamux.protocol import INITIAL_WINDOW, Yamux
from polymux.protocols.yamux.rules import PING

UPDATE, DATA = words.YAMUX_UPDATE, words.YAMUX_DATA
MS = 0.001


def pair(text: str = "yamux", **limits: int) -> tuple[Endpoint, Endpoint]:
    near, far = (Endpoint(create(text, Limits(**limits), vantage=side), side) for side in (0, 1))
    return near, far


def exchange(near: Endpoint, far: Endpoint, now: float = 1.0) -> list[object]:
    """Deliver everything both ways until nothing is left; return the events of both."""
    events: list[object] = []
    while any(sent := [near.data_to_send(1 << 30), far.data_to_send(1 << 30)]):
        events += far.receive(sent[0], now)
        events += near.receive(sent[1], now)
    return events


def opened_pair(text: str = "yamux", **limits: int) -> tuple[Endpoint, Endpoint, StreamState]:
    near, far = pair(text, **limits)
    stream = near.open()
    exchange(near, far)
    return near, far, stream


def yamux_of(endpoint: Endpoint) -> Yamux:
    assert isinstance(endpoint.protocol, Yamux)
    return endpoint.protocol


def test_the_bytes_of_an_opening_its_acceptance_and_data() -> None:
    near, far = pair(receive_window=INITIAL_WINDOW)
    stream = near.open()
    near.send(stream, b"hi")
    assert near.data_to_send().hex(" ", 4) == bytes.fromhex(
        "00010001 00000001 00000000 00000000 00000001 00000002 6869"
    ).hex(" ", 4)
    (opened, data) = far.receive(words.yamux(UPDATE, words.SYN, 1) + b"", 1.0) + far.receive(
        words.yamux(DATA, 0, 1, 0, b"hi"), 1.0
    )
    assert isinstance(opened, Opened)
    assert isinstance(data, Data)
    assert opened.stream is not None
    far.accept(opened.stream)
    assert far.data_to_send() == words.yamux(UPDATE, words.ACK, 1)
    far.end(opened.stream)
    assert far.data_to_send() == words.yamux(UPDATE, words.FIN, 1)


def test_a_window_is_announced_as_what_it_is_above_the_initial_one() -> None:
    near, far = pair("yamux:window=1000000")
    near.open()
    assert near.data_to_send() == words.yamux(UPDATE, words.SYN, 1, 1_000_000 - INITIAL_WINDOW)
    (opened,) = far.receive(words.yamux(UPDATE, words.SYN, 1), 1.0)
    assert isinstance(opened, Opened)
    assert opened.stream is not None
    far.accept(opened.stream, 300_000)
    assert far.data_to_send() == words.yamux(UPDATE, words.ACK, 1, 300_000 - INITIAL_WINDOW)


def test_the_first_data_of_the_accepting_side_carries_the_ack() -> None:
    near, far, stream = opened_pair()
    theirs = far.protocol.streams.find(stream.key)
    assert theirs is not None
    far.send(theirs, b"answer")
    sent = far.data_to_send()
    assert sent == words.yamux(DATA, words.ACK, 1, 0, b"answer")
    kinds = [type(event) for event in near.receive(sent, 1.0)]
    assert kinds == [Accepted, Data]
    assert stream.accepted
    far.accept(theirs)  # is accepted already
    assert far.data_to_send() == b""


def test_an_end_before_the_ack_carries_it() -> None:
    _near, far, stream = opened_pair()
    theirs = far.protocol.streams.find(stream.key)
    assert theirs is not None
    far.end(theirs)
    assert far.data_to_send() == words.yamux(UPDATE, words.ACK | words.FIN, 1)


def test_no_more_is_sent_than_the_window_allows_in_frames_of_64_kib() -> None:
    near, _far, stream = opened_pair()
    near.send(stream, bytes(INITIAL_WINDOW + 5))
    sizes = [len(chunk) for chunk in near.chunks_to_send(1 << 30)]
    assert sizes == [12, 65524, 12, 65524, 12, 65524, 12, 65524, 12 + 48]
    near.receive(words.yamux(UPDATE, words.ACK, 1, 5), 1.0)
    near.resume(stream)
    assert near.data_to_send(1 << 30) == words.yamux(DATA, 0, 1, 0, bytes(5))


def test_credit_returns_with_half_a_window_and_the_round_trip_is_then_measured() -> None:
    near, far, stream = opened_pair(receive_window=INITIAL_WINDOW)
    theirs = far.protocol.streams.find(stream.key)
    assert theirs is not None
    far.accept(theirs)
    near.send(stream, bytes(INITIAL_WINDOW))
    exchange(near, far)
    far.read(theirs, INITIAL_WINDOW // 2)
    assert far.data_to_send() == words.yamux(UPDATE, 0, 1, INITIAL_WINDOW // 2) + words.yamux(
        words.YAMUX_PING, words.SYN, 0, 0
    )


def grow(
    near: Endpoint,
    far: Endpoint,
    stream: StreamState,
    seconds: float,
    pause: float = 0.0,
    round_trip: float = 10 * MS,
) -> list[int]:
    """Use up four windows, each returned in `seconds` after a pause; the windows in KiB after."""
    theirs = far.protocol.streams.find(stream.key)
    assert theirs is not None
    windows = []
    now = 2.0
    protocol = yamux_of(far)
    protocol.request_ping(1)
    far.now = int(now * 1e9)
    near.receive(far.data_to_send(), now + round_trip / 2)
    far.receive(near.data_to_send(), now + round_trip)
    for _ in range(4):
        now += pause
        window = protocol.target_window(1, theirs)
        for _ in range(2):
            now += seconds / 2
            near.send(stream, bytes(window // 2))
            far.receive(near.data_to_send(1 << 30), now)
            far.read(theirs, window // 2)
            near.receive(far.data_to_send(), now)
            near.resume(stream)
        windows.append(protocol.target_window(1, theirs) // 1024)
    return windows


def test_a_window_that_returns_within_four_round_trips_doubles_up_to_its_limit() -> None:
    near, far, stream = opened_pair(receive_window=INITIAL_WINDOW, max_receive_window=1 << 20)
    assert grow(near, far, stream, 20 * MS) == [512, 1024, 1024, 1024]
    half = stream.half(0)
    assert half.credit_granted - half.credit_spent == 1 << 20


@pytest.mark.parametrize(
    ("round_trip", "windows"),
    [
        (1 * MS, [512, 1024, 2048, 2441]),
        (0.5 * MS, [512, 1024, 1220, 1220]),
        (0.1 * MS, [256, 256, 256, 256]),
    ],
)
def test_a_window_grows_no_further_than_20_gbit_need(round_trip: float, windows: list[int]) -> None:
    near, far, stream = opened_pair(receive_window=INITIAL_WINDOW, max_receive_window=1 << 24)
    assert grow(near, far, stream, round_trip, round_trip=round_trip) == windows


def test_a_window_that_returns_slowly_does_not_grow() -> None:
    near, far, stream = opened_pair(receive_window=INITIAL_WINDOW)
    assert grow(near, far, stream, 90 * MS) == [256, 256, 256, 256]


def test_a_window_that_is_read_at_once_after_a_pause_does_not_grow() -> None:
    near, far, stream = opened_pair(receive_window=INITIAL_WINDOW)
    assert grow(near, far, stream, 1 * MS, pause=90 * MS)[1:] == [512, 512, 512]


def test_windows_grow_by_no_more_than_the_session_allows() -> None:
    near, far, stream = opened_pair(
        receive_window=INITIAL_WINDOW, max_window_growth_total=300 * 1024
    )
    assert grow(near, far, stream, 20 * MS) == [512, 556, 556, 556]


def test_every_ping_is_answered_with_its_value() -> None:
    _, far = pair()
    ping = [words.yamux(words.YAMUX_PING, words.SYN, 0, value) for value in (7, 2**32 - 1, 7)]
    events = far.receive(b"".join(ping), 1.0)
    assert [(type(e), e.kind, e.amount) for e in events if isinstance(e, Control)] == [
        (Control, PING, value) for value in (7, 2**32 - 1, 7)
    ]
    pong = [words.yamux(words.YAMUX_PING, words.ACK, 0, value) for value in (7, 2**32 - 1, 7)]
    sent = far.data_to_send()
    assert sorted(sent[n : n + 12] for n in range(0, len(sent), 12)) == sorted(pong)


def test_the_round_trip_of_a_ping_is_kept() -> None:
    near, far = pair()
    protocol = yamux_of(near)
    assert protocol.round_trip_ns() == -1
    assert protocol.request_ping(0) == 0
    near.now = 1_000_000_000
    far.receive(near.data_to_send(), 1.0)
    near.receive(far.data_to_send(), 1.03125)
    assert protocol.round_trip_ns() == 31_250_000


def test_no_stream_is_opened_after_the_peers_go_away() -> None:
    near, far, stream = opened_pair()
    far.send_frame(yamux_of(far).go_away_frame(0))
    exchange(near, far)
    with pytest.raises(LocalProtocolError, match="it has sent Go Away with code 0"):
        near.open()
    near.send(stream, b"the old ones live")
    assert near.data_to_send() == words.yamux(DATA, 0, 1, 0, b"the old ones live")


def test_a_reset_carries_its_code_in_the_dialect_that_has_codes() -> None:
    for text, code in (("yamux:dialect=libp2p", 4101), ("yamux", 0)):
        near, far, stream = opened_pair(text)
        near.abort(stream, b"code 4101")
        sent = near.data_to_send()
        assert sent == words.yamux(UPDATE, words.RST, 1, code)
        (aborted, *_) = far.receive(sent, 1.0)
        assert isinstance(aborted, Aborted)
        assert aborted.stream is not None
        assert aborted.stream.error == (b"code 4101" if code else None)


def test_nothing_follows_a_reset_of_either_side() -> None:
    near, _far, stream = opened_pair()
    near.send(stream, bytes(1000))
    near.receive(words.yamux(UPDATE, words.RST, 1), 1.0)
    assert near.data_to_send() == b""
    near.abort(stream)
    assert near.data_to_send() == b""


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        (words.yamux(UPDATE, words.SYN, 2), "yamux.id-parity"),
        (words.yamux(UPDATE, words.SYN, 0), "yamux.stream-zero"),
        (words.yamux(UPDATE, words.SYN, 1) * 2, "yamux.id-reused"),
        (b"\x01", "yamux.bad-version"),
        (b"\x00\x04", "yamux.bad-type"),
        (words.yamux(DATA, words.SYN, 1, INITIAL_WINDOW + 1), "yamux.window-exceeded"),
        (words.yamux(DATA, words.SYN, 1, 2**32 - 1), "yamux.window-exceeded"),
        (words.yamux(UPDATE, words.SYN, 1, 2**32 - 1), "yamux.window-overflow"),
        (words.yamux(words.YAMUX_PING, 0, 0), "yamux.ping-flags"),
    ],
)
def test_a_peer_that_breaks_the_session_ends_it(frame: bytes, rule: str) -> None:
    _, far = pair()
    with pytest.raises(PeerViolation, match=rule):
        far.receive(frame, 1.0)


def test_a_live_server_does_not_learn_roles_from_its_peer() -> None:
    """It would open ids that its peer takes for its own."""
    near, _ = pair()
    with pytest.raises(PeerViolation, match="id-parity"):
        near.receive(words.yamux(UPDATE, words.SYN, 1), 1.0)


def test_the_last_id_is_the_last() -> None:
    near, far = pair()
    yamux_of(near).next_id0 = 2**32 - 1
    assert near.open().stream_id == 2**32 - 1
    with pytest.raises(NoFreeIds):
        near.open()
    yamux_of(far).next_id1 = 2**32 - 2
    assert far.open().stream_id == 2**32 - 2
    with pytest.raises(NoFreeIds):
        far.open()


def test_pings_of_one_value_are_all_answered_though_the_queue_of_replies_is_short() -> None:
    near, _ = pair(max_queued_replies=2)
    near.receive(words.yamux(words.YAMUX_PING, words.SYN, 0) * 3, 1.0)
    sent = b""
    for _ in range(4):
        sent += near.data_to_send()
        near.receive(b"", 1.0)
    assert sent.count(words.yamux(words.YAMUX_PING, words.ACK, 0)) == 3


def test_answering_a_ping_quickly_does_not_make_a_far_peer_near() -> None:
    near, far = pair()
    near.queue_ping()
    far.receive(near.data_to_send(), 1.0)
    near.receive(far.data_to_send(), 1.1)
    grants = yamux_of(near).credit_grants_per_window
    assert grants > 2
    far.queue_ping()
    near.receive(far.data_to_send(), 1.2)
    near.data_to_send()
    assert yamux_of(near).credit_grants_per_window == grants
