"""Analysis frees its memory: a worker analyzes thousands of sessions, some of them for hours."""

import gc
import tracemalloc
from pathlib import Path

from tests.analysis.recorded_conversation import MS, Stage

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions

ROUNDS = 20


def test_analyzing_a_session_repeatedly_takes_no_more_memory(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"s")
    for _ in range(400):
        stage.wait(MS)
        stage.send(0, stream, bytes(500))
        stage.exchange()
    capture = tmp_path / "one.pcapng"
    with read_sessions([stage.save(capture)]) as reading:
        (session,) = reading
        column = 8 * session.packets  # size of one column of its events

        def rounds(count: int) -> None:
            for _ in range(count):
                assert (
                    analyze_session(
                        session, AnalysisOptions("mplex"), lambda table, batch: None
                    ).frames
                    > 400
                )

        rounds(3)
        gc.collect()
        gc.disable()  # nothing may depend on the cycle collector
        tracemalloc.start()
        try:
            rounds(1)
            before = tracemalloc.get_traced_memory()[0]
            rounds(ROUNDS)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
    assert grown < ROUNDS * column / 2
