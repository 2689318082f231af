"""Protocol detection with evidence, for any bytes."""

from __future__ import annotations

import random
from base64 import b64encode
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.recorded_conversation import MS, START, Record, Stage, analyse, save
from tests.capture import capture_builder as build

from polymux.analysis.detection import detector
from polymux.analysis.detection.detector import detect
from polymux.analysis.detection.sample import (
    EARLY_STEP_BYTES,
    GIVE_UP_AFTER_FRAMES,
    SHORT_SAMPLE_BYTES,
    SessionSample,
    Trial,
    try_protocol,
)
from polymux.analysis.detection.signatures import SIGNATURES
from polymux.analysis.options import AnalysisOptions, parse_ports
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions
from polymux.core.websocket.handshake import GUID
from polymux.protocols.registry import BadProtocolString, protocol_names
from polymux.testing.simulator import Simulation

PROTOCOLS = (
    "mplex",
    "nerdbank:version=1",
    "nerdbank:version=2",
    "nerdbank:version=3",
    "omnistreams:numbering=spec",
    "omnistreams:numbering=legacy",
    "streamux",
    "minmux",
    "yamux",
)


def traffic(protocol: str, seed: int, steps: int = 300) -> SessionSample:
    world = Simulation(protocol, seed)
    world.run(steps)
    return SessionSample(tuple(world.record))


def test_every_protocol_of_the_registry_has_a_scorer() -> None:
    assert {scorer.name for scorer in SIGNATURES} == set(protocol_names())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(3))
def test_real_traffic_is_recognised_with_its_variant(protocol: str, seed: int) -> None:
    detection = detect(traffic(protocol, seed))
    assert detection.protocol == protocol, detection
    assert detection.score >= 75
    assert "frames fit" in detection.evidence
    tried = {text.partition(":")[0] for text, _ in detection.scores}
    # Minmux, which fits most bytes, is tried only if no other protocol fits perfectly.
    assert tried >= set(protocol_names()) - {"minmux"}
    assert ("minmux" in tried) == (protocol == "minmux")


def mplex(number: int, flag: int, data: bytes = b"") -> bytes:
    return bytes([number << 3 | flag, len(data)]) + data


TALK = b"".join(mplex(n, 0) for n in range(8)) + b"".join(mplex(n % 8, 2, b"x") for n in range(600))


@pytest.mark.parametrize(
    "sample",
    [
        SessionSample(((1, b"".join(mplex(n % 8, 1) for n in range(66)), 1), (0, TALK, 2))),
        SessionSample(((0, mplex(9, 2) * 70 + TALK, 1),)),
    ],
    ids=["answers before the openings", "a stream that was never opened"],
)
def test_a_protocol_that_is_given_up_at_first_is_tried_again(sample: SessionSample) -> None:
    assert try_protocol("mplex", sample, brief=True).stopped_early
    detection = detect(sample)
    assert detection.protocol == "mplex", detection
    assert 75 <= detection.score < 100


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(PROTOCOLS), st.integers(0, 40), st.integers(0, 4000), st.binary(max_size=300),
    st.booleans(),
)  # fmt: skip
def test_the_first_look_changes_no_verdict(
    protocol: str, seed: int, at: int, noise: bytes, started: bool
) -> None:
    pieces = list(traffic(protocol, seed, 60).pieces)
    side, data, instant = pieces[at % len(pieces)]
    pieces[at % len(pieces)] = (side, data[: at % (len(data) + 1)] + noise, instant)
    sample = SessionSample(tuple(pieces), started)
    detection = detect(sample)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "polymux.analysis.detection.sample.BRIEF_GIVE_UP_AFTER_FRAMES", GIVE_UP_AFTER_FRAMES
        )
        patched.setattr("polymux.analysis.detection.sample.BRIEF_STEP_BYTES", EARLY_STEP_BYTES)
        patient = detect(sample)
    assert (detection.protocol, detection.evidence, detection.score, detection.skip_bytes) == (
        patient.protocol,
        patient.evidence,
        patient.score,
        patient.skip_bytes,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.binary(min_size=1, max_size=300)), max_size=12))
