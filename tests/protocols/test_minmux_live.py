"""A live side of Minmux: what it sends, what it refuses, and what it does about a bad peer."""

from pathlib import Path

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, NoFreeIds, PeerViolation, StreamEnded
from polymux.core.events import Closed, Control, Credit, Data, Ended, Event, Opened
from polymux.core.limits import Limits
from polymux.protocols.minmux import Minmux
from polymux.protocols.minmux_items import Codec, Fixed, Prefixed, Sized
from polymux.protocols.minmux_packets import (
    MOST,
    OOPS,
    PROMISE_READ,
    forgo_credit,
    give_credit,
    oops,
    promise_read,
    promise_write,
    stop_read,
    stop_write,
    write,
)
from polymux.protocols.minmux_profile import Profile, plain_profile
from polymux.protocols.registry import create

DIALER, ACCEPTOR = 0, 1
SHAPES = Path(__file__).parent.parent / "vectors" / "minmux" / "shapes.toml"


class Pair:
    """Two endpoints and a link that delivers when asked. The dialer reads even streams."""

    def __init__(self, profile: Profile | None = None, yielding: bool = True) -> None:
        self.profile = profile if profile is not None else plain_profile()
        books = [Minmux(Limits(), side, self.profile, True, yielding) for side in (0, 1)]
        self.books = books
        self.dialer, self.acceptor = (Endpoint(book, side) for side, book in enumerate(books))

    def pass_on(self) -> tuple[list[Event], list[Event]]:
        """Everything that waits goes over: what the dialer and the acceptor saw."""
        seen: tuple[list[Event], list[Event]] = ([], [])
        while True:
            there, back = self.dialer.data_to_send(), self.acceptor.data_to_send()
            if not there and not back:
                return seen
            for end, data, events in ((self.acceptor, there, seen[1]), (self.dialer, back, seen[0])):
                if data:
                    came = end.receive(data, 0.0)
                    events += came
                    for event in came:
                        if isinstance(event, Credit) and event.stream is not None:
                            end.resume(event.stream)


def profile_of(items: Codec, last: Codec | None = None, endless: bool = False) -> Profile:
    profile = Profile()
    profile.assign(0, items, last, endless)
    return profile


def content(events: list[Event]) -> list[bytes]:
    return [bytes(event.data) for event in events if isinstance(event, Data)]


def test_items_wait_for_credit_and_leave_within_it() -> None:
    pair = Pair()
    stream = pair.books[1].reach(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"hello")
    assert pair.acceptor.data_to_send() == b""
    pair.dialer.put(give_credit(0, 3))
    seen = pair.pass_on()
    assert content(seen[0]) == [b"hel"]
    assert [type(event) for event in seen[1]] == [Opened, Credit]
    pair.dialer.put(give_credit(0, 9))
    assert content(pair.pass_on()[0]) == [b"lo"]
    assert pair.books[0].held(stream) == pair.books[1].held(stream) == 7


def test_content_is_cut_between_items() -> None:
    pair = Pair(profile_of(Fixed(4)))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"aaaabbbbcccc")
    pair.dialer.put(give_credit(0, 2))
    assert content(pair.pass_on()[0]) == [b"aaaabbbb"]
    pair.dialer.put(give_credit(0, 2))
    assert content(pair.pass_on()[0]) == [b"cccc"]
    assert stream.acceptor.units == 3
    assert stream.acceptor.octets == 12


def test_items_with_a_length_are_cut_between_items_too() -> None:
    pair = Pair(profile_of(Prefixed()))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    codec = Prefixed()
    pair.acceptor.send(stream, codec.encode(b"one") + codec.encode(b"") + codec.encode(b"three"))
    pair.dialer.put(give_credit(0, 2))
    assert b"".join(content(pair.pass_on()[0])) == b"\x03one\x00"
    pair.dialer.put(give_credit(0, 1))
    assert b"".join(content(pair.pass_on()[0])) == b"\x05three"


def test_items_that_size_themselves_are_cut_between_items_too() -> None:
    def line(data: bytes, pos: int, end: int) -> int:
        return data.find(b"\n", pos, end) - pos + 1 if b"\n" in data[pos:end] else 0

    pair = Pair(profile_of(Sized(line), Sized(line)))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"one\ntwo\n")
    pair.acceptor.put(pair.books[1].finishing(ACCEPTOR, stream))
    pair.acceptor.send(stream, b"bye\n")
    pair.dialer.put(give_credit(0, 1))
    assert b"".join(content(pair.pass_on()[0])) == b"one\n"
    pair.dialer.put(give_credit(0, 1))
    assert b"".join(content(pair.pass_on()[0])) == b"two\nbye\n"
    assert pair.books[0].last_item_at(pair.books[0].streams.all()[0]) == 8


