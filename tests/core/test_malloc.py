"""Memory freed by sessions is returned to the system, soon and not too often."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from polymux import malloc as allocator

HOLES = """
import sys
from polymux import malloc as allocator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

due = []

def later(seconds, act):
    due.append((seconds, act))

allocator.raise_trim_threshold()
pieces = [bytes(60_000 + n) for n in range(2_000)]
kept = pieces[::50]
full = resident()
del pieces  # what remains pins the top of the heap
before = resident()
allocator.schedule_trim(0.0, later)
seconds, act = due.pop()
act()
print(full, before, resident())
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this system has no malloc_trim"
)
def test_holes_in_the_heap_are_returned_when_a_session_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    full, before, after = map(float, done.stdout.split())
    assert before > full - 20 * 2**20
    assert after < before - 80 * 2**20


@pytest.mark.parametrize(
    ("ends", "given_back"),
    [
        ([5.0], [5.0]),
        ([5.0, 5.0, 5.0], [5.0, 6.0]),  # the memory of the later ones may not be free yet
        ([5.0, 5.1, 5.2, 5.9], [5.0, 6.0]),
        ([5.0, 5.1, 6.0, 6.5, 7.5], [5.0, 6.0, 7.0, 8.0]),
        ([5.0, 6.5], [5.0, 6.5]),
        ([5.0, 2.0], [5.0, 2.0]),  # another event loop, with its own clock
    ],
)
def test_every_session_end_is_followed_by_a_trim_and_trims_are_a_second_apart(
    ends: list[float], given_back: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "_trim_time", [])
    times: list[float] = []
    for now in ends:
        allocator.schedule_trim(now, lambda seconds, _, now=now: times.append(now + seconds))  # type: ignore[misc]
    assert times == pytest.approx(given_back)


def test_a_system_without_malloc_trim_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    allocator.trim()
