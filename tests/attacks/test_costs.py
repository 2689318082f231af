"""What one hostile input costs an endpoint, byte for byte: memory and time (R8, R12)."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest
from tests.attacks import raw_frames as words
from tests.attacks.families.bombs import corpus
from tests.attacks.runner import SLACK

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation
from polymux.protocols.registry import create

MIB = 1024 * 1024
READ = 64 * 1024  # bytes a socket gives at once


def endpoint(protocol: str) -> Endpoint:
    end = Endpoint(create(protocol, vantage=1), 1, direct=True)
    end.start(bytes(16))
    return end


def swallow(end: Endpoint, data: bytes) -> int:
    """Feed bytes like a socket. Return how many were accepted before the endpoint failed."""
    for start in range(0, len(data), READ):
        try:
            end.receive(data[start : start + READ], 1.0)
        except (PeerViolation, LimitExceeded):
            return start
        end.data_to_send()
    return len(data)


@pytest.mark.parametrize("version", [2, 3])
def test_no_bomb_costs_more_than_ten_milliseconds_and_two_mib(version: int) -> None:
    bombs = corpus(version)
    assert len(bombs) >= 40
    worst_time, worst_memory = 0.0, 0
    for data in bombs:
        end = endpoint(f"nerdbank:version={version}")
        end.receive(words.HELLO[version], 0.0)
        best = 1.0
        for _ in range(3):  # the quickest of three: what it costs, not what the machine does
            trial = endpoint(f"nerdbank:version={version}")
            trial.receive(words.HELLO[version], 0.0)
            began = time.process_time()
            swallow(trial, data)
            best = min(best, time.process_time() - began)
        worst_time = max(worst_time, best)
        tracemalloc.start()
        swallow(end, data)
        worst_memory = max(worst_memory, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    print(f"R12 nerdbank v{version}: {len(bombs)} bombs, at most {worst_time * 1000:.1f} ms and "
          f"{worst_memory / MIB:.2f} MiB")  # fmt: skip
    assert worst_time <= 0.010 * SLACK
    assert worst_memory <= 2 * MIB


OVERSIZED = [
    ("mplex", b"\x00\x00" + words.uvarint(2) + words.uvarint(1 << 40)),
    ("mplex", words.uvarint(0) + words.uvarint(1 << 40)),
    ("nerdbank:version=2",
     words.HELLO[2] + words.Nerdbank(2).offer(1) + b"\x93\x02\x01\xc6\xff\xff\xff\xff"),
    ("nerdbank:version=3", words.Nerdbank(3).offer(1) + b"\x94\x02\x01\x01\xc6\xff\xff\xff\xff"),
    ("nerdbank:version=3", b"\x94\x00\x01\x01\xc6\xff\xff\xff\xff"),
    ("omnistreams:carrier=length", struct.pack(">I", 64 * MIB)),
    ("omnistreams:carrier=length", struct.pack(">I", 0xFFFFFFFF) + b"\x02\x00"),
    ("streamux", bytes([1, 29, 1, 50]) + struct.pack("<I", ((1 << 29) - 1) << 1)),
    ("minmux", words.minmux(0, 1, (1 << 64) - 1)),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "head"), OVERSIZED)
def test_a_length_that_is_too_long_is_refused_at_the_header(protocol: str, head: bytes) -> None:
    end = endpoint(protocol)
    data = head + bytes(8 * MIB)
    tracemalloc.start()
    taken = swallow(end, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken <= READ, f"{taken} bytes were read before it was refused"
    assert peak <= MIB
