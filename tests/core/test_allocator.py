"""Memory that sessions have freed goes back to the system, soon, and once for all of them."""

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

due = []

def later(seconds, act):
    due.append((seconds, act))

allocator.settle_allocator()
pieces = [bytes(60_000 + n) for n in range(2_000)]
kept = pieces[::50]
full = resident()
del pieces  # what is left holds the top of the heap
before = resident()
allocator.give_back(0.0, later)
pieces = [bytes(60_000 + n) for n in range(2_000)]
del pieces
allocator.give_back(0.5, later)  # the first sees to this too
again = resident()
[(seconds, act)] = due
act()
after = resident()
allocator.give_back(1.5, later)
print(full, before, again, after, seconds, len(due))
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this system has no malloc_trim"
)
def test_holes_are_given_back_once_for_all_sessions_that_end_together() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    full, before, again, after, seconds, asked = map(float, done.stdout.split())
    assert before > full - 20 * 2**20
    assert after < again - 80 * 2**20
    assert (seconds, asked) == (allocator.SOON, 2)


def test_a_system_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    allocator.trim()
