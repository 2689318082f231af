"""A live side of Minmux: how items are sent, ended and rejected."""

from pathlib import Path

import pytest
from tests.protocols.minmux.endpoint_pair import ACCEPTOR, DIALER, Pair, content, profile_of

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, NoFreeIds, StreamEnded
from polymux.core.events import Closed, Control, Credit, Data, Ended, Opened
from polymux.protocols.minmux.item_codecs import Fixed, Prefixed, Sized
from polymux.protocols.minmux.packets import (
    U64_MAX,
    give_credit,
    oops,
    stop_read,
    stop_write,
    write,
)
from polymux.protocols.minmux.profile import Profile, StreamFormat, byte_profile
from polymux.protocols.registry import create

SHAPES = Path(__file__).parent.parent.parent / "vectors" / "minmux" / "shapes.toml"


def test_items_wait_for_credit_and_are_sent_within_it() -> None:
    pair = Pair()
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"hello")
    assert pair.acceptor.data_to_send() == b""
    pair.dialer.send_frame(give_credit(0, 3))
    seen = pair.pass_on()
    assert content(seen[0]) == [b"hel"]
    assert [type(event) for event in seen[1]] == [Opened, Credit]
    pair.dialer.send_frame(give_credit(0, 9))
    assert content(pair.pass_on()[0]) == [b"lo"]
    assert (
        pair.implementations[0].writer_credit(stream)
        == pair.implementations[1].writer_credit(stream)
        == 7
    )


def test_content_is_cut_between_items() -> None:
    pair = Pair(profile_of(Fixed(4)))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"aaaabbbbcccc")
    pair.dialer.send_frame(give_credit(0, 2))
    assert content(pair.pass_on()[0]) == [b"aaaabbbb"]
    pair.dialer.send_frame(give_credit(0, 2))
    assert content(pair.pass_on()[0]) == [b"cccc"]
    assert stream.acceptor.content_units == 3
    assert stream.acceptor.content_bytes == 12


def test_items_with_a_length_are_cut_between_items_too() -> None:
    pair = Pair(profile_of(Prefixed()))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    codec = Prefixed()
    pair.acceptor.send(stream, codec.encode(b"one") + codec.encode(b"") + codec.encode(b"three"))
    pair.dialer.send_frame(give_credit(0, 2))
    assert b"".join(content(pair.pass_on()[0])) == b"\x03one\x00"
    pair.dialer.send_frame(give_credit(0, 1))
    assert b"".join(content(pair.pass_on()[0])) == b"\x05three"


def test_items_that_size_themselves_are_cut_between_items_too() -> None:
    def line(data: bytes, pos: int, end: int) -> int:
        return data.find(b"\n", pos, end) - pos + 1 if b"\n" in data[pos:end] else 0

    pair = Pair(profile_of(Sized(line), Sized(line)))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"one\ntwo\n")
    pair.acceptor.send_frame(pair.implementations[1].stop_write_frame(ACCEPTOR, stream))
    pair.acceptor.send(stream, b"bye\n")
    pair.dialer.send_frame(give_credit(0, 1))
    assert b"".join(content(pair.pass_on()[0])) == b"one\n"
    pair.dialer.send_frame(give_credit(0, 1))
    assert b"".join(content(pair.pass_on()[0])) == b"two\nbye\n"
    assert pair.implementations[0].last_item_offset(pair.implementations[0].streams.all()[0]) == 8


def test_an_item_larger_than_a_quantum_is_not_split() -> None:
    pair = Pair(profile_of(Fixed(200_000)))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.acceptor.send(stream, bytes(600_000))
    pair.dialer.send_frame(give_credit(0, U64_MAX))
    assert sum(len(part) for part in content(pair.pass_on()[0])) == 600_000
    assert stream.acceptor.frames == 3


def test_a_huge_credit_cuts_nothing_short() -> None:
    for profile in (byte_profile(), profile_of(Prefixed())):
        pair = Pair(profile)
        stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
        pair.acceptor.send(stream, b"\x04quux")
        pair.dialer.send_frame(give_credit(0, U64_MAX))
        assert b"".join(content(pair.pass_on()[0])) == b"\x04quux"


def test_the_end_of_what_is_queued_is_announced_and_the_last_item_follows_without_credit() -> None:
    pair = Pair(profile_of(Fixed(2), Fixed(3)))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"aabbcc")
    pair.acceptor.send_frame(pair.implementations[1].stop_write_frame(ACCEPTOR, stream))
    pair.acceptor.send(stream, b"end")
    pair.dialer.send_frame(give_credit(0, 3))
    seen = pair.pass_on()[0]
    assert b"".join(content(seen)) == b"aabbccend"
    assert [type(event) for event in seen if not isinstance(event, Data)] == [Control, Ended]
    mine = pair.implementations[0].streams.all()[0]
    assert pair.implementations[0].last_item_offset(mine) == 6
    assert mine.acceptor.content_units == 3
    with pytest.raises(StreamEnded):
        pair.acceptor.send(stream, b"dd")


def test_end_stops_writing_after_what_is_queued() -> None:
    pair = Pair()
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"ab")
    pair.acceptor.end(stream)
    pair.dialer.send_frame(give_credit(0, 5))
    seen = pair.pass_on()[0]
    assert content(seen) == [b"ab"]
    assert isinstance(seen[-1], Ended)
    theirs = pair.implementations[0].streams.all()[0]
    pair.dialer.end(theirs)
    seen = pair.pass_on()[1]
    assert [type(event) for event in seen] == [Control, Ended, Closed]


