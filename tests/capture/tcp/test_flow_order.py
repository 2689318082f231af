"""The pre-scan made while packets are ordered equals one made afterwards."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture.capture_builder import MS
from tests.capture.conftest import in_memory
from tests.capture.tcp.test_fast_packets import packets, references

from polymux.capture.packets.packet_refs import ACK, SYN
from polymux.capture.tcp.flow_order import FlowOrder, SessionPrescan

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


def facts(prescan: SessionPrescan) -> list[object]:
    return [*(getattr(prescan, name) for name in FACTS), *prescan.segment_bytes]


def arranged(*files: tuple[bytes, bytes]) -> FlowOrder:
    flow = FlowOrder()
    for both in files:
        flow.add_file([(in_memory(both[0]), in_memory(both[1]))])
    flow.arrange()
    return flow


def check(flow: FlowOrder) -> None:
    assert len(flow.prescans) == len(flow.session_starts)
    assert sum(int(prescan.packets) for prescan in flow.prescans) == flow.count
    for number, prescan in enumerate(flow.prescans):
        assert facts(prescan) == facts(flow.prescan_session(number))


@settings(max_examples=200, deadline=None)
@given(st.lists(packets(), min_size=1, max_size=3), st.sampled_from([1000, 0xFFFFFFF0]))
def test_a_second_prescan_finds_the_same(files: list[Made], start: int) -> None:
    given = [references(made, start + 77 * n) for n, made in enumerate(files) if made]
    check(arranged(*given))


def test_a_session_whose_start_is_confirmed_later_is_prescanned_from_there() -> None:
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
    assert [int(prescan.packets) for prescan in flow.prescans] == [3, 4]
    assert [int(prescan.syn_direction) for prescan in flow.prescans] == [0, 0]
