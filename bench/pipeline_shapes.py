"""The complete pipeline over captures of other shapes, each beside the same work without Spark."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import pipeline_floor as plain
from bench import pipeline_runs as runs
from bench.harness import Floor, Line, Times
from bench.pipeline_captures import Conversations

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from pyspark.sql import SparkSession

ROUNDS = 2
MB = 1e6


@dataclass(frozen=True)
class Shape:
    """The shape of a capture: sessions, bytes of packets and frames, files; and its size relative
    to the benchmark's other captures."""

    name: str
    sessions: int = 64
    payload: int = 500
    frame: int = 100
    files: int = 1
    size_divisor: int = 8
    required_mb: float = 0.0  # MB/s required, unless `required_share` of the line `of` is less
    required_share: float = 0.0
    of: str = ""


SHAPES = (
    Shape("20-byte frames", frame=20),
    Shape("1,400-byte frames", payload=1400, frame=1400),
    Shape("2 sessions", sessions=2),
    Shape("5,000 sessions", sessions=5_000, size_divisor=32, required_mb=150, required_share=1 / 3,
          of="2 sessions"),
    Shape("1 session in 16 files", sessions=1, files=16),
)  # fmt: skip


def measure(spark: SparkSession, pool: ProcessPoolExecutor, folder: Path, size: int) -> list[Line]:
    """A line for each shape."""
    lines: dict[str, Line] = {}
    for shape in SHAPES:
        line = measure_shape(spark, pool, folder / "shape", shape, size // shape.size_divisor)
        if shape.required_mb:
            line.floors.insert(0, required_speed(shape, line.amount, lines[shape.of]))
        lines[shape.name] = line
    return list(lines.values())


def required_speed(shape: Shape, size: float, other: Line) -> Floor:
    """The slower of a fixed speed and a share of that of another shape."""
    share = shape.required_share * other.value
    name = f"{shape.required_mb:.0f} MB/s or a share of {shape.of}"
    times = Times()
    times.add(*[size / MB / min(shape.required_mb, share)] * 2)
    return Floor(name, times, 1.0)


def measure_shape(
    spark: SparkSession, pool: ProcessPoolExecutor, folder: Path, shape: Shape, byte_count: int
) -> Line:
    paths, frames = write_captures(folder, shape, byte_count)
    ours, theirs = Times(), Times()
    for _ in range(ROUNDS):
        done = runs.time_call(ours, lambda: runs.tables(spark, paths, folder / "spark"))
        assert done.total.frames == frames, (shape.name, done.total.frames, frames)
        found = runs.time_call(theirs, lambda: plain.tables(pool, paths, str(folder / "plain")))
        assert found == frames, (shape.name, found, frames)
        shutil.rmtree(folder / "plain")
    size = sum(map(os.path.getsize, paths))
    shutil.rmtree(folder)
    floor = Floor("without Spark", theirs)
    return Line(
        f"to all tables, {shape.name}", ours, size, "MB/s", [floor], clock="wall", scale=MB,
        note=frame_rate(frames, ours),
    )  # fmt: skip


def frame_rate(frames: int, times: Times) -> str:
    return f"{frames / times.best('wall') / 1e6:.2f} million frames a second"


def write_captures(folder: Path, shape: Shape, size: int) -> tuple[list[str], int]:
    """Write its files. Return them and the number of frames."""
    folder.mkdir()
    talks = Conversations(shape.sessions, shape.payload, shape.frame)
    paths = []
    for number in range(shape.files):
        path = folder / f"capture-{number:02}.pcap"
        talks.write(path, size // shape.files, last=number == shape.files - 1)
        paths.append(str(path))
    return paths, talks.frames
