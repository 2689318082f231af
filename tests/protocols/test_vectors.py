"""Conversations as data: every vector is run unsplit, split at every byte, and byte by byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.side import Vantage
from polymux.protocols.registry import create, protocol_names

VECTORS = Path(__file__).parent.parent / "vectors"
SIDES = {"d": 0, "a": 1}
LETTERS = "da"
Vector = dict[str, Any]


def load() -> list[Vector]:
    found: list[Vector] = []
    for name in protocol_names():
        for path in sorted((VECTORS / name).glob("*.json")):
            for vector in json.loads(path.read_text()):
                found.append({**vector, "file": f"{name}/{path.stem}"})
    return found


def label(vector: Vector) -> str:
    return f"{vector['file']}: {vector['name']}"


def observe(vector: Vector, pieces: list[tuple[int, bytes]]) -> dict[str, Any]:
    """Feed one vector's bytes to an observer and return what it reports."""
    vantage = Vantage[vector.get("vantage", "middle").upper()]
    text = vector["protocol"].replace(
        "tests/vectors", str(VECTORS)
    )  # profiles are stored with the vectors
    observer = Observer(create(text, vantage=vantage))
    at = 0
    for side, data in pieces:
        at += 1000
        observer.feed(side, data, at)
    ended = vector.get("ended", True)
    observer.finish(at + 1000, ended, ended)
    assert observer.accounts_for_all_bytes(), "bytes are not conserved"
    found = observer.take_violations()
    p = observer.protocol
    assert observer.rows is not None
    rows = [(b, i) for b in observer.rows.take() for i in range(b.used)]
    return {
        "violations": sorted([LETTERS[v.sender], v.frame_index, v.rule.name] for v in found),
        "kinds": [[LETTERS[b.sender[i]], p.kind_name(int(b.kind[i]))] for b, i in rows],
        "crossed": sorted(
            [LETTERS[b.sender[i]], b.frame_index[i]] for b, i in rows if b.verdict[i] == 1
        ),
        "lost": [LETTERS[s] for s in (0, 1) if observer.connection.direction(s).decoding_stopped],
        "streams": {
            s.label(): describe(observer, s) for s in [*p.streams.removed, *p.streams.all()]
        },
    }


def describe(observer: Observer, stream: Any) -> dict[str, Any]:
    halves = (stream.dialer, stream.acceptor)
    return {
        "ending": observer.protocol.ending(stream),
        "bytes": [half.content_bytes for half in halves],
        "units": [half.content_units for half in halves],
        "frames": [half.frames for half in halves],
        "granted": [half.credit_granted for half in halves],
        "reset_by": LETTERS[stream.reset_by] if stream.reset_by >= 0 else None,
        "name": stream.name.decode("utf-8", "replace") if stream.name is not None else None,
        "error": stream.error.decode("utf-8", "replace") if stream.error is not None else None,
    }


def steps_of(vector: Vector) -> list[tuple[int, bytes]]:
    return [(SIDES[side], raw_bytes(text)) for side, text in vector["steps"]]


def raw_bytes(text: str) -> bytes:
    """Hex with blanks; `7b*300` is that byte 300 times."""
    parts = [part.partition("*") for part in text.split()]
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in parts)


def cuts(steps: list[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    """The conversation with one step split at every byte; and all of it byte by byte."""
    ways: list[list[tuple[int, bytes]]] = []
    total = sum(len(data) for _, data in steps)
    for i, (side, data) in enumerate(steps):
        positions = range(1, len(data)) if total < 600 else (1, 2, 3, len(data) // 2, len(data) - 1)
        for position in positions:
            if 0 < position < len(data):
                halves = [(side, data[:position]), (side, data[position:])]
                ways.append([*steps[:i], *halves, *steps[i + 1 :]])
    if total < 5000:
        ways.append([(side, data[i : i + 1]) for side, data in steps for i in range(len(data))])
    return ways


@pytest.mark.parametrize("vector", load(), ids=label)
def test_a_conversation_is_validated_as_its_vector_says(vector: Vector) -> None:
    seen = observe(vector, steps_of(vector))
    assert seen["violations"] == sorted(vector.get("violations", []))
    assert seen["lost"] == vector.get("lost", [])
    for key in ("kinds", "crossed"):
        if key in vector:
            assert seen[key] == vector[key]
    for stream, expected in vector.get("streams", {}).items():
        assert stream in seen["streams"], f"no stream {stream}: {list(seen['streams'])}"
        assert {key: seen["streams"][stream][key] for key in expected} == expected
    for way in cuts(steps_of(vector)):
        assert observe(vector, way) == seen, f"cut as {[(s, d.hex()) for s, d in way]}"


@pytest.mark.parametrize("name", protocol_names())
def test_every_rule_has_a_vector_that_breaks_it(name: str) -> None:
    rules = {rule.name for rule in create(name).rules}
    broken = {rule for vector in load() for _, _, rule in vector.get("violations", [])}
    assert rules - broken == set()


@pytest.mark.parametrize("name", protocol_names())
def test_every_rule_says_what_it_means_and_where_it_stands(name: str) -> None:
    for rule in create(name).rules:
        assert rule.name.startswith(f"{name}.")
        assert rule.sentence.endswith(".")
        assert rule.section
        assert rule.severity in Severity
