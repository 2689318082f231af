"""Edge cases that normal traffic does not reach: options, the last ids, exact limits."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from polymux.core.causality import Causality
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, NoFreeIds
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID
from polymux.core.side import Vantage
from polymux.core.varint import INCOMPLETE, INVALID, put_varu64
from polymux.protocols.minmux.item_codecs import MAX_PLAUSIBLE_SIZE, ItemDecoder, Prefixed
from polymux.protocols.mplex.protocol import MAX_ID, Mplex
from polymux.protocols.nerdbank.protocol import Nerdbank
from polymux.protocols.omnistreams.id_history import (
    MAX_TRACKED_REQUESTS,
    IdHistory,
    load_id_history,
)
from polymux.protocols.registry import BadProtocolString, create, parse_protocol, protocol_names

# Protocol strings

WRONG = [
    ("smtp", "choose one of mplex, nerdbank, omnistreams, streamux, minmux, yamux"),
    ("yamux:dialect=go", "dialect is hashicorp or libp2p, not 'go'"),
    ("yamux:window=262143", "window is at least 262144, not 262143"),
    ("yamux:window=4294967296", "window is at most 4294967295, not 4294967296"),
    ("yamux:max_frame=0", "max_frame"),
    ("mplex:ids=odd", "ids is parity or counting, not 'odd'"),
    ("mplex:max_frame=0", "max_frame"),
    ("mplex:window=5", "'window=5' is no option of mplex; it has ids, max_frame, preamble"),
    ("mplex:ids", "'ids' is no option of mplex"),
    ("nerdbank:version=4", "version is 1, 2 or 3, not 4"),
    ("nerdbank:version=0", "version"),
    ("nerdbank:window=0", "window"),
    ("nerdbank:version=2,seeded=500", "seeded channels exist in version 3 only"),
    ("nerdbank:seeded=500+0", "seeded"),
    ("omnistreams:numbering=roman", "numbering"),
    ("omnistreams:carrier=pigeon", "carrier"),
    ("streamux:id_bits=99", "id_bits"),
    ("streamux:timeout=x", "timeout"),
    ("mplex:max_frame=99999999999999999999", "max_frame is at most 1152921504606846976"),
    ("mplex:max_frame=1152921504606846977", "max_frame is at most"),
    ("nerdbank:version=99999999999999999999", "version is at most"),
    ("nerdbank:window=99999999999999999999", "window is at most"),
    ("nerdbank:seeded=500+99999999999999999999", "seeded is at most"),
    ("streamux:id_bits=99999999999999999999", "id_bits is at most"),
    ("streamux:length_bits=99999999999999999999", "length_bits is at most"),
    ("mplex:max_frame=" + "9" * 5000, "max_frame is a whole number"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_an_invalid_protocol_string_names_what_is_accepted(text: str, message: str) -> None:
    with pytest.raises(BadProtocolString) as caught:
        create(text)
    assert message in str(caught.value)


def test_options_reach_their_protocol() -> None:
    counting = create("mplex:ids=counting,max_frame=77")
    assert isinstance(counting, Mplex)
    assert counting.sequential_ids
    assert counting.max_frame_bytes == 77
    assert not create("mplex:ids=parity").sequential_ids  # type: ignore[attr-defined]  # it is an Mplex
    limits = Limits()
    three = create("nerdbank:window=5000,seeded=102400+500", limits)
    assert isinstance(three, Nerdbank)
    assert (three.major_version, three.seeded_windows, limits.receive_window) == (
        3,
        (102400, 500),
        5000,
    )
    one = create("nerdbank:window=1,seeded=1", limits)
    assert isinstance(one, Nerdbank)
    assert (one.seeded_windows, limits.receive_window) == ((1,), 1)
    assert str(parse_protocol("nerdbank: version=1 , window=7")) == "nerdbank:version=1,window=7"
    assert str(parse_protocol("mplex")) == "mplex"
    assert protocol_names() == ["mplex", "nerdbank", "omnistreams", "streamux", "minmux", "yamux"]


@pytest.mark.parametrize(("frame", "taken"), [(0, 65536), (1, 1), (70_000, 70_000)])
def test_nerdbank_frames_are_limited_as_asked_and_by_default(frame: int, taken: int) -> None:
    assert create("nerdbank", Limits(max_frame_bytes=frame)).max_frame_bytes == taken


# Ids


@pytest.mark.parametrize(("counting", "step"), [(False, 2), (True, 1)])
def test_the_last_mplex_id_is_the_last(counting: bool, step: int) -> None:
    protocol = create("mplex:ids=counting" if counting else "mplex", vantage=0)
    assert isinstance(protocol, Mplex)
    end = Endpoint(protocol, 0)
    first, second = end.open(b"x"), end.open(b"y")
    assert second.stream_id - first.stream_id == step
    protocol.next_dialer_id = MAX_ID
    assert end.open(b"z").stream_id == MAX_ID == 2**60 - 1
    with pytest.raises(NoFreeIds):
        end.open(b"none")


@pytest.mark.parametrize("text", ["nerdbank:version=1", "nerdbank:version=2", "streamux"])
def test_before_the_handshakes_have_met_there_is_no_id_to_open_with(text: str) -> None:
    protocol = create(text, vantage=0)
    with pytest.raises(LocalProtocolError, match="handshake has not arrived"):
        Endpoint(protocol, 0).open()
    assert protocol.allocate(0) == NO_ID


@pytest.mark.parametrize(("odd", "number"), [(0, 1), (1, 2)])
def test_the_odd_party_begins_with_one_and_the_other_with_two(odd: int, number: int) -> None:
    protocol = create("nerdbank:version=2", vantage=0)
    assert isinstance(protocol, Nerdbank)
    protocol.handshake_done = True
    protocol.odd_id_side = odd
    end = Endpoint(protocol, 0)
    assert [end.open(b"x").stream_id for _ in range(3)] == [number, number + 2, number + 4]


def test_offers_of_version_three_begin_behind_the_seeded_channels() -> None:
    end = Endpoint(create("nerdbank:seeded=500+600", vantage=0), 0)
    assert [end.open(b"x").stream_id for _ in range(2)] == [3, 4]


# Minmux items with a length prefix


@pytest.mark.parametrize(
    "length", [0, 1, 247, 248, 65536, MAX_PLAUSIBLE_SIZE - 1, MAX_PLAUSIBLE_SIZE]
)
def test_an_item_may_say_any_length_up_to_the_bound(length: int) -> None:
    out = BytesWriter()
    put_varu64(out, length)
    head = out.getvalue()
    codec = Prefixed()
    assert codec.measure(b"??" + head, 2, 2 + len(head)) == len(head) + length
    for cut in range(len(head)):
        assert codec.measure(head, 0, cut) == INCOMPLETE


@pytest.mark.parametrize("head", [b"\xff\x20" + bytes(6) + b"\x01", b"\xff" + b"\xff" * 8])
def test_no_item_is_longer_than_the_bound(head: bytes) -> None:
    assert Prefixed().measure(head, 0, 9) == INVALID


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_items_come_out_of_pieces_of_any_size(step: int) -> None:
    codec = Prefixed()
    wanted = [b"", b"a", b"bc" * 200, b"", b"d" * 9]
    data = b"".join(codec.encode(item) for item in wanted)
    items = ItemDecoder(codec, 500)
    found: list[bytes] = []
    for start in range(0, len(data), step):
        found += items.feed(memoryview(data)[start : start + step])
    assert found == wanted
    assert items.buffered_bytes == 0


def test_an_item_of_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    codec = Prefixed()
    assert ItemDecoder(codec, 11).feed(codec.encode(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(
        ValueError, match=r"more than 10 bytes; raise ItemDecoder\(max_item_bytes=...\)"
    ):
        ItemDecoder(codec, 10).feed(codec.encode(b"x" * 10))
    with pytest.raises(ValueError, match="no item can begin like this"):
        ItemDecoder(codec).feed(b"\xff" * 9)


# History of omnistreams ids


def test_requests_past_those_kept_are_added_to_the_newest() -> None:
    past = IdHistory()
    for ordinal in range(MAX_TRACKED_REQUESTS + 3):
        past.add_request(ordinal, 2)
    assert past.first_request_indexes == list(range(MAX_TRACKED_REQUESTS))
    assert past.last_request_indexes == [*range(MAX_TRACKED_REQUESTS - 1), MAX_TRACKED_REQUESTS + 2]
    assert past.amounts == [2] * (MAX_TRACKED_REQUESTS - 1) + [8]
    assert load_id_history(past.save()).save() == past.save()


def test_requests_that_were_paid_from_make_room_for_others() -> None:
    past, sight = IdHistory(), Causality(Vantage.MIDDLE)
    for ordinal in range(MAX_TRACKED_REQUESTS):
        past.add_request(ordinal, 3)
    for _ in range(MAX_TRACKED_REQUESTS):
        assert past.use_next_request(0, sight) == 3
    assert past.use_next_request(0, sight) == 0
    assert (past.entries_used, len(past.amounts)) == (MAX_TRACKED_REQUESTS, MAX_TRACKED_REQUESTS)
    past.add_request(1000, 7)  # used entries do not count
    assert past.use_next_request(0, sight) == 7
    assert (past.entries_used, past.first_request_indexes, past.amounts) == (1, [1000], [7])
    assert past.use_next_request(0, sight) == 0
