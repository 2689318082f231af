"""Trace how many files and functions a small unit of work passes through.

`python -m tools.trace_walk` runs the interpreted source with `sys.setprofile` and counts, for calls
of functions below `src/polymux` only:

- one received mplex frame: from the socket to `await stream.receive()` returning;
- one send: from `await stream.send()` to the socket;
- one packet to Parquet: the index task and the analyze task of the batch pipeline on a capture with
  one data packet, without Spark.

For each it prints the calls, the distinct functions, the files, and the switches: calls or returns
that land in another file. Many switches mean that a reader has to jump between files to follow one
operation. `--list` also prints the functions in the order of their first call.

Compiled modules are invisible to a profile function, so the modules must be the plain source:
`PYTHONPATH=src python -m tools.trace_walk`.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

SOURCE = str(Path(__file__).parent.parent / "src" / "polymux") + "/"
OPEN_FRAME = b"\x08\x04name"  # mplex: open stream 1 with a name
DATA_FRAME = b"\x0a\x05hello"  # five bytes on it
START_NS = 1_700_000_000_000_000_000


class Trace:
    """Counts calls and file switches while it is active."""

    def __init__(self) -> None:
        self.calls = 0
        self.switches = 0
        self.functions: dict[CodeType, None] = {}  # in the order of their first call
        self._files: list[str] = []  # of the active functions, innermost last

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.functions}

    @contextmanager
    def active(self) -> Iterator[None]:
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE):
            return
        if event == "call":
            self.calls += 1
            self.functions[code] = None
            self._count_switch(code.co_filename)
            self._files.append(code.co_filename)
        elif event == "return" and self._files:  # else a call from before the trace
            self._count_switch(self._files.pop())

    def _count_switch(self, file: str) -> None:
        if self._files and self._files[-1] != file:
            self.switches += 1

    def lines(self) -> Iterator[str]:
        """The functions, as `path:function`."""
        for code in self.functions:
            yield f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname}"


async def trace_session() -> tuple[Trace, Trace]:
    """Trace one received frame and one send of an mplex session; its peer is a plain socket."""
    from polymux.aio import Stream, connect

    received, sent = Trace(), Trace()

    async def read(stream: Stream) -> None:
        await stream.receive()
        sys.setprofile(None)  # what follows in `data_received` is no longer this frame's way

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        async with connect(url, protocol="mplex") as session:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(OPEN_FRAME)
                stream = await session.accept()
                reading = asyncio.create_task(read(stream))
                await asyncio.sleep(0.05)  # until it waits
                with received.active():
                    peer.sendall(DATA_FRAME)
                    await reading
                with sent.active():
                    await stream.send(b"answer")
                    await asyncio.sleep(0.05)  # until it is written
                peer.recv(1024)  # closing with unread data would reset the connection
    return received, sent


def trace_packet() -> Trace:
    """Trace the index task and the analyze task on a capture with one data packet."""
    from polymux.analysis.options import AnalysisOptions
    from polymux.capture import CaptureLimits, PcapngWriter, TcpConnectionWriter
    from polymux.capture.io.discovery import find_inputs
    from polymux.spark.batch.analyze_stage import FewNames, analyze_task, plan_analyze_tasks
    from polymux.spark.batch.index_stage import index_task, plan_index_tasks
    from polymux.spark.batch.reference_shuffle import IndexResult, IndexTotals

    trace = Trace()
    limits, options = CaptureLimits(), AnalysisOptions("mplex")
    with tempfile.TemporaryDirectory() as folder:
        capture = str(Path(folder) / "one.pcapng")
        with PcapngWriter(capture, sync="none") as writer:
            connection = TcpConnectionWriter(
                writer, ("192.0.2.1", 40000), ("198.51.100.2", 9000), START_NS
            )
            connection.data(0, OPEN_FRAME + DATA_FRAME, START_NS + 1)
            connection.close(START_NS + 2)
        files = find_inputs([capture])
        with trace.active():
            indexed = IndexTotals()
            for spans in plan_index_tasks(files, 1):
                indexed.add(IndexResult.unpack(index_task(folder, limits)(spans)))
            names = FewNames(indexed.names)
            for task in plan_analyze_tasks(indexed, 1):
                analyze_task(names, folder, options, limits)(task)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the files that one operation passes.")
    parser.add_argument("--list", action="store_true", help="also print the functions")
    arguments = parser.parse_args()
    from polymux.core import connection

    if not str(connection.__file__).startswith(SOURCE):
        sys.exit("these are not the plain source: PYTHONPATH=src python -m tools.trace_walk")
    received, sent = asyncio.run(trace_session())
    traces = {"one received frame": received, "one send": sent, "one packet": trace_packet()}
    for name, trace in traces.items():
        counts = f"{trace.calls} calls, {len(trace.functions)} functions"
        print(f"{name}: {counts}, {len(trace.files)} files, {trace.switches} switches")
        if arguments.list:
            print("".join(f"  {line}\n" for line in trace.lines()), end="")


if __name__ == "__main__":
    main()