def test_an_item_larger_than_a_turn_leaves_whole() -> None:
    pair = Pair(profile_of(Fixed(200_000)))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    pair.acceptor.send(stream, bytes(600_000))
    pair.dialer.put(give_credit(0, MOST))
    assert sum(len(part) for part in content(pair.pass_on()[0])) == 600_000
    assert stream.acceptor.frames == 3


def test_a_huge_credit_cuts_nothing_short() -> None:
    for profile in (plain_profile(), profile_of(Prefixed())):
        pair = Pair(profile)
        stream = pair.books[1].reach(ACCEPTOR, 0)
        pair.acceptor.send(stream, b"\x04quux")
        pair.dialer.put(give_credit(0, MOST))
        assert b"".join(content(pair.pass_on()[0])) == b"\x04quux"


def test_the_end_of_what_is_queued_is_announced_and_the_last_item_follows_without_credit() -> None:
    pair = Pair(profile_of(Fixed(2), Fixed(3)))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"aabbcc")
    pair.acceptor.put(pair.books[1].finishing(ACCEPTOR, stream))
    pair.acceptor.send(stream, b"end")
    pair.dialer.put(give_credit(0, 3))
    seen = pair.pass_on()[0]
    assert b"".join(content(seen)) == b"aabbccend"
    assert [type(event) for event in seen if not isinstance(event, Data)] == [Control, Ended]
    mine = pair.books[0].streams.all()[0]
    assert pair.books[0].last_item_at(mine) == 6
    assert mine.acceptor.units == 3
    with pytest.raises(StreamEnded):
        pair.acceptor.send(stream, b"dd")


def test_end_stops_writing_after_what_is_queued() -> None:
    pair = Pair()
    stream = pair.books[1].reach(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"ab")
    pair.acceptor.end(stream)
    pair.dialer.put(give_credit(0, 5))
    seen = pair.pass_on()[0]
    assert content(seen) == [b"ab"]
    assert isinstance(seen[-1], Ended)
    theirs = pair.books[0].streams.all()[0]
    pair.dialer.end(theirs)
    seen = pair.pass_on()[1]
    assert [type(event) for event in seen] == [Control, Ended, Closed]


def test_content_that_could_never_leave_is_refused_at_once() -> None:
    pair = Pair(profile_of(Fixed(2), Fixed(3)))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    with pytest.raises(LocalProtocolError, match="no whole items"):
        pair.acceptor.send(stream, b"abc")
    pair.acceptor.send(stream, b"aa")
    pair.acceptor.put(stop_write(0, 2))
    with pytest.raises(LocalProtocolError, match="1 more items, not 2"):
        pair.acceptor.send(stream, b"bbcc")
    pair.acceptor.send(stream, b"bb")
    with pytest.raises(LocalProtocolError, match="not the last item"):
        pair.acceptor.send(stream, b"cc")
    pair.acceptor.send(stream, b"end")
    with pytest.raises(LocalProtocolError, match="nothing more can follow"):
        pair.acceptor.send(stream, b"end")
    mine = pair.books[0].reach(DIALER, 0)
    with pytest.raises(LocalProtocolError, match="is written by the acceptor"):
        pair.dialer.send(mine, b"aa")


def test_the_same_holds_for_items_with_a_length() -> None:
    pair = Pair(profile_of(Prefixed(), Prefixed()))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    for octets in (b"\x05abc", b"\xf8\x01a", b"\xfa\x01\x00\x01" + bytes(65537)):
        with pytest.raises(LocalProtocolError, match="no whole items"):
            pair.acceptor.send(stream, octets)
    pair.acceptor.send(stream, b"\x01a\x01b")
    pair.acceptor.put(stop_write(0, 3))
    pair.acceptor.send(stream, b"\x01c")
    pair.acceptor.send(stream, b"\x03end")
    with pytest.raises(LocalProtocolError, match="nothing more can follow"):
        pair.acceptor.send(stream, b"\x03end")


@pytest.mark.parametrize(
    ("side", "frame", "rule"),
    [
        (ACCEPTOR, write(0, b"a", 1), "credit-exceeded"),
        (ACCEPTOR, forgo_credit(0, 1), "forgo-exceeds-credit"),
        (DIALER, write(0, b"a", 1), "unassigned-stream"),
        (ACCEPTOR, give_credit(0, 1), "unassigned-stream"),
        (DIALER, give_credit(2, 1), "unassigned-stream"),
        (DIALER, give_credit(0, 0), "varint-overflow"),
        (DIALER, give_credit(0, MOST + 1), "varint-overflow"),
        (DIALER, stop_read(0, -1), "varint-overflow"),
        (DIALER, stop_read(0, MOST + 1), "varint-overflow"),
        (ACCEPTOR, write(0, b"ab", 1), "bad-item"),
        (ACCEPTOR, stop_write(0), "endless-stream-stopped"),
    ],
)
def test_what_breaks_a_rule_is_not_sent(side: int, frame: object, rule: str) -> None:
    pair = Pair(profile_of(Fixed(1), endless=True))
    end = (pair.dialer, pair.acceptor)[side]
    with pytest.raises(LocalProtocolError, match=f"minmux.{rule}"):
        end.put(frame)  # type: ignore[arg-type]  # parametrised
    assert end.data_to_send() == b""


