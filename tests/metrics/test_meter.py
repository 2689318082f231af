"""What a meter counts, that no data of a peer becomes a label, and the Prometheus text."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, MissingExtra, PeerViolation, SessionClosed
from polymux.core.limits import Limits
from polymux.metrics import Meter, prometheus_text, register
from polymux.protocols.registry import create


class Session:
    """As much of a session as a meter reads."""

    def __init__(self, protocol: str = "mplex", side: int = 1) -> None:
        self.endpoint = Endpoint(create(protocol, Limits(), side), side, direct=True)
        self.peer = "127.0.0.1:9000"
        self.bytes_sent = 0
        self.failure: Exception | None = None
        self.open_streams = 0
        self.read_pauses = 0
        self.peer_identity: object | None = None


def value(meter: Meter, name: str, *labels: str) -> int:
    family = next(f for f in meter.collect() if f.name == name)
    return family.values.get(labels, 0)


def test_sessions_are_counted_while_open_and_after() -> None:
    meter = Meter()
    one, two = Session(), Session()
    meter.begun(one)
    meter.begun(two)
    assert value(meter, "sessions", "mplex", "acceptor") == 2
    meter.ended(one)
    meter.ended(one)  # a second call
    assert value(meter, "sessions", "mplex", "acceptor") == 1
    assert value(meter, "sessions_begun", "mplex", "acceptor") == 2
    meter.ended(two)
    assert value(meter, "sessions", "mplex", "acceptor") == 0
    assert value(meter, "sessions_begun", "mplex", "acceptor") == 2


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (LimitExceeded("x"), "limit"),
        (PeerViolation("x"), "violation"),
        (SessionClosed("x"), "lost"),
    ],
)
def test_a_failure_is_counted_by_its_cause(failure: Exception, cause: str) -> None:
    meter = Meter()
    session = Session()
    meter.begun(session)
    session.failure = failure
    meter.ended(session)
    assert value(meter, "sessions_failed", "mplex", "acceptor", cause) == 1


def test_traffic_is_the_same_before_and_after_the_end() -> None:
    meter = Meter()
    session = Session()
    meter.begun(session)
    session.endpoint.receive(bytes.fromhex("08 00 0a 03 616263 0a 01 64"), 0.0)
    session.bytes_sent, session.open_streams, session.read_pauses = 17, 1, 2
    open_figures = {f.name: f.values for f in meter.collect()}
    assert open_figures["bytes"] == {
        ("mplex", "acceptor", "in"): 10,
        ("mplex", "acceptor", "out"): 17,
    }
    assert open_figures["frames"][("mplex", "acceptor", "in")] == 3
    assert open_figures["streams_opened"][("mplex", "acceptor")] == 1
    assert open_figures["stalls"][("mplex", "acceptor")] == 2
    assert open_figures["streams"][("mplex", "acceptor")] == 1
    assert open_figures["unread_bytes"][("mplex", "acceptor")] == 4
    meter.ended(session)
    after = {f.name: f.values for f in meter.collect()}
    for name in ("bytes", "frames", "streams_opened", "stalls"):
        assert after[name] == open_figures[name]
    assert after["unread_bytes"] == {}


def test_a_stream_without_credit_is_blocked() -> None:
    meter = Meter()
    session = Session("nerdbank", 0)
    meter.begun(session)
    stream = session.endpoint.open(b"x")
    session.endpoint.send(stream, b"hello")
    session.endpoint.data_to_send()
    assert value(meter, "streams_blocked", "nerdbank", "dialer") == 1


def test_limits_and_rules_are_counted_separately() -> None:
    meter = Meter()
    session = Session()
    meter.begun(session)
    session.endpoint.receive(bytes.fromhex("0a00") * 3, 0.0)
    session.endpoint.counters.count("accept_backlog", 5)
    session.endpoint.counters.count("write")
    assert value(meter, "violations", "mplex", "mplex.unknown-stream") == 3
    assert value(meter, "limit_hits", "mplex", "accept_backlog") == 5
    assert value(meter, "limit_hits", "mplex", "write") == 1


def test_every_limit_can_be_counted_under_its_name() -> None:
    meter = Meter()
    session = Session()
    meter.begun(session)
    for name in Limits().names():
        session.endpoint.counters.count(name)
    family = next(f for f in meter.collect() if f.name == "limit_hits")
    assert {labels[1] for labels in family.values} == set(Limits().names())


def test_nothing_a_peer_sends_becomes_a_label() -> None:
    meter = Meter()
    for name in ("evil\n1", "<script>", "x" * 5000):
        session = Session()
        meter.begun(session)
        session.endpoint.counters.count(name)
        raw = name.encode()[:100]
        session.endpoint.receive(b"\x08" + bytes([len(raw)]) + raw, 0.0)
    families = meter.collect()
    labels = {value for f in families for sample in f.samples for value in sample.labels}
    assert labels <= {"mplex", "acceptor", "in", "out", "other", "mplex.id-parity"}
    assert value(meter, "violations", "mplex", "other") == 3


def test_the_text_is_read_by_prometheus() -> None:
    meter = Meter()
    session = Session()
    meter.begun(session)
    session.endpoint.receive(bytes.fromhex("0a00"), 0.0)
    text = prometheus_text(meter).decode()
    read = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(name.startswith("polymux_") for name in read)
    (sample,) = read["polymux_violations"].samples
    assert sample.labels == {"protocol": "mplex", "rule": "mplex.unknown-stream"}
    assert sample.value == 1
    assert read["polymux_sessions"].type == "gauge"
    assert re.search(r"^polymux_sessions_begun_total\{.*\} 1\.0$", text, re.M)


def test_a_registry_looks_afresh_each_time() -> None:
    registry = CollectorRegistry()
    meter = Meter()
    register(meter, registry)
    labels = {"protocol": "mplex", "side": "acceptor"}
    assert registry.get_sample_value("polymux_sessions", labels) is None
    meter.begun(Session())
    assert registry.get_sample_value("polymux_sessions", labels) == 1


def test_a_missing_library_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra) as problem:
        prometheus_text(Meter())
    assert str(problem.value).endswith("pip install 'polymux[metrics]'")
    assert "\n" not in str(problem.value)


def mplex_streams(count: int) -> bytes:
    """Messages of three bytes on so many new streams."""
    opened = b"".join(bytes([number << 3, 0]) for number in range(count))
    return opened + b"".join(bytes([number << 3 | 2, 3]) + b"abc" for number in range(count))


def test_a_state_lists_a_bounded_number_of_sessions_and_streams_and_counts_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymux.metrics.meter.MAX_LISTED_SESSIONS", 3)
    monkeypatch.setattr("polymux.metrics.meter.MAX_LISTED_STREAMS", 20)
    meter = Meter()
    sessions = [Session() for _ in range(10)]
    for count, session in enumerate(sessions):
        meter.begun(session)
        session.endpoint.receive(mplex_streams(count) + bytes.fromhex("7a00"), 0.0)
    sessions[9].endpoint.receive(bytes([8 << 3 | 2, 2]) + b"de", 0.0)
    state = meter.state()
    violations = next(family for family in meter.collect() if family.name == "violations")
    assert state["totals"] == {
        "sessions": 10, "streams": 45, "open_streams": 45, "waiting_streams": 45,
        "frames": 2 * 45 + 11, "bytes": 7 * 45 + 2 * 10 + 4,
        "violations": sum(violations.values.values()),
    }  # fmt: skip
    assert state["left_out"] == {"sessions": 7, "streams": 45 - 20}
    listed = state["sessions"]
    assert isinstance(listed, list)
    assert [session["open_streams"] for session in listed] == [9, 8, 7]
    assert sum(len(session["streams"]) for session in listed) == 20
    assert listed[0]["streams"][0]["unread_bytes"] == 5


def test_a_state_of_very_many_streams_examines_a_part_and_soon_lists_all_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymux.metrics.meter.MAX_EXAMINED_SLOTS", 256)
    meter = Meter()
    large, small = Session(), Session()
    for session in (large, small):
        meter.begun(session)
    opened = b"".join(varint(number << 3) + b"\0" for number in range(1000))
    large.endpoint.receive(opened, 0.0)
    small.endpoint.receive(mplex_streams(5), 0.0)
    late = {17, 500, 999}
    for number in late:
        large.endpoint.receive(varint(number << 3 | 2) + b"\x03abc", 0.0)
    large.open_streams = 1000
    for _ in range(large.endpoint.protocol.streams.slot_count() // 128):
        state = meter.state()
        listed = {session["open_streams"]: session for session in sessions_of(state)}
        assert listed.keys() == {1000, 5}
        assert len(listed[1000]["streams"]) <= 2 * 256
        assert len(listed[5]["streams"]) == 5
    keys = {stream["key"] for stream in listed[1000]["streams"] if stream["unread_bytes"]}
    assert keys == {f"d{number}" for number in late}
    assert listed[1000]["waiting_streams"] == 3
    meter.ended(large)
    assert [session["open_streams"] for session in sessions_of(meter.state())] == [5]


def sessions_of(state: dict[str, object]) -> list[dict[str, Any]]:
    found = state["sessions"]
    assert isinstance(found, list)
    return found


def varint(number: int) -> bytes:
    low = bytearray()
    while number > 127:
        low.append(number & 127 | 128)
        number >>= 7
    return bytes([*low, number])


def test_a_long_name_is_cut_in_a_state() -> None:
    meter = Meter()
    session = Session()
    meter.begun(session)
    session.endpoint.receive(b"\x00\xe8\x07" + b"n" * 1000, 0.0)
    listed = meter.state()["sessions"]
    assert isinstance(listed, list)
    assert listed[0]["streams"][0]["name"] == "n" * 256