def test_content_that_could_never_be_sent_is_rejected_at_once() -> None:
    pair = Pair(profile_of(Fixed(2), Fixed(3)))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    with pytest.raises(LocalProtocolError, match="no whole items"):
        pair.acceptor.send(stream, b"abc")
    pair.acceptor.send(stream, b"aa")
    pair.acceptor.send_frame(stop_write(0, 2))
    with pytest.raises(LocalProtocolError, match="1 more items, not 2"):
        pair.acceptor.send(stream, b"bbcc")
    pair.acceptor.send(stream, b"bb")
    with pytest.raises(LocalProtocolError, match="not the last item"):
        pair.acceptor.send(stream, b"cc")
    pair.acceptor.send(stream, b"end")
    with pytest.raises(LocalProtocolError, match="nothing more can follow"):
        pair.acceptor.send(stream, b"end")
    mine = pair.implementations[0].get_stream(DIALER, 0)
    with pytest.raises(LocalProtocolError, match="is written by the acceptor"):
        pair.dialer.send(mine, b"aa")


def test_the_same_holds_for_items_with_a_length() -> None:
    pair = Pair(profile_of(Prefixed(), Prefixed()))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    for data in (b"\x05abc", b"\xf8\x01a", b"\xfa\x01\x00\x01" + bytes(65537)):
        with pytest.raises(LocalProtocolError, match="no whole items"):
            pair.acceptor.send(stream, data)
    pair.acceptor.send(stream, b"\x01a\x01b")
    pair.acceptor.send_frame(stop_write(0, 3))
    pair.acceptor.send(stream, b"\x01c")
    pair.acceptor.send(stream, b"\x03end")
    with pytest.raises(LocalProtocolError, match="nothing more can follow"):
        pair.acceptor.send(stream, b"\x03end")


def test_a_stop_without_an_amount_is_a_stop_at_once() -> None:
    assert (stop_read(0).amount, stop_write(1).amount, oops(0).amount) == (0, 0, 0)


def test_items_without_bytes_are_put_and_counted() -> None:
    profile = Profile(StreamFormat(0, 0))
    pair = Pair(profile)
    for _ in range(2):
        pair.dialer.send_frame(give_credit(0, U64_MAX))
        pair.pass_on()
        pair.acceptor.send_frame(write(0, b"", U64_MAX))
        pair.pass_on()
    for protocol in pair.implementations:
        half = protocol.streams.all()[0].acceptor
        assert (half.content_units, half.content_bytes, half.credit_spent) == (
            2**63 - 1,
            0,
            2 * U64_MAX,
        )
    with pytest.raises(LocalProtocolError, match="no whole items"):
        pair.acceptor.send(pair.implementations[1].streams.all()[0], b"a")


def test_ids_are_found_and_run_out() -> None:
    named = Profile()
    for number in (0, 1, 3, U64_MAX):
        named.assign(number, Fixed(1))
    pair = Pair(named)
    assert [pair.dialer.open().label() for _ in range(2)] == ["d1", "d3"]
    with pytest.raises(NoFreeIds):
        pair.dialer.open()
    assert pair.implementations[0].get_stream(DIALER, U64_MAX).label() == "d18446744073709551615"
    plain = Pair()
    assert [plain.dialer.open().label() for _ in range(3)] == ["d1", "d3", "d5"]
    assert [plain.acceptor.open().label() for _ in range(2)] == ["a0", "a2"]
    plain.dialer.send_frame(give_credit(4, 1))
    plain.pass_on()
    assert plain.acceptor.open().label() == "a6"
    with pytest.raises(ValueError, match="not assigned"):
        pair.implementations[0].get_stream(DIALER, 2)


def test_an_id_is_used_again_where_the_profile_says_so() -> None:
    profile = Profile(reuse=True)
    profile.assign(0, Fixed(1))
    pair = Pair(profile)
    for use in range(1, 4):
        stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
        pair.acceptor.send(stream, b"use %d" % use)
        pair.acceptor.end(stream)
        pair.dialer.send_frame(give_credit(0, 5))
        assert b"".join(content(pair.pass_on()[0])) == b"use %d" % use
        pair.dialer.send_frame(stop_read(0))
        pair.pass_on()
        assert stream.over
        assert stream.incarnation == use


def test_the_profile_of_a_string_serves_both_ends() -> None:
    ends = [Endpoint(create(f"minmux:profile={SHAPES}", vantage=side), side) for side in (0, 1)]
    ends[0].send_frame(give_credit(2, 1))
    ends[1].receive(ends[0].data_to_send(), 0.0)
    ends[1].send_frame(write(2, b"abcd", 1))
    assert content(ends[0].receive(ends[1].data_to_send(), 0.0)) == [b"abcd"]


def test_many_pieces_are_held_to_an_announced_limit_together() -> None:
    pair = Pair()
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.dialer.send_frame(give_credit(0, 100))
    pair.pass_on()
    pair.acceptor.send_frame(stop_write(0, 5))
    before = pair.acceptor.scheduler.ready_bytes
    with pytest.raises(LocalProtocolError, match="has announced 2 more items, not 3"):
        pair.acceptor.send_many(stream, [b"abc", b"def"])
    assert pair.acceptor.scheduler.ready_bytes == before
    pair.acceptor.send_many(stream, [b"abc", b"de"])
    assert b"".join(content(pair.pass_on()[0])) == b"abcde"
