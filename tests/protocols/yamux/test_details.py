"""Details of yamux that single vectors do not show: kinds, boundaries of headers, saved state."""

import pytest
from tests.attacks import raw_frames as words

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, PeerViolation, Unsupported
from polymux.core.frames import ABORTS, ACCEPTS, CONTENT, CONTROL, ENDS, GRANTS, OPENS, FrameHeader
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.protocol import NO_STREAM
from polymux.core.rules import rules_in_mask
from polymux.protocols.registry import BadProtocolString, create
from polymux.protocols.yamux.pings import Pings
from polymux.protocols.yamux.protocol import INITIAL_WINDOW, MAX_WINDOW, Yamux
from polymux.protocols.yamux.rules import frame_kinds, window_update_effect

UPDATE, DATA = words.YAMUX_UPDATE, words.YAMUX_DATA
PING, GO_AWAY = words.YAMUX_PING, words.YAMUX_GO_AWAY
SECOND = 10**9


def observed(*steps: tuple[int, bytes], text: str = "yamux", **limits: int) -> Observer:
    observer = Observer(create(text, Limits(**limits)))
    for at, (side, data) in enumerate(steps):
        observer.feed(side, data, at)
    return observer


def rules(observer: Observer) -> list[str]:
    return [v.rule.name.removeprefix("yamux.") for v in observer.take_violations()]


def yamux_of(observer: Observer) -> Yamux:
    assert isinstance(observer.protocol, Yamux)
    return observer.protocol


def test_kinds_are_named_after_type_and_flags() -> None:
    kinds = frame_kinds()
    assert len(kinds) == 64
    assert {number: kinds[number].name for number in (0, 1, 6, 16, 21, 31, 32, 33, 34, 48)} == {
        0: "Data", 1: "Data+SYN", 6: "Data+ACK+FIN", 16: "WindowUpdate",
        21: "WindowUpdate+SYN+FIN", 31: "WindowUpdate+SYN+ACK+FIN+RST", 32: "Ping+none",
        33: "Ping", 34: "Pong", 48: "GoAway",
    }  # fmt: skip
    assert [kinds[number].effect for number in (0, 15, 16, 17, 31, 32, 63)] == [
        CONTENT, CONTENT, GRANTS, OPENS, OPENS, CONTROL, CONTROL,
    ]  # fmt: skip
    assert [window_update_effect(flags) for flags in (0, 1, 2, 4, 6, 8, 14)] == [
        GRANTS, OPENS, ACCEPTS, ENDS, ACCEPTS, ABORTS, ABORTS,
    ]  # fmt: skip


def test_which_rules_depend_on_what_came_before() -> None:
    protocol = create("yamux")

    def names(mask: int) -> set[str]:
        return {rule.name.removeprefix("yamux.") for rule in rules_in_mask(protocol.rules, mask)}

    assert names(protocol.frame_rules) == {
        "bad-version", "bad-type", "unknown-flag", "frame-too-long", "stream-zero",
        "session-frame-on-stream", "goaway-code", "ping-flags", "syn-and-ack",
    }  # fmt: skip
    assert names(protocol.peer_dependent_rules) == {
        "id-parity", "id-reused", "id-recycled", "unknown-stream", "window-exceeded",
        "window-overflow", "pong-unrequested", "backlog",
    }  # fmt: skip
    assert names(protocol.history_dependent_rules) == {"ids-descending", "ack-unexpected"}


def test_a_frame_of_exactly_the_limit_is_accepted() -> None:
    opening = words.yamux(UPDATE, words.SYN, 1)
    for size, expected in ((100, []), (101, ["frame-too-long"])):
        observer = observed(
            (0, opening), (0, words.yamux(DATA, 0, 1, 0, bytes(size))), text="yamux:max_frame=100"
        )
        assert rules(observer) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01", "version 1 in place of 0"),
        (b"\x00\x04", "type 4 in place of 0 to 3"),
        (bytes([7]) + bytes(11), "version 7 in place of 0"),
        (bytes([0, 9]) + bytes(10), "type 9 in place of 0 to 3"),
    ],
)
def test_a_header_that_cannot_be_one_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(PeerViolation, match=reason):
        Endpoint(create("yamux", vantage=1), 1).receive(data, 1.0)


def test_the_beginning_of_a_header_is_waited_for() -> None:
    endpoint = Endpoint(create("yamux", vantage=1), 1)
    for byte in words.yamux(GO_AWAY, 0, 0):
        endpoint.receive(bytes([byte]), 1.0)
    assert isinstance(endpoint.protocol, Yamux)
    assert endpoint.protocol.go_away_code(0) == 0


