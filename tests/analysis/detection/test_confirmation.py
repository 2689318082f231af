"""Verdicts that are remembered change the cost of an analysis, and none of its rows."""

from __future__ import annotations

import gc
import random
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.analysis.recorded_conversation import ACCEPTOR, MS, START, Found
from tests.protocols.test_vectors import load, steps_of

from polymux.analysis.detection import detector
from polymux.analysis.detection.confirmation import PrefixRefuter, forget_verdicts
from polymux.analysis.detection.detector import detect
from polymux.analysis.detection.sample import SessionSample, Trial, try_protocol
from polymux.analysis.detection.signatures import SIGNATURES
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.table_digest import digest_batches
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import (
    PcapngWriter,
    TcpConnectionWriter,
    TcpSession,
    hint_comment,
    read_sessions,
)
from polymux.core.websocket.handshake import GUID
from polymux.testing.simulator import Simulation

Pieces = list[tuple[int, bytes]]

SPOKEN = (
    "mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
    "omnistreams:numbering=spec", "omnistreams:numbering=legacy", "streamux", "minmux", "yamux",
)  # fmt: skip
VARIANTS = [text for signature in SIGNATURES for text in signature.variants({})]
SELECT = b"\x13/multistream/1.0.0\n"
OTHERS: tuple[Pieces, ...] = (
    [(0, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), (1, b"HTTP/1.1 200 OK\r\n\r\n")],
    [(0, b"SSH-2.0-a\r\n"), (1, b"SSH-2.0-b\r\n")],
    [(0, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (1, bytes(9))],
    [(1, b"220 mail\r\n"), (0, b"EHLO a\r\n")],
    [(0, SELECT + b"\x08\x00"), (1, SELECT + b"\x09\x01a")],
    [(0, bytes(400))],
    [],
)  # fmt: skip
COOKIES = (3_000, 3_900, 6_000, 15_000)  # bytes: a head may have 16 KiB


def simulated(protocol: str, seed: int, steps: int = 60) -> Pieces:
    world = Simulation(protocol, seed)
    world.run(steps)
    return [(side, data) for side, data, _ in world.record]


def upgraded(numbering: str, cookies: int, path: str = "/omnistreams") -> Pieces:
    """Omnistreams over WebSocket, with so many bytes of cookies in the request for it."""
    key = b64encode(bytes(16)).decode()
    answer = b64encode(sha1(key.encode() + GUID).digest()).decode()
    request = (
        f"GET {path} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Cookie: {'c' * cookies}\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    response = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {answer}\r\n\r\n"
    )
    create, data, end, grant = (1, 2, 3, 5) if numbering == "spec" else (0, 1, 2, 4)
    messages = [
        (0, bytes([create, 5]) + b"{}"), (1, bytes([grant, 5, 9])),
        *[(0, bytes([data, 5]) + b"hello")] * 8, (0, bytes([end, 5])),
    ]  # fmt: skip
    frames = [
        (side, bytes([0x82, 0x80 * (1 - side) + len(text)]) + bytes(4 - 4 * side) + text)
        for side, text in messages
    ]
    return [(0, request.encode()), (1, response.encode()), *frames]


def talks() -> list[Pieces]:
    """Every vector, random traffic of every protocol, some of it damaged, other protocols, and
    upgrades with heads of any legal size."""
    rng = random.Random(5)
    found = [steps_of(vector) for vector in load()]
    for numbering in ("spec", "legacy"):
        found += [upgraded(numbering, size) for size in COOKIES]
        found += [upgraded(numbering, size, "/talk") for size in COOKIES]
    for protocol in SPOKEN:
        for seed in range(4):
            pieces = simulated(protocol, seed)
            found.append(pieces)
            n = rng.randrange(len(pieces))
            side, data = pieces[n]
            at = rng.randrange(len(data) + 1)
            found.append(
                [*pieces[:n], (side, data[:at] + b"\xff" + data[at + 1 :]), *pieces[n + 1 :]]
            )
    found += OTHERS
    rng.shuffle(found)
    return found


def beginning(pieces: Pieces, size: int = 2000) -> Pieces:
    """The first bytes of a conversation: long content, taken for frames, is a million of them."""
    found: Pieces = []
    for side, data in pieces:
        found.append((side, data[:size]))
        size -= len(found[-1][1])
    return [(side, data) for side, data in found if data]


def write(
    path: Path,
    every: list[Pieces],
    acceptors: int = 1,
    noted: Callable[[int], str] = lambda number: "",
) -> str:
    """A capture of these connections, one after another, with few acceptors.

    `noted` says which protocol the capture notes for each.
    """
    with PcapngWriter(str(path), sync="none") as writer:
        for number, pieces in enumerate(every):
            at = START + number * 1000 * MS
            ends = (("192.0.2.1", 10_000 + number), (ACCEPTOR[0], ACCEPTOR[1] + number % acceptors))
            protocol = noted(number)
            comment = hint_comment(protocol) if protocol else ""
            connection = TcpConnectionWriter(writer, *ends, at, comment=comment)
            for side, data in pieces:
                at += MS
                connection.data(side, data, at)
            connection.close(at + MS)
    return str(path)


def analysed(
    path: str,
    options: AnalysisOptions,
    arrange: Callable[[list[TcpSession]], list[TcpSession]] = list,
    remembering: bool = True,
) -> Found:
    forget_verdicts()
    found = Found()
    with read_sessions([path]) as reading:
        for session in arrange(list(reading)):
            if not remembering:
                forget_verdicts()
            found.sessions.append(analyze_session(session, options, found.emit))
    return found


def digests(found: Found) -> dict[str, str]:
    return digest_batches(found.batches)


@pytest.mark.parametrize("acceptors", [1, 7])
def test_what_was_spoken_before_changes_no_row(acceptors: int, tmp_path: Path) -> None:
    path = write(tmp_path / "talks.pcapng", talks(), acceptors)
    options = AnalysisOptions().with_content()
    alone = digests(analysed(path, options, remembering=False))
    assert digests(analysed(path, options)) == alone
    assert digests(analysed(path, options, lambda found: found[::-1])) == alone


@pytest.mark.parametrize("named", ["mplex", "nerdbank", "omnistreams", "yamux", "streamux"])
def test_nor_does_it_where_the_protocol_is_named(named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "talks.pcapng", list(map(beginning, talks()[::3])))
    options = AnalysisOptions(named)
    alone = digests(analysed(path, options, remembering=False))
    assert digests(analysed(path, options)) == alone


@pytest.mark.parametrize("protocol", SPOKEN)
def test_a_confirmed_verdict_is_the_detected_one_word_for_word(
    protocol: str, tmp_path: Path
) -> None:
    """The rows say what `detect` says of the sample, whichever way they were found."""
    every = [simulated(protocol, seed, steps) for seed in range(3) for steps in (4, 20, 80)]
    found = analysed(write(tmp_path / "talks.pcapng", every), AnalysisOptions())
    for pieces, summary in zip(every, found.sessions, strict=True):
        detection = detect(SessionSample(tuple((side, data, 5) for side, data in pieces)))
        name = detection.protocol.partition(":")[0] if detection.protocol else None
        assert (summary.protocol, summary.evidence) == (name, detection.evidence)


@pytest.mark.parametrize("numbering", ["spec", "legacy"])
@pytest.mark.parametrize("named", ["auto", "omnistreams"])
@pytest.mark.parametrize("path", ["/omnistreams", "/talk"])
def test_nor_does_it_where_the_head_of_an_upgrade_is_long(
    path: str, named: str, numbering: str, tmp_path: Path
) -> None:
    capture = write(
        tmp_path / "talks.pcapng", [upgraded(numbering, size, path) for size in COOKIES]
    )
    options = AnalysisOptions(named)
    alone = analysed(capture, options, remembering=False)
    hint = "; the numbering of npm omnistreams"
    for each in alone.sessions:
        assert (each.protocol, each.violations, each.streams) == ("omnistreams", 0, 1)
        assert (hint in (each.evidence or "")) == (numbering == "legacy")
    assert digests(analysed(capture, options)) == digests(alone)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The protocols that were tried since."""
    tried: list[str] = []

    def counted(protocol: str, *arguments: Any, **options: Any) -> Trial:
        tried.append(protocol)
        return try_protocol(protocol, *arguments, **options)

    monkeypatch.setattr(detector, "try_protocol", counted)
    return tried


@pytest.mark.parametrize("protocol", [text for text in SPOKEN if text != "minmux"])
def test_what_an_acceptor_speaks_is_tried_once(
    protocol: str, trials: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path / "talks.pcapng", [simulated(protocol, 1)] * 5)
    with read_sessions([path]) as reading:
        forget_verdicts()
        counts = []
        for session in reading:
            analyze_session(session, AnalysisOptions(), lambda *_: None)
            counts.append(len(trials))
    assert 0 < counts[0] == counts[-1]


def test_a_named_protocol_without_variants_is_not_tried(trials: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "talks.pcapng", [simulated("mplex", 1)] * 2)
    forget_verdicts()
    analysed(path, AnalysisOptions("mplex"))
    assert trials == []


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(VARIANTS), st.sampled_from(SPOKEN), st.integers(0, 6), st.binary(max_size=40),
    st.integers(0, 1),
)  # fmt: skip
def test_a_prefix_refutes_only_samples_that_break_a_rule(
    tried: str, spoken: str, seed: int, noise: bytes, side: int
) -> None:
    pieces = [(side, noise)] if noise else []
    pieces += simulated(spoken, seed, 10)
    assume(pieces)
    sample = SessionSample(tuple((whose, data, 5) for whose, data in pieces))
    whose, first, _ = sample.pieces[0]
    refuter = PrefixRefuter(tried)
    refuted = refuter.refutes(whose, first)
    assert refuter.refutes(whose, first) == refuted
    if refuted:
        assert try_protocol(tried, sample).fit < 1


def test_what_captures_note_fills_no_memory(tmp_path: Path) -> None:
    talk = simulated("nerdbank:version=3", 1, 20)
    noted = [f"nerdbank:window={window}" for window in range(1000, 1100) for _ in range(2)]
    path = write(tmp_path / "talks.pcapng", [talk] * len(noted), 1, noted.__getitem__)
    found = analysed(path, AnalysisOptions())
    assert {each.protocol for each in found.sessions} == {"nerdbank"}
    kept = sum(isinstance(each, PrefixRefuter) for each in gc.get_objects())
    assert 0 < kept <= 64