def test_no_bytes_make_it_raise(pieces: list[tuple[int, bytes]]) -> None:
    detection = detect(SessionSample(tuple((side, data, 5) for side, data in pieces)))
    assert detection.evidence


@pytest.mark.parametrize("seed", range(12))
def test_random_bytes_are_unknown(seed: int) -> None:
    rng = random.Random(seed)
    pieces = tuple((side, rng.randbytes(rng.choice([30, 400, 3000])), 5) for side in (0, 1, 0, 1))
    for started in (True, False):
        detection = detect(SessionSample(pieces, started))
        assert detection.protocol is None, detection


@pytest.mark.parametrize(
    ("dialer", "acceptor", "word"),
    [
        (b"\x16\x03\x01\x02\x00\x01" + b"c" * 512, b"\x16\x03\x03\x00\x7a" + b"s" * 122, "TLS"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0", "HTTP/2"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    ],
)
def test_strangers_are_named(dialer: bytes, acceptor: bytes, word: str) -> None:
    detection = detect(SessionSample(((0, dialer, 1), (1, acceptor, 2))))
    assert detection.protocol is None
    assert detection.evidence.startswith(word)


def test_bytes_of_another_protocol_are_not_looked_at_to_the_last() -> None:
    zeros = SessionSample(((0, bytes(60_000), 5),))
    trial = try_protocol("nerdbank:version=3", zeros)
    assert GIVE_UP_AFTER_FRAMES <= trial.frame_count <= GIVE_UP_AFTER_FRAMES + EARLY_STEP_BYTES
    assert trial.fit == 0
    few = SessionSample(((0, bytes(GIVE_UP_AFTER_FRAMES - 10), 5),))
    assert try_protocol("nerdbank:version=3", few).fit == 0


def test_no_bytes_at_all_are_said_to_be_none() -> None:
    assert detect(SessionSample(())).evidence == "no bytes were captured"


@pytest.mark.parametrize(
    ("name", "word"), [(b"i%d", "js-libp2p"), (b"%d", "go or py-libp2p"), (b"", "rust-libp2p")]
)
def test_names_of_streams_hint_at_the_implementation(name: bytes, word: str) -> None:
    stage = Stage("mplex:ids=counting")
    for number in range(3):
        stream = stage.open(0, name % number if b"%d" in name else name)
        stage.send(0, stream, b"m" * 2000)
        stage.exchange()
    assert word in detect(SessionSample(tuple(stage.record))).evidence


def test_windows_hint_at_the_implementation() -> None:
    stage = Stage("nerdbank:version=3")
    stage.open(0, b"x", window=102_400)
    stage.exchange()
    stage.accept(1, window=1_024_000)
    stage.exchange()
    evidence = detect(SessionSample(tuple(stage.record))).evidence
    assert "the dialer has the window of npm or of .NET up to 2.13" in evidence
    assert "the acceptor has the window of .NET from 2.14 or of Rust" in evidence


def test_multistream_before_mplex_is_stepped_over(tmp_path: Path) -> None:
    lines = [b"\x13/multistream/1.0.0\n", b"\x0d/mplex/6.7.0\n"]
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.send(0, stream, b"hello")
    stage.exchange()
    before: Record = [(side, line, START + MS // 2) for line in lines for side in (0, 1)]
    path = save(tmp_path / "a.pcapng", before + stage.record, stage.now + MS)
    for plan in (AnalysisOptions(), AnalysisOptions("mplex:preamble=multistream")):
        session = analyse(path, plan=plan).session
        assert session.protocol == "mplex"
        assert (
            session.overhead_bytes_dialer == session.overhead_bytes_acceptor == sum(map(len, lines))
        )
        assert session.streams == 1
        assert session.balanced
        assert session.ending == "clean"


def test_a_preamble_given_as_bytes_is_stepped_over(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stage.open(0, b"x")
    stage.exchange()
    record: Record = [(0, b"MAGIC!", START + MS // 2), *stage.record]
    path = save(tmp_path / "a.pcapng", record, stage.now + MS)
    session = analyse(path, plan=AnalysisOptions(f"mplex:preamble={b'MAGIC!'.hex()}")).session
    assert (session.overhead_bytes_dialer, session.frames, session.ending) == (6, 1, "clean")


def test_omnistreams_over_websocket_is_recognised_by_its_upgrade(tmp_path: Path) -> None:
    key = b64encode(bytes(16)).decode()
    answer = b64encode(sha1(key.encode() + GUID).digest()).decode()
    request = (
        "GET /omnistreams HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    response = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {answer}\r\n\r\n"
    ).encode()

    def masked(message: bytes) -> bytes:
        return bytes([0x82, 0x80 | len(message)]) + bytes(4) + message

    def plain(message: bytes) -> bytes:
        return bytes([0x82, len(message)]) + message

    record: Record = [
        (0, request, START + MS),
        (1, response, START + 2 * MS),
        (0, masked(bytes.fromhex("01057b7d")), START + 3 * MS),
        (1, plain(bytes.fromhex("050502")), START + 4 * MS),
        (0, masked(bytes.fromhex("020568656c6c6f")), START + 5 * MS),
        (0, masked(bytes.fromhex("0305")), START + 6 * MS),
    ]
    found = analyse(save(tmp_path / "a.pcapng", record, START + 7 * MS))
    session = found.session
    assert (session.protocol, session.dialect) == ("omnistreams", "spec")
    assert "a WebSocket upgrade for /omnistreams" in (session.evidence or "")
    assert session.overhead_bytes_dialer == len(request)
    assert session.balanced
    assert found.stream("d5")["bytes_dialer"] == 5
    frames = found.rows("frames")
    assert frames[0]["byte_offset"] == len(request)
    assert frames[0]["size"] == 10


def test_the_option_overrides_the_note_and_the_note_overrides_detection(tmp_path: Path) -> None:
    stage = Stage("nerdbank:version=3")
    stage.open(0, b"x")
    stage.exchange()
    stage.accept(1)
    stage.exchange()
    path = stage.save(tmp_path / "a.pcapng", protocol="minmux")
    assert analyse(path).session.protocol == "minmux"
    assert analyse(path).session.evidence == "noted in the capture: minmux"
    given = analyse(path, plan=AnalysisOptions("mplex")).session
    assert (given.protocol, given.evidence) == ("mplex", "given: mplex")
    ports = analyse(path, plan=AnalysisOptions("mplex", {9000: "nerdbank"})).session
    assert (ports.protocol, ports.version) == ("nerdbank", "3")
    assert "version found" in (ports.evidence or "")


def test_an_option_that_only_one_version_has_leaves_the_others_untried(tmp_path: Path) -> None:
    stage = Stage("nerdbank:version=3")
    stage.open(0, b"x")
    path = save(tmp_path / "seeded.pcapng", stage.record)
    for text in ("nerdbank:seeded=100+200", "nerdbank:seeded=100+200,version=3"):
        found = analyse(path, plan=AnalysisOptions(text)).session
        assert (found.protocol, found.version) == ("nerdbank", "3")


def test_an_unusable_protocol_note_is_mentioned_and_the_bytes_decide(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.send(0, stream, b"hello")
    stage.exchange()
    session = analyse(stage.save(tmp_path / "a.pcapng", protocol="telnet")).session
    assert session.protocol == "mplex"
    assert "no protocol 'telnet'" in (session.evidence or "")


def test_frames_are_validated_from_the_vantage_noted_in_the_capture(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stage.open(0, b"x")
    stage.exchange()
    path = stage.save(tmp_path / "a.pcapng", protocol="mplex", vantage="dialer")
    assert analyse(path).session.vantage == "dialer"


def test_a_plan_is_checked_when_it_is_made() -> None:
    with pytest.raises(BadProtocolString, match="no protocol 'telnet'"):
        AnalysisOptions("telnet")
    with pytest.raises(BadProtocolString, match="version"):
        AnalysisOptions(ports={9000: "nerdbank:version=9"})
    with pytest.raises(BadProtocolString, match="multistream"):
        AnalysisOptions("mplex:preamble=xyz")


def test_ports_are_read_with_or_without_a_protocol() -> None:
    assert parse_ports(["9000=mplex", "80"]) == {9000: "mplex", 80: "auto"}
    for wrong in ("mplex", "0=mplex", "70000", "9000="):
        with pytest.raises(ValueError, match="write 9000=mplex"):
            parse_ports([wrong])


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.booleans())
def test_no_protocol_has_more_valid_frames_than_its_smallest_ones_fill(
    data: bytes, from_start: bool
) -> None:
    """So a sample that is too short for enough frames need not be tried."""
    for signature in SIGNATURES:
        for text in signature.variants({}):
            trial = try_protocol(text, SessionSample(((0, data, START),), from_start))
            assert trial.valid_frames * signature.min_frame_bytes <= len(data), text


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The protocols that were tried since."""
    tried: list[str] = []

    def counted(protocol: str, *arguments: Any, **options: Any) -> Trial:
        tried.append(protocol)
        return try_protocol(protocol, *arguments, **options)

    monkeypatch.setattr(detector, "try_protocol", counted)
    return tried


@pytest.mark.parametrize("protocol", ["auto", "mplex", "yamux"])
def test_few_bytes_without_the_start_are_tried_as_no_protocol(
    protocol: str, trials: list[str], tmp_path: Path
) -> None:
    """Captures of scans and floods have millions of such sessions."""
    path = without_start(tmp_path / "talk.pcapng", mplex(1, 2, b"hello") + mplex(1, 4))
    (session,) = read_sessions([path])
    analyze_session(session, AnalysisOptions(protocol), lambda *_: None)
    assert trials == []


@pytest.mark.parametrize("protocol", ["auto", "mplex"])
def test_sessions_of_one_equal_packet_are_tried_once(
    protocol: str, trials: list[str], tmp_path: Path
) -> None:
    data = b"".join(mplex(1, 2, bytes([n])) for n in range(60, 80))
    path = without_start(tmp_path / "talk.pcapng", data, flows=20)
    counts = []
    for session in read_sessions([path]):
        analyze_session(session, AnalysisOptions(protocol), lambda *_: None)
        counts.append(len(trials))
    assert len(counts) == 20
    assert 0 < counts[0] == counts[-1]


def without_start(path: Path, data: bytes, flows: int = 1) -> Path:
    """Write a capture of flows that have one packet of data, and no SYN."""
    packets = []
    for number in range(flows):
        dialer = build.End("192.0.2.1", 40000 + number)
        sent = build.frame(dialer, build.BOB, 1000, 1, build.ACK, data)
        packets.append(build.Packet(build.START + number * build.MS, sent))
    path.write_bytes(build.pcapng(packets))
    return path


@pytest.mark.parametrize(
    ("first", "protocols"),
    [
        (b"SSH-2.0-a\r\n", set[str]()),
        (b"\x16\x03\x01\x02\x00\x01", set[str]()),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", set[str]()),
        (b"GET / HTTP/1.1\r\nCookie: " + b"c" * 9000 + b"\r\n\r\n", {"omnistreams"}),
    ],
    ids=["SSH", "TLS", "HTTP", "HTTP with a long head"],
)
def test_only_what_the_first_bytes_leave_open_is_tried_on_more(
    first: bytes, protocols: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_length: set[str] = set()

    def noted(protocol: str, sample: SessionSample, *arguments: Any) -> Trial:
        if sample.size > SHORT_SAMPLE_BYTES:
            at_length.add(protocol.partition(":")[0])
        return try_protocol(protocol, sample, *arguments)

    monkeypatch.setattr(detector, "try_protocol", noted)
    body = random.Random(3).randbytes(40_000)
    detection = detect(SessionSample(((0, first, 1), (1, b"HTTP/1.1 200 OK\r\n\r\n" + body, 2))))
    assert detection.protocol is None
    assert at_length - {"minmux"} == protocols  # nearly any bytes are packets of Minmux