def test_unknown_flags_are_noted_on_every_type() -> None:
    for kind, flags, number in ((GO_AWAY, 0x8000, 0), (UPDATE, 0x11, 1), (PING, 0x21, 0)):
        assert rules(observed((0, words.yamux(kind, flags, number)))) == ["unknown-flag"], kind


def test_ids_and_amounts_of_frames_that_are_sent_are_derived_from_key_and_kind() -> None:
    protocol = create("yamux")
    head = FrameHeader()
    found = {}
    for kind, key, amount in ((0, 3, 9), (16, 4, 9), (33, 0, MAX_WINDOW + 5), (48, 0, 2)):
        head.clear()
        head.kind, head.key, head.amount = kind, key, amount
        head.payload_size = head.credit_cost = 50
        protocol.resolve_ids(0, head)
        found[kind] = (head.stream_id, head.opener, head.amount, head.payload_size)
        assert head.credit_cost == head.payload_size
    assert found == {
        0: (3, 0, -1, 50),
        16: (4, 1, 9, 0),
        33: (0, NO_STREAM, 0, 0),
        48: (0, NO_STREAM, 2, 0),
    }


def test_an_empty_data_frame_is_no_write_after_fin() -> None:
    opening = (0, words.yamux(UPDATE, words.SYN | words.FIN, 1))
    for payload, expected in ((b"", []), (b"x", ["write-after-fin"])):
        assert rules(observed(opening, (0, words.yamux(DATA, 0, 1, 0, payload)))) == expected


def test_a_window_that_is_used_to_its_last_byte_is_not_exceeded() -> None:
    opening = (0, words.yamux(UPDATE, words.SYN, 1))
    for size, expected in ((INITIAL_WINDOW, []), (INITIAL_WINDOW + 1, ["window-exceeded"])):
        observer = observed(opening, (0, words.yamux(DATA, 0, 1, 0, bytes(size))))
        assert rules(observer) == expected


@pytest.mark.parametrize("side", [0, 1])
def test_streams_that_wait_for_their_ack_are_counted_for_each_side(side: int) -> None:
    ids = [1 + side, 3 + side, 5 + side]
    observer = observed(*[(side, words.yamux(UPDATE, words.SYN, number)) for number in ids])
    protocol = yamux_of(observer)
    assert (protocol.unacknowledged(side), protocol.unacknowledged(1 - side)) == (3, 0)
    observer.feed(1 - side, words.yamux(UPDATE, words.ACK, ids[0]), 4)
    assert protocol.unacknowledged(side) == 2
    observer.feed(1 - side, words.yamux(UPDATE, words.RST, ids[1]), 5)
    assert (protocol.unacknowledged(side), protocol.unacknowledged(1 - side)) == (1, 0)


@pytest.mark.parametrize("side", [0, 1])
def test_ids_that_descend_are_noted_for_each_side(side: int) -> None:
    ids = (5 + side, 3 + side, 7 + side)
    steps = [(side, words.yamux(UPDATE, words.SYN, number)) for number in ids]
    assert rules(observed(*steps)) == ["ids-descending"]


def test_a_name_of_one_byte_and_too_large_a_window_are_refused() -> None:
    endpoint = Endpoint(create("yamux", vantage=0), 0)
    with pytest.raises(Unsupported):
        endpoint.open(b"x")
    with pytest.raises(LocalProtocolError, match="at most 4294967295 bytes, not 4294967296"):
        endpoint.open(window=MAX_WINDOW + 1)
    assert endpoint.open(window=MAX_WINDOW).stream_id == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [(b"code 7", 7), (b"code 9999999999", MAX_WINDOW), (b"code 10000000000", 0),
     (b"code x", 0), (b"7", 0)],
)  # fmt: skip
def test_the_code_of_a_reset_is_a_number_of_32_bits(text: bytes, code: int) -> None:
    endpoint = Endpoint(create("yamux:dialect=libp2p", vantage=0), 0)
    stream = endpoint.open()
    endpoint.data_to_send()
    endpoint.abort(stream, text)
    assert endpoint.data_to_send() == words.yamux(UPDATE, words.RST, 1, code)


@pytest.mark.parametrize(("at", "dialect"), [(5 * SECOND - 1, "libp2p"), (5 * SECOND, "")])
def test_a_first_ping_shows_libp2p_for_five_seconds(at: int, dialect: str) -> None:
    for side in (0, 1):
        observer = Observer(create("yamux"))
        observer.feed(side, words.yamux(PING, words.SYN, 0, 1), 0)
        observer.feed(side, words.yamux(UPDATE, words.SYN, 1 + side), at)
        assert observer.protocol.dialect() == dialect


