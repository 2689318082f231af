"""A wrongly named protocol is reported first, and its violations are only possible."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import MS, START, Record, analyse, save

from polymux.analysis.detection.detector import MISMATCH_PREFIX, find_mismatch, select_variant
from polymux.analysis.detection.sample import SessionSample
from polymux.analysis.options import AnalysisOptions
from polymux.protocols.registry import protocol_names
from polymux.testing.conversations import MODELS
from polymux.testing.models.base import ModelConversation
from polymux.testing.simulator import Simulation

SPOKEN = ("mplex", "nerdbank:version=1", "nerdbank:version=3", "omnistreams", "streamux", "minmux",
          "yamux")  # fmt: skip


def traffic(protocol: str, seed: int = 1, steps: int = 300) -> SessionSample:
    world = Simulation(protocol, seed)
    world.run(steps)
    return SessionSample(tuple(world.record))


def saved(path: Path, sample: SessionSample) -> str:
    record: Record = [
        (side, data, START + n * MS) for n, (side, data, _) in enumerate(sample.pieces, 1)
    ]
    return save(path, record, record[-1][2] + MS)


@pytest.mark.parametrize("named", protocol_names())
@pytest.mark.parametrize("spoken", SPOKEN)
def test_a_name_that_does_not_fit_is_contradicted_and_one_that_fits_is_not(
    spoken: str, named: str, tmp_path: Path
) -> None:
    # A few kilobytes of each; 300 steps of yamux are 400, all of which another name calls frames.
    sample = traffic(spoken, steps=150 if spoken == "yamux" else 300)
    found = analyse(saved(tmp_path / "a.pcapng", sample), plan=AnalysisOptions(named))
    assert found.session.protocol == named  # the explicit name decides how it is decoded
    note = found.session.note or ""
    if named == spoken.partition(":")[0]:
        assert MISMATCH_PREFIX not in note
        return
    assert note.startswith(f"{MISMATCH_PREFIX}{spoken}")
    assert "frames fit" in note
    assert f"but the option says {named}" in note
    assert {row["certainty"] for row in found.rows("violations")} <= {"possible"}


def test_a_version_that_was_named_wrongly_is_contradicted(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pcapng", traffic("nerdbank:version=3"))
    note = analyse(path, plan=AnalysisOptions("nerdbank:version=1")).session.note or ""
    assert note.startswith(f"{MISMATCH_PREFIX}nerdbank:version=3")


def test_a_port_and_a_note_in_the_capture_are_contradicted_alike(tmp_path: Path) -> None:
    sample = traffic("streamux")
    path = saved(tmp_path / "a.pcapng", sample)
    assert (
        analyse(path, plan=AnalysisOptions(ports={9000: "mplex"})).session.note or ""
    ).startswith(MISMATCH_PREFIX)
    record: Record = [(side, data, START + MS) for side, data, _ in sample.pieces]
    hinted = save(tmp_path / "b.pcapng", record, START + 2 * MS, protocol="mplex")
    assert "but the capture notes mplex" in (analyse(hinted).session.note or "")


def test_bytes_of_tls_are_not_read_as_a_protocol_without_a_word(tmp_path: Path) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01" + bytes(range(256)) * 2
    path = saved(tmp_path / "a.pcapng", SessionSample(((0, hello, 0), (1, hello, 0)), True))
    note = analyse(path, plan=AnalysisOptions("mplex")).session.note or ""
    assert note.startswith(f"{MISMATCH_PREFIX}TLS")


def test_the_note_names_the_preamble_option_for_libp2p(tmp_path: Path) -> None:
    greeting = b"\x13/multistream/1.0.0\n\x0d/mplex/6.7.0\n"
    talk = traffic("mplex")
    pieces = ((0, greeting, 0), (1, greeting, 0), *talk.pieces)
    path = saved(tmp_path / "a.pcapng", SessionSample(pieces, True))
    assert "mplex:preamble=multistream" in (
        analyse(path, plan=AnalysisOptions("mplex")).session.note or ""
    )
    told = analyse(path, plan=AnalysisOptions("mplex:preamble=multistream")).session
    assert MISMATCH_PREFIX not in (told.note or "")


@pytest.mark.parametrize("spoken", SPOKEN)
@pytest.mark.parametrize("seed", range(4))
def test_a_broken_conversation_of_the_protocol_that_was_named_is_not_contradicted(
    spoken: str, seed: int
) -> None:
    chance = random.Random(seed)
    pieces = list(traffic(spoken, seed).pieces)
    for _ in range(1 + seed):
        place = chance.randrange(len(pieces) // 2, len(pieces))
        side, data, at = pieces[place]
        broken = bytearray(data)
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        pieces[place] = (side, bytes(broken), at)
    assert find_mismatch(spoken, {}, SessionSample(tuple(pieces))) == ""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(8))
def test_what_was_captured_in_part_does_not_contradict_the_right_name(name: str, seed: int) -> None:
    chunks = (
        ModelConversation(MODELS[name], seed, steps=(0, 5, 12, 30)[seed % 4])
        .traces["middle"]
        .chunks
    )
    pieces = tuple((side, bytes(data), n * MS) for n, (side, data) in enumerate(chunks))
    parts = [tuple(piece for piece in pieces if piece[0] == side) for side in (0, 1)]
    parts += [pieces[:count] for count in range(1, 7)]
    samples = [SessionSample(part, True) for part in parts]
    for sample in (*samples, SessionSample(pieces[len(pieces) // 2 :], False)):
        settled, _ = select_variant(name, {}, sample)
        assert find_mismatch(settled, {}, sample) == ""


def test_http_without_an_upgrade_is_still_not_omnistreams() -> None:
    asked = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    answered = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    for pieces in (((0, asked, 0), (1, answered, 0)), ((0, asked, 0),), ((1, answered, 0),)):
        assert find_mismatch("omnistreams", {}, SessionSample(pieces, True)) == "HTTP"


@pytest.mark.parametrize("named", protocol_names())
def test_noise_contradicts_nothing(named: str) -> None:
    noise = random.Random(3).randbytes(4000)
    assert find_mismatch(named, {}, SessionSample(((0, noise, 0), (1, noise[::-1], 0)))) == ""
    assert find_mismatch(named, {}, SessionSample(())) == ""