def test_limits_bind_their_own_side() -> None:
    pair = Pair()
    pair.dialer.put(stop_read(0, 5))
    pair.dialer.put(give_credit(0, 3))
    with pytest.raises(LocalProtocolError, match="credit-past-limit on a0: GiveCredit of 3: 2 more"):
        pair.dialer.put(give_credit(0, 3))
    with pytest.raises(LocalProtocolError, match="limit-raised"):
        pair.dialer.put(stop_read(0, 3))
    stream = pair.books[0].reach(DIALER, 0)
    frame = pair.books[0].granting(DIALER, stream, 100)
    assert frame is not None
    assert frame.amount == 2
    pair.dialer.put(frame)
    assert pair.books[0].granting(DIALER, stream, 1) is None
    pair.pass_on()
    pair.acceptor.put(stop_write(0, 1))
    pair.acceptor.put(write(0, b"a", 1))
    with pytest.raises(LocalProtocolError, match="write-past-limit"):
        pair.acceptor.put(write(0, b"a", 1))


@pytest.mark.parametrize(
    ("octets", "rule"),
    [
        ("0000 61", "credit-exceeded"),
        ("00 fffffffffffffffffe", "credit-exceeded"),
        ("8000", "forgo-exceeds-credit"),
        ("4001 4002", "limit-raised"),
        ("4000 0000 61", "write-past-limit"),
        ("01 fffffffffffffffffe 0100", "credit-overflow"),
        ("4100 0100", "credit-past-limit"),
        ("40 f800", "varint-noncanonical"),
        ("01 ffffffffffffffffff", "varint-overflow"),
    ],
)
def test_a_peer_that_breaks_a_rule_ends_the_session_by_its_name(octets: str, rule: str) -> None:
    pair = Pair()
    with pytest.raises(PeerViolation, match=f"minmux.{rule}"):
        pair.dialer.receive(bytes.fromhex(octets), 0.0)
    assert content(pair.dialer.inbox.events) == []


def test_an_item_over_the_limit_ends_the_session_before_it_is_taken() -> None:
    pair = Pair(profile_of(Prefixed()))
    pair.dialer.put(give_credit(0, 10))
    with pytest.raises(PeerViolation, match="item-too-long"):
        pair.dialer.receive(bytes.fromhex("0001 0161 fa010001 6162"), 0.0)
    assert content(pair.dialer.inbox.events) == [b"\x01a"]


def test_an_item_that_its_codec_refuses_ends_the_session() -> None:
    def odd(data: bytes, pos: int, end: int) -> int:
        if data[pos] == 0xFF:
            raise ValueError
        return 2

    pair = Pair(profile_of(Sized(odd)))
    pair.dialer.put(give_credit(0, 10))
    with pytest.raises(PeerViolation, match="bad-item"):
        pair.dialer.receive(bytes.fromhex("0001 6161 ff61"), 0.0)


def test_an_item_whose_end_never_shows_is_given_up_at_the_limit() -> None:
    pair = Pair(profile_of(Sized(lambda data, pos, end: 0)))
    pair.dialer.put(give_credit(0, 10))
    pair.dialer.receive(b"\x00\x00" + bytes(60_000), 0.0)
    with pytest.raises(PeerViolation, match="item-too-long"):
        pair.dialer.receive(bytes(6_000), 0.0)


def test_an_oops_is_answered_with_the_credit_above_it_and_drops_nothing() -> None:
    pair = Pair()
    pair.dialer.put(give_credit(0, 100))
    pair.pass_on()
    stream = pair.books[1].streams.all()[0]
    pair.acceptor.send(stream, b"hello")
    pair.dialer.put(oops(0, 10))
    heard = pair.acceptor.receive(pair.dialer.data_to_send(), 0.0)
    assert [e.amount for e in heard if isinstance(e, Control) and e.kind == OOPS] == [10]
    assert content(pair.pass_on()[0]) == [b"hello"]
    assert pair.books[0].held(pair.books[0].streams.all()[0]) == 5
    assert pair.books[1].held(stream) == 5
    assert pair.books[1].duties == {}
    pair.dialer.put(oops(0, 0))
    pair.pass_on()
    assert pair.books[1].held(stream) == 0