def test_an_empty_frame_after_go_away_shows_no_dialect() -> None:
    steps = [(0, words.yamux(UPDATE, words.SYN, 1)), (0, words.yamux(GO_AWAY, 0, 0))]
    for payload, dialect in ((b"", ""), (b"x", "hashicorp")):
        observer = observed(*steps, (0, words.yamux(DATA, 0, 1, 0, payload)))
        assert observer.protocol.dialect() == dialect


def test_round_trips_of_both_sides_add_up_between_them() -> None:
    pings = Pings({}, 10)
    assert pings.round_trip_ns() == -1
    pings.sent(1, 5, 0, 100)
    pings.answered(0 + 1, 5, 100)  # at once, where the answering side is observed
    assert pings.round_trip_ns() == 0
    pings.sent(0, 5, 0, 100)
    pings.answered(0, 5, 130)
    assert pings.round_trip_ns() == 30
    pings.sent(0, 6, 0, 200)
    pings.answered(0, 6, 250)
    assert pings.round_trip_ns() == 30  # the shortest
    assert pings.latest == [50, 0]


def test_a_restored_session_saves_what_the_original_saved() -> None:
    steps = [
        (0, words.yamux(PING, words.SYN, 0, 77)),
        (0, words.yamux(PING, words.SYN, 0, 77)),
        (1, words.yamux(PING, words.SYN, 0, 78)),
        *[(0, words.yamux(UPDATE, words.SYN, number)) for number in (1, 3, 5, 7)],
        *[(1, words.yamux(UPDATE, words.SYN, number)) for number in (2, 4, 10)],
        (1, words.yamux(UPDATE, words.ACK, 1)),
        (0, words.yamux(PING, words.ACK, 0, 78)),
        (0, words.yamux(GO_AWAY, 0, 0, 2)),
        (1, words.yamux(GO_AWAY, 0, 0, 1)),
    ]
    observer = observed(*steps)
    restored = Observer(create("yamux"))
    restored.restore(observer.snapshot())
    ours, theirs = yamux_of(observer), yamux_of(restored)
    assert theirs.save() == ours.save()
    for side, code, waiting in ((0, 2, 3), (1, 1, 3)):
        assert theirs.go_away_code(side) == code
        assert theirs.unacknowledged(side) == waiting
    late_answer = (1, words.yamux(PING, words.ACK, 0, 77))
    later = [
        (0, words.yamux(UPDATE, words.SYN, 3)),
        (1, words.yamux(UPDATE, words.SYN, 12)),
        (0, words.yamux(UPDATE, words.SYN, 6)),
        *[late_answer] * 3,
    ]
    for side, data in later:
        for each in (observer, restored):
            each.feed(side, data, 100)
    assert rules(restored) == rules(observer)
    assert theirs.save() == ours.save()


def test_options_of_a_protocol_string_reach_their_bounds() -> None:
    assert yamux_of(observed(text=f"yamux:window={MAX_WINDOW}")).receive_window == MAX_WINDOW
    with pytest.raises(BadProtocolString, match=f"window is at most {MAX_WINDOW}"):
        create(f"yamux:window={MAX_WINDOW + 1}")
    assert create("yamux:max_frame=1").max_frame_bytes == 1
    with pytest.raises(BadProtocolString, match="max_frame"):
        create("yamux:max_frame=0")


@pytest.mark.parametrize(("code", "error"), [(0, None), (1, b"code 1"), (7, b"code 7")])
def test_the_code_of_an_observed_reset_is_its_error(code: int, error: bytes | None) -> None:
    observer = observed(
        (0, words.yamux(UPDATE, words.SYN, 1)), (0, words.yamux(UPDATE, words.RST, 1, code))
    )
    (stream,) = observer.protocol.streams.all()
    assert stream.error == error


@pytest.mark.parametrize("code", [2, 3])
def test_only_a_code_beyond_the_three_of_the_spec_shows_libp2p(code: int) -> None:
    observer = observed((1, words.yamux(GO_AWAY, 0, 0, code)))
    assert observer.protocol.dialect() == ("libp2p" if code == 3 else "")


def test_content_of_the_accepting_side_shows_no_dialect_before_its_go_away() -> None:
    observer = observed(
        (0, words.yamux(UPDATE, words.SYN, 1)),
        (1, words.yamux(UPDATE, words.ACK, 1)),
        (1, words.yamux(DATA, 0, 1, 0, b"x")),
    )
    assert observer.protocol.dialect() == ""
