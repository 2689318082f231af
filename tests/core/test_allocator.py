"""Memory that sessions have freed goes back to the system, now and then."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from polymux.core import allocator

HOLES = """
import sys
from polymux.core import allocator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

allocator.settle_allocator()
pieces = [bytes(60_000 + n) for n in range(2_000)]
kept = pieces[::50]
full = resident()
del pieces  # what is left holds the top of the heap
before = resident()
allocator.give_back(0.0)
after = resident()
pieces = [bytes(60_000 + n) for n in range(2_000)]
del pieces
allocator.give_back(0.5)  # too soon
again = resident()
allocator.give_back(1.5)
print(full, before, after, again, resident())
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this system has no malloc_trim"
)
def test_holes_are_given_back_but_not_every_time() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    full, before, after, again, last = (int(word) / 2**20 for word in done.stdout.split())
    assert before > full - 20
    assert after < before - 80
    assert again > after + 80
    assert last < again - 80


def test_a_system_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    allocator._given.clear()
    allocator.give_back(1e9)
    assert allocator._given == [1e9]
    allocator._given.clear()