def test_an_oops_can_be_left_unanswered() -> None:
    pair = Pair(yielding=False)
    pair.dialer.put(give_credit(0, 100))
    pair.dialer.put(oops(0, 10))
    pair.pass_on()
    assert pair.books[1].held(pair.books[1].streams.all()[0]) == 100


def test_credit_that_may_never_come_back_is_kept_while_items_wait_for_it() -> None:
    pair = Pair()
    pair.dialer.put(stop_read(0, 5))
    pair.dialer.put(give_credit(0, 5))
    stream = pair.books[1].reach(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"hello")
    pair.dialer.put(oops(0, 0))
    assert b"".join(content(pair.pass_on()[0])) == b"hello"
    assert pair.books[1].duties == {}


def test_an_oops_about_nothing_owes_nothing() -> None:
    pair = Pair()
    for number in range(0, 40, 2):
        pair.dialer.put(oops(number, 0))
    pair.pass_on()
    assert pair.books[1].duties == {}
    assert pair.books[1].wishes == {}


def test_promises_are_hints() -> None:
    pair = Pair()
    pair.dialer.put(promise_read(0, MOST))
    pair.acceptor.put(promise_write(0, 7))
    seen = pair.pass_on()
    hints = [event for event in seen[1] if isinstance(event, Control)]
    assert [(event.kind, event.amount) for event in hints] == [(PROMISE_READ, MOST)]
    assert pair.books[1].held(pair.books[1].streams.all()[0]) == 0


def test_giving_a_stream_up_is_a_limit_of_nothing() -> None:
    pair = Pair()
    pair.dialer.put(give_credit(0, 100))
    pair.pass_on()
    writing, reading = pair.books[1].streams.all()[0], pair.books[0].streams.all()[0]
    pair.acceptor.send(writing, b"never mind")
    pair.acceptor.abort(writing)
    pair.dialer.abort(reading)
    seen = pair.pass_on()
    assert content(seen[0]) == []
    assert writing.over
    assert reading.over
    assert pair.books[0].ending(reading) == "clean"


def test_reading_gives_credit_back_within_the_limits() -> None:
    pair = Pair()
    pair.dialer.put(give_credit(0, 10))
    pair.pass_on()
    reading, writing = pair.books[0].streams.all()[0], pair.books[1].streams.all()[0]
    assert reading.lane is not None
    reading.lane.window = 10
    pair.acceptor.send(writing, bytes(100))
    given = 10
    for _ in range(30):
        got = sum(len(part) for part in content(pair.pass_on()[0]))
        if got:
            pair.dialer.read(reading, got)
            given += got
    assert reading.acceptor.octets == 100
    assert reading.acceptor.granted <= given


def test_ids_are_found_and_run_out() -> None:
    named = Profile()
    for number in (0, 1, 3, MOST):
        named.assign(number, Fixed(1))
    pair = Pair(named)
    assert [pair.dialer.open().label() for _ in range(2)] == ["d1", "d3"]
    with pytest.raises(NoFreeIds):
        pair.dialer.open()
    assert pair.books[0].reach(DIALER, MOST).label() == "d18446744073709551615"
    plain = Pair()
    assert [plain.dialer.open().label() for _ in range(3)] == ["d1", "d3", "d5"]
    assert [plain.acceptor.open().label() for _ in range(2)] == ["a0", "a2"]
    plain.dialer.put(give_credit(4, 1))
    plain.pass_on()
    assert plain.acceptor.open().label() == "a6"
    with pytest.raises(ValueError, match="not assigned"):
        pair.books[0].reach(DIALER, 2)


def test_an_id_is_used_again_where_the_profile_says_so() -> None:
    profile = Profile(reuse=True)
    profile.assign(0, Fixed(1))
    pair = Pair(profile)
    for use in range(1, 4):
        stream = pair.books[1].reach(ACCEPTOR, 0)
        pair.acceptor.send(stream, b"use %d" % use)
        pair.acceptor.end(stream)
        pair.dialer.put(give_credit(0, 5))
        assert b"".join(content(pair.pass_on()[0])) == b"use %d" % use
        pair.dialer.put(stop_read(0))
        pair.pass_on()
        assert stream.over
        assert stream.incarnation == use


def test_the_profile_of_a_string_serves_both_ends() -> None:
    ends = [Endpoint(create(f"minmux:profile={SHAPES}", vantage=side), side) for side in (0, 1)]
    ends[0].put(give_credit(2, 1))
    ends[1].receive(ends[0].data_to_send(), 0.0)
    ends[1].put(write(2, b"abcd", 1))
    assert content(ends[0].receive(ends[1].data_to_send(), 0.0)) == [b"abcd"]
