"""The model peers: their bytes are valid, and their expectations detect wrong reports."""

import pytest

from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.side import Vantage
from polymux.testing import MODELS
from polymux.testing.models.base import ModelConversation
from polymux.testing.models.minmux import encode_header, encode_varu64
from polymux.testing.models.mplex import encode_uvarint
from polymux.testing.models.nerdbank_wire import (
    CODES,
    encode_frame,
    encode_handshake,
    encode_payload,
)


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (247, "f7"), (248, "f8f8"), (256, "f90100"), (65536, "fa010000"),
     (2**64 - 1, "ff" + "ff" * 8)],
)  # fmt: skip
def test_numbers_of_minmux_are_written_as_varu64(value: int, data: str) -> None:
    assert encode_varu64(value).hex() == data


def test_ids_of_minmux_above_62_follow_the_header() -> None:
    assert encode_header(0, 62).hex() == "3e"
    assert encode_header(2, 63).hex() == "bf00"
    assert encode_header(1, 311).hex() == "7ff8f8"


def test_numbers_of_mplex_are_unsigned_varints() -> None:
    assert encode_uvarint(77 * 8 + 2).hex() == "ea04"
    assert encode_uvarint(127).hex() == "7f"


def test_frames_of_nerdbank_are_those_seen_on_the_wire() -> None:
    offer = encode_payload(3, "offer", 102400, b"echo")
    assert (
        encode_frame(3, CODES["offer"], 1, 1, offer).hex() == "94000101c40b92a46563686fce00019000"
    )
    assert encode_frame(
        2, CODES["processed"], 2, 0, encode_payload(2, "processed", 20480, b"")
    ).hex() == ("930502c40491cd5000")
    assert encode_frame(1, CODES["offer"], 1, 0, encode_payload(1, "offer", 0, b"echo")).hex() == (
        "000000000100046563686f"
    )
    assert encode_frame(3, CODES["terminate"], 1, -1, b"").hex() == "930401ff"
    assert encode_handshake(2, bytes(16)).hex() == "92920200c410" + "00" * 16


@pytest.mark.parametrize("protocol", sorted(MODELS))
def test_a_seed_makes_the_same_conversation_every_time(protocol: str) -> None:
    one, other = (ModelConversation(MODELS[protocol], 7) for _ in range(2))
    assert one.traces["middle"].chunks == other.traces["middle"].chunks


@pytest.mark.parametrize("protocol", ["mplex", "streamux", "omnistreams"])
def test_an_observer_with_the_wrong_vantage_reports_honest_peers(protocol: str) -> None:
    reported = 0
    for seed in range(200):
        conversation = ModelConversation(MODELS[protocol], seed)
        observer = Observer(conversation.model.observer_protocol(Vantage.DIALER))
        for side, data in conversation.traces["middle"].chunks:
            observer.feed(side, data, 0)
        found = observer.take_violations()
        reported += any(v.rule.severity is not Severity.NOTE for v in found)
    assert reported > 0


@pytest.mark.parametrize("protocol", sorted(MODELS))
def test_frames_cross_in_flight(protocol: str) -> None:
    crossed = 0
    for seed in range(20):
        conversation = ModelConversation(MODELS[protocol], seed)
        sent = [0, 0]
        for packet in conversation.traces["middle"].passed_frames:
            crossed += packet.index >= 0 and packet.peer_frames_read < sent[1 - packet.sender]
            sent[packet.sender] += packet.index >= 0
    assert crossed > 20
