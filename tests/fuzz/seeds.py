"""Seeds for fuzzing: the test vectors, the malformed captures, and earlier findings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

from tests.capture import capture_builder as build
from tests.capture.hostile_files import CORPUS

from polymux.conform.catalogue import cases_of
from polymux.conform.notation.payload import parse_frame
from polymux.conform.notation.selection import NOTATIONS

VECTORS = Path(__file__).parents[1] / "vectors"
FOUND = VECTORS / "fuzz"  # one folder a target, one file an input that once did harm


def raw_bytes(text: str) -> bytes:
    """Hex with blanks; `7b*300` is that byte 300 times."""
    parts = [part.partition("*") for part in text.split()]
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in parts)


def conversations(folder: str, sides: str = "da") -> list[bytes]:
    """The bytes of one side in every vector of a protocol; and of both, for observers."""
    found: list[bytes] = []
    for path in sorted((VECTORS / folder).glob("*.json")):
        for vector in json.loads(path.read_text()):
            steps = vector.get("steps", [])
            whole = b"".join(raw_bytes(text) for side, text in steps if side in sides)
            if 0 < len(whole) <= 4096:
                found.append(whole)
    return found


def hex_strings(folder: str) -> list[bytes]:
    """Every string of hex in the vectors of a folder."""
    found: list[bytes] = []
    for path in sorted((VECTORS / folder).glob("*.json")):
        for text in re.findall(r'"((?:[0-9a-f]{2} ?){2,2000})"', path.read_text()):
            found.append(bytes.fromhex(text))
    return found


def case_bytes(name: str, side: int = 0) -> list[bytes]:
    """What the conformance tester sends in each of its cases, as far as it waits for nothing."""
    found: list[bytes] = []
    for case in cases_of(name):
        notation = NOTATIONS[name]({key: values[0] for key, values in case.options.items()}, side)
        lines = [line.strip() for line in case.script.splitlines()]
        data = b"" if "bare" in lines else notation.hello()
        for line in lines:
            if line.startswith("> hex "):
                data += bytes.fromhex(line[6:])
            elif line.startswith("> ") and " p " not in f"{line} ":
                words = parse_frame(line[2:])
                if not words.stream.startswith("p"):
                    data += notation.encode(words)
        if 0 < len(data) <= 4096:
            found.append(data)
    return found


def seeds_of(target: str) -> list[bytes]:
    """Complete inputs of a target: the bytes that select options, then a vector."""
    made: list[bytes] = []
    if target == "captures":
        talk = build.frame(build.ALICE, build.BOB, 1, payload=b"\x08\x00\x0a\x01x")
        packets = [build.Packet(build.START + n, talk) for n in range(3)]
        made = [build.pcapng(packets), build.pcap(packets), build.pcap(packets, nano=True)]
        made += [lie.data for lie in CORPUS if len(lie.data) <= 8192]
    elif target == "websocket":
        for data in hex_strings("websocket"):
            made += [bytes([0, 0]) + data, bytes([3, 2]) + data]
    elif target == "tls":
        for vector in json.loads((VECTORS / "tls" / "conversations.json").read_text()):
            ends = [
                b"".join(bytes.fromhex(d) for s, d in vector["steps"] if s == end) for end in "da"
            ]
            for options in (0, 1, 3, 7):
                for cut in (0, 1, 7):
                    size = len(ends[0]).to_bytes(2, "big")
                    made.append(bytes([options, cut]) + size + ends[0] + ends[1])
    elif target in ("observer", "guess"):
        names = ["mplex", "nerdbank", "omnistreams", "streamux", "minmux", "yamux"]
        for n, name in enumerate(names):
            for data in [*conversations(name), *case_bytes(name)]:
                made.append(bytes([n if target == "observer" else 4, n % 8, n % 32]) + data)
    else:
        folder = target.rstrip("123")
        cases = case_bytes(folder) if folder in NOTATIONS else []
        made = [bytes([220]) + data for data in [*conversations(folder, "d"), *cases]]
        made += [bytes([0]) + data for data in made]
    return made + [path.read_bytes() for path in sorted((FOUND / target).glob("*"))]


def mutated(chance: Random, seeds: list[bytes]) -> bytes:
    """One more input: a seed with a few of its bytes changed, moved, doubled or lost."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice([1, 1, 2, 4, 8])):
        place = chance.randrange(len(data) + 1)
        act = chance.randrange(7)
        if act == 0 and place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        elif act == 1 and place < len(data):
            data[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif act == 2:
            del data[place : place + chance.randrange(1, 9)]
        elif act == 3:
            data[place:place] = chance.randbytes(chance.randrange(1, 9))
        elif act == 4:
            data[place:place] = data[place : place + chance.randrange(1, 40)]
        elif act == 5:
            other = chance.choice(seeds)
            start = chance.randrange(len(other) + 1)
            data[place:] = other[start : start + 600]
        else:
            data[place:place] = chance.choice([b"\xff" * 8, b"\x80" * 9, bytes(4), b"\xc6\xff\xff"])
    return bytes(data[:6000])
