"""An example for every rule: the shortest test vector that violates it.

`python -m tools.docs` writes the examples to `report/render/assets/rules.json`, which the report,
`polymux rules` and the pages below docs/rules read.
"""

import json
from pathlib import Path
from typing import Any

from polymux.core.observer import Observer
from polymux.core.side import Vantage
from polymux.core.streams import ID_MODULUS
from polymux.protocols.registry import create, protocol_names

VECTORS = Path(__file__).parent.parent / "tests" / "vectors"
SIDES = {"d": 0, "a": 1}
SIDE_NAMES = ("dialer", "acceptor")
MAX_SHOWN_BYTES = 32  # most bytes of a frame that are printed
STEP_US = 1024  # microseconds between two steps of a vector

Vector = dict[str, Any]
Example = dict[str, Any]


def examples() -> dict[str, Example]:
    """For each rule: `story`, `protocol`, and `lines` of [sender, hex, description, violates]."""
    best: dict[str, tuple[tuple[int, int, str], Vector]] = {}
    for vector in conversations():
        size = sum(len(parse_hex(step[1])) for step in vector["steps"])
        rank = (len(vector["violations"]), size, str(vector["name"]))
        for _, _, rule in vector["violations"]:
            if rule not in best or rank < best[rule][0]:
                best[rule] = (rank, vector)
    found = {rule: conversation(rule, vector) for rule, (_, vector) in best.items()}
    found |= frames()
    return dict(sorted(found.items()))


def conversations() -> list[Vector]:
    return [
        vector
        for name in protocol_names()
        for path in sorted((VECTORS / name).glob("*.json"))
        for vector in json.loads(path.read_text())
    ]


def conversation(rule: str, vector: Vector) -> Example:
    """The frames of a vector in the order of sending, the violating ones marked."""
    vantage = Vantage[vector.get("vantage", "middle").upper()]
    text = vector["protocol"].replace("tests/vectors", str(VECTORS))
    observer = Observer(create(text, vantage=vantage))
    wire = [b"", b""]
    for number, (letter, digits) in enumerate(vector["steps"], 1):
        data = parse_hex(digits)
        wire[SIDES[letter]] += data
        observer.feed(SIDES[letter], data, number * STEP_US)
    ended = vector.get("ended", True)
    over = (len(vector["steps"]) + 1) * STEP_US
    observer.finish(over, ended, ended)
    violating = {  # sender and frame; -1 if the violation is something that was never sent
        (int(violation.sender), violation.frame_index if violation.time < over else -1)
        for violation in observer.take_violations()
        if violation.rule.name == rule
    }
    lines: list[list[object]] = []
    read = [0, 0]
    assert observer.rows is not None
    for batch in observer.rows.take():
        for i in range(batch.used):
            side, start, size = int(batch.sender[i]), int(batch.byte_offset[i]), int(batch.size[i])
            key = (side, int(batch.frame_index[i]))
            stream = label(int(batch.opener[i]), int(batch.stream_id[i]), int(batch.incarnation[i]))
            what = observer.protocol.kind_name(int(batch.kind[i])) + (
                f" {stream}" if stream else ""
            )
            lines.append(
                [
                    SIDE_NAMES[side],
                    hex_text(wire[side][start : start + size]),
                    what,
                    key in violating,
                ]
            )
            violating.discard(key)
            read[side] = max(read[side], start + size)
    for side in (0, 1):
        rest = wire[side][read[side] :]
        violates = any(sender == side for sender, _ in violating)
        if rest or violates:
            what = "not decoded" if rest else "the connection ends"
            lines.append([SIDE_NAMES[side], hex_text(rest), what, violates])
    protocol = vector["protocol"].partition(":profile=")[0]
    return {"story": vector["name"], "protocol": protocol, "lines": lines}


def frames() -> dict[str, Example]:
    """Examples for the rules of WebSocket framing, from its own vectors of one direction each."""
    best: dict[str, tuple[int, Vector]] = {}
    for path in sorted((VECTORS / "websocket").glob("*.json")):
        for case in json.loads(path.read_text()).get("cases", ()):
            if not all(isinstance(part, str) for part in case.get("wire", [0])):
                continue
            size = sum(len(part) for part in case["wire"])
            for item in case.get("finds", ()):
                rule = item.get("fault")
                if rule and (rule not in best or size < best[rule][0]):
                    best[rule] = (size, case)
    return {
        f"websocket.{rule}": {
            "story": case["name"],
            "protocol": "omnistreams",
            "lines": [
                [case.get("sender", "acceptor"), hex_text(bytes.fromhex("".join(case["wire"]))),
                 "WebSocket", True]
            ],
        }
        for rule, (_, case) in best.items()
    }  # fmt: skip


def parse_hex(text: str) -> bytes:
    """Parse hex with spaces; `7b*300` is that byte 300 times."""
    parts = [part.partition("*") for part in text.split()]
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in parts)


def label(opener: int, number: int, incarnation: int) -> str:
    if opener > 2:
        return ""
    use = f".{incarnation}" if incarnation > 1 else ""
    return f"{'das'[opener]}{number if number >= 0 else number + ID_MODULUS}{use}"


def hex_text(data: bytes) -> str:
    """Format bytes in hex; of a long frame, the beginning and the number of bytes."""
    if len(data) <= MAX_SHOWN_BYTES:
        return data.hex()
    return f"{data[:MAX_SHOWN_BYTES].hex()}... ({len(data)} bytes)"


def as_json() -> str:
    """Format the examples as JSON, one rule per line for readable diffs."""
    entries = [
        f" {json.dumps(rule)}: {json.dumps(example)}" for rule, example in examples().items()
    ]
    return "{\n" + ",\n".join(entries) + "\n}\n"
