"""Captures that begin in the middle of a connection, continue after a gap, or cut packets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.analysis.recorded_conversation import MS, START, Found, Record, Stage, analyse
from tests.capture import capture_builder as build
from tests.cut_record import Tally, cut_randomly, frames_of, observed

from polymux.analysis.options import AnalysisOptions
from polymux.core.boundary_search import MAX_HELD_BYTES, ChainWalk, DirectionSearch
from polymux.core.observer import Observer
from polymux.protocols.registry import create
from polymux.testing.conversations import MODELS
from polymux.testing.models.base import ModelConversation
from polymux.testing.simulator import Simulation

PROTOCOLS = [
    "mplex", "mplex:ids=counting", "nerdbank:version=1", "nerdbank:version=2",
    "nerdbank:version=3", "omnistreams:carrier=length", "omnistreams:carrier=websocket",
    "omnistreams:numbering=legacy", "minmux", "yamux", "yamux:dialect=libp2p",
]  # fmt: skip
CUTS = 200
DIALER, ACCEPTOR = build.End("192.0.2.1", 40000), build.End("198.51.100.2", 9000)
ACK, SYN = 0x10, 0x02
HEADERS = 14 + 20 + 20


class WholeWrites(Simulation):
    """A simulation in which each write of an endpoint is one packet."""

    def pop_random_prefix(self, queue: list[bytes]) -> bytes:
        return queue.pop(0)


@pytest.mark.parametrize("segmented", [False, True], ids=["writes", "segments"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_honest_conversations_cut_at_random_packets(protocol: str, segmented: bool) -> None:
    tally = Tally()
    for seed in range(4):
        world = (Simulation if segmented else WholeWrites)(protocol, seed)
        world.run(600)
        cut_randomly(partial(create, protocol), world.record, CUTS // 4, seed, tally)
    assert tally.cuts == CUTS
    assert tally.certain == []
    assert tally.possible == []
    assert tally.decoded_share >= 0.95, tally
    assert tally.listed_share >= 0.95, tally


@pytest.mark.parametrize("layout", ["length_bits=10,id_bits=4", "length_bits=17,id_bits=13"])
def test_requests_are_found_from_the_middle_on_by_their_named_layout(layout: str) -> None:
    tally = Tally()
    for seed in range(4):
        world = Simulation(f"streamux:{layout}", seed)
        world.run(600)
        cut_randomly(partial(create, f"streamux:{layout}"), world.record, CUTS // 4, seed, tally)
    assert (tally.certain, tally.possible) == ([], [])
    assert tally.decoded_share >= 0.5


@pytest.mark.parametrize("name", ["mplex", "nerdbank", "omnistreams", "minmux", "yamux"])
def test_model_peers_are_never_blamed_for_what_was_not_seen(name: str) -> None:
    tally = Tally()
    for seed in range(8):
        conversation = ModelConversation(MODELS[name], seed)
        record = [(s, d, n) for n, (s, d) in enumerate(conversation.traces["middle"].chunks)]
        cut_randomly(partial(conversation.model.observer_protocol, 2), record, 4, seed, tally)
    assert (tally.certain, tally.possible) == ([], [])
    assert tally.frames > 300


# Captures


def bulk(protocol: str, streams: int = 3) -> Record:
    """A few streams on which the dialer sends random bytes, each write one packet."""
    rng = Random(3)
    stage = Stage(protocol)
    opened = []
    for number in range(streams):
        name = b"" if protocol == "yamux" else b"stream %d" % number
        opened.append(stage.open(0, name))
        stage.exchange()
        if protocol.startswith("nerdbank"):
            stage.accept(1, 1 << 20)
            stage.exchange()
    for _ in range(40):
        for stream in opened:
            stage.wait(MS)
            stage.send(0, stream, rng.randbytes(700))
            stage.exchange()
            stage.send(1, stage.peer_stream(0, stream), rng.randbytes(30))
            stage.exchange()
    for stream in opened:
        stage.end(0, stream)
        stage.end(1, stage.peer_stream(0, stream))
    stage.exchange()
    return stage.record


def saved(
    path: Path, record: Record, *, since: int = 0, missing: range = range(0), snap: int = 65535
) -> str:
    """A capture from packet `since` on; `missing` are left out, the others cut to `snap` bytes."""
    ends, due = (DIALER, ACCEPTOR), [101, 901]
    packets = []
    if not since:
        packets = [
            build.Packet(record[0][2] - 2, build.frame(DIALER, ACCEPTOR, 100, 0, SYN)),
            build.Packet(record[0][2] - 1, build.frame(ACCEPTOR, DIALER, 900, 101, SYN | ACK)),
        ]
    for number, (side, data, at) in enumerate(record):
        made = build.frame(ends[side], ends[1 - side], due[side], due[1 - side], ACK, data)
        due[side] += len(data)
        if number >= since and number not in missing:
            packets.append(build.Packet(at, made[: snap + HEADERS], len(made)))
    path.write_bytes(build.pcap(packets))
    return str(path)


def analysed(path: str, protocol: str) -> Found:
    return analyse(path, plan=AnalysisOptions(protocol=protocol))


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=3", "yamux"])
def test_streams_opened_before_the_capture_are_listed_without_their_opening(
    protocol: str, tmp_path: Path
) -> None:
    record = bulk(protocol)
    found = analysed(saved(tmp_path / "late.pcap", record, since=40), protocol)
    assert found.rows("violations") == []
    streams = found.rows("streams")
    assert {row["stream"] for row in streams} == {row["stream"] for row in analysed(
        saved(tmp_path / "whole.pcap", record), protocol).rows("streams")}  # fmt: skip
    assert {row["opened_at"] for row in streams} == {None}
    assert "3 streams were opened by frames that were not captured" in str(found.session.note)
    assert found.session.balanced
    assert found.session.undecoded_bytes_dialer == 0
    assert [row for row in found.rows("stalls") if row["cause"] != "sender-idle"] == []


def test_one_row_says_that_no_start_of_a_frame_was_found(tmp_path: Path) -> None:
    rng = Random(5)
    record = [(n % 2, rng.randbytes(500), START + n * MS) for n in range(200)]
    found = analysed(saved(tmp_path / "noise.pcap", record, since=1), "mplex")
    assert found.rows("violations") == []
    assert found.rows("streams") == []
    assert found.rows("frames") == []
    (session,) = found.sessions
    assert session.undecoded_bytes_dialer == 99 * 500
    assert session.undecoded_bytes_acceptor == 100 * 500
    assert session.ending == "undecodable"
    for side in ("dialer", "acceptor"):
        assert f"no start of a frame was found in the {side}'s bytes" in str(session.note)


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=2", "nerdbank:version=3"])
def test_decoding_continues_after_a_gap_in_the_middle(protocol: str, tmp_path: Path) -> None:
    record = bulk(protocol)
    whole = analysed(saved(tmp_path / "whole.pcap", record), protocol)
    found = analysed(saved(tmp_path / "gap.pcap", record, missing=range(60, 70)), protocol)
    assert found.rows("violations") == []
    assert found.session.ending == "gap"
    assert found.session.balanced
    lost = whole.session.frames - found.session.frames
    assert 0 < lost <= 20, "the missing packets, and what is behind them in the same frames"
    assert found.session.streams == whole.session.streams
    assert {row["ending"] for row in found.rows("streams")} == {"clean"}
    assert [row for row in found.rows("stalls") if row["cause"] != "sender-idle"] == []


def test_a_violation_after_a_gap_is_possible(tmp_path: Path) -> None:
    record = bulk("mplex")
    at = record[-1][2]
    late = [(0, bytes.fromhex("3800 3a0141 3c00"), at + 1), (0, bytes.fromhex("3a0142"), at + 2)]
    path = saved(tmp_path / "gap.pcap", [*record, *late], missing=range(60, 64))
    rows = [row for row in analysed(path, "mplex").rows("violations") if row["severity"] != "note"]
    assert [(row["rule"], row["certainty"], row["stream"]) for row in rows] == [
        ("mplex.write-after-close", "possible", "d7")
    ]


@pytest.mark.parametrize("snap", [0, 16, 96, 400])
@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=3"])
def test_a_snap_length_is_counted_and_not_judged(protocol: str, snap: int, tmp_path: Path) -> None:
    record = bulk(protocol)
    found = analysed(saved(tmp_path / "cut.pcap", record, snap=snap), protocol)
    assert [row for row in found.rows("violations") if row["severity"] != "note"] == []
    assert found.session.balanced
    sent = sum(len(data) for side, data, _ in record if side == 0)
    assert found.session.bytes_dialer == sent
    if snap == 400:  # every header is there
        assert (
            found.session.frames
            == analysed(saved(tmp_path / "whole.pcap", record), protocol).session.frames
        )


# The search


def test_what_is_held_is_bounded_and_keeps_its_order() -> None:
    rng = Random(1)
    observer = Observer(create("mplex"))
    observer.begin_in_middle()
    most = 0
    for n in range(300):
        observer.feed(n % 2, rng.randbytes(1000), n)
        most = max(most, int(observer.boundaries.held_bytes))
    assert most <= MAX_HELD_BYTES + 1000
    observer.finish(300, True, True)
    assert observer.take_violations() == []
    assert observer.accounts_for_all_bytes()


def test_frames_are_decoded_in_the_order_in_which_they_came() -> None:
    record = bulk("mplex")
    whole = observed(partial(create, "mplex"), record, in_middle=False)
    cut = observed(partial(create, "mplex"), record[50:], in_middle=True)
    before = [sum(len(d) for s, d, _ in record[:50] if s == side) for side in (0, 1)]
    later = [k for k in frames_of(whole) if k[1] >= before[k[0]]]
    assert [(s, at + before[s], size) for s, at, size in frames_of(cut)] == later


@pytest.mark.parametrize(
    "protocol", ["mplex", "nerdbank:version=2", "omnistreams:carrier=websocket"]
)
def test_an_observer_is_saved_and_restored_while_it_searches(protocol: str) -> None:
    world = Simulation(protocol, 4)
    world.run(300)
    record = world.record[len(world.record) // 2 :]
    expected = observed(partial(create, protocol), record, in_middle=True)
    observer = Observer(create(protocol))
    observer.begin_in_middle()
    found = {}
    for side, data, at in record:
        observer.feed(side, data, at)
        found.update(frames_of(observer))
        restored = Observer(create(protocol))
        restored.restore(observer.snapshot())
        observer = restored
    observer.finish(0, True, True)
    found.update(frames_of(observer))
    assert found == frames_of(expected)


def test_a_stream_that_was_over_before_a_gap_may_be_used_again_in_it() -> None:
    observer = Observer(create("mplex"))
    rng = Random(2)
    observer.feed(0, bytes.fromhex("0800 0a0141 0c00"), 0)
    observer.feed(1, bytes.fromhex("0b00"), 1)
    observer.gap(0, 2, 2)  # 08 00
    for n in range(12):
        observer.feed(0, bytes.fromhex("0a 40") + rng.randbytes(64), 3 + n)
    observer.finish(20, True, True)
    first, second = [*observer.take_removed_streams(), *observer.protocol.streams.all()]
    assert (first.label(), first.dialer.content_bytes, first.unseen) == ("d1", 1, True)
    assert (second.label(), second.dialer.content_bytes) == ("d1.2", 12 * 64)
    assert observer.take_violations() == []


def test_a_payload_of_possible_headers_is_searched_in_bounded_time() -> None:
    unit = b"".join(bytes([0x0A, 38 - i]) for i in range(0, 40, 2))
    observer = Observer(create("mplex"))
    search = DirectionSearch(0)
    search.add(unit * 800)
    walk = ChainWalk(observer.boundaries.scanners[0], search, set(), observer.protocol)
    assert not observer.boundaries.first_strong_chain(walk)
    assert -len(unit) * 800 < walk.budget <= 0  # six million headers without a bound


def test_a_go_away_of_libp2p_right_after_a_boundary_is_a_frame() -> None:
    data = bytes.fromhex("0000 0000 00000001 00000010") + bytes(16)
    observer = Observer(create("yamux"))
    observer.begin_in_middle()
    for n in range(8):
        observer.feed(0, data, n)
        observer.feed(1, data, n)
    observer.feed(0, bytes.fromhex("0003 0000 00000000 00001003"), 8)
    observer.feed(0, data, 9)
    observer.finish(10, True, True)
    assert observer.connection.dialer.undecoded_bytes == 0
    assert observer.connection.dialer.frames == 10


def test_decoding_that_was_stopped_for_good_does_not_begin_again_at_a_boundary() -> None:
    data = bytes.fromhex("0000 0000 00000001 00000010") + bytes(16)
    observer = Observer(create("yamux"))
    observer.gap(0, 1, 0)
    observer.feed(0, data[:5], 1)  # held: the start of a frame is searched for
    assert observer.connection.searching
    observer.decide_boundaries()
    observer.end_search()
    for n in range(20):
        observer.feed(0, data, 2 + n)
    observer.finish(30, True, True)
    assert observer.connection.dialer.frames == 0
    assert observer.accounts_for_all_bytes()
