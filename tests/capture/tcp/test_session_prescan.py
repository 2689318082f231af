"""What is learnt of sessions while their packets are put in order: the same as afterwards."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture.capture_builder import MS
from tests.capture.conftest import in_memory
from tests.capture.tcp.test_fast_packets import packets, references

from polymux.capture.packets.packet_refs import ACK, SYN
from polymux.capture.tcp.flow_order import FlowOrder
from polymux.capture.tcp.session_prescan import SessionPrescan

Made = list[tuple[int, int, int, int, int, int, int, int]]
FACTS = (
    "packets",
    "first_at",
    "last_at",
    "syn_direction",
    "syn_ack_direction",
    "first_payload_direction",
    "hint_block",
    "hint_index",
    "files",
    "disordered",
)


def facts(survey: SessionPrescan) -> list[object]:
    return [*(getattr(survey, name) for name in FACTS), *survey.segment_bytes]


def arranged(*files: tuple[bytes, bytes]) -> FlowOrder:
    flow = FlowOrder()
    for both in files:
        flow.add_file([(in_memory(both[0]), in_memory(both[1]))])
    flow.arrange()
    return flow


def check(flow: FlowOrder) -> None:
    assert len(flow.prescans) == len(flow.session_starts)
    assert sum(int(survey.packets) for survey in flow.prescans) == flow.count
    for number, survey in enumerate(flow.prescans):
        assert facts(survey) == facts(flow.prescan_session(number))


@settings(max_examples=200, deadline=None)
@given(st.lists(packets(), min_size=1, max_size=3), st.sampled_from([1000, 0xFFFFFFF0]))
def test_looking_again_tells_nothing_new(files: list[Made], start: int) -> None:
    given = [references(made, start + 77 * n) for n, made in enumerate(files) if made]
    check(arranged(*given))


def test_a_session_whose_start_is_proven_later_is_surveyed_from_there() -> None:
    talk: Made = [
        (0, 0, 0, 0, SYN, 500, 0, 0),
        (1, MS, 0, 0, SYN | ACK, 500, 0, 0),
        (0, MS, 0, 0, ACK, 500, 10, 0),
        (0, MS, 5000, 0, SYN, 500, 0, 0),  # another session, if it is answered
        (0, MS, -5001, 0, ACK, 500, 10, 0),
        (1, MS, 9000, 0, SYN | ACK, 500, 0, 0),
        (0, MS, 0, 0, ACK, 500, 7, 0),
    ]
    flow = arranged(references(talk, 1000))
    check(flow)
    assert [int(survey.packets) for survey in flow.prescans] == [3, 4]
    assert [int(survey.syn_direction) for survey in flow.prescans] == [0, 0]
