"""Builds all tables, totals included, from constructed sessions and frames."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from polymux.analysis.schema.tables import TABLES, bucket_of, bucket_width_us

START = 1_760_000_000_000_000  # microseconds since 1970
Values = dict[str, object]


def write_tables(folder: Path, rows: dict[str, list[Values]]) -> Path:
    """Write every table, including empty ones; a missing nullable column is null."""
    for name, table in TABLES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        if not rows.get(name):
            continue
        schema = table.to_arrow()
        columns = {}
        for field in schema:
            values = [row.get(field.name) for row in rows[name]]
            assert field.nullable or None not in values, (name, field.name)
            kind = pa.int64() if pa.types.is_timestamp(field.type) else field.type
            columns[field.name] = pa.array(values, kind).cast(field.type)
        pq.write_table(pa.table(columns, schema=schema), folder / name / "part-0.parquet")
    return folder


class Stage:
    """The rows of all tables so far."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Values]] = {name: [] for name in TABLES}

    def write(self, folder: Path) -> Path:
        return write_tables(folder, self.rows)

    def capture(self, file: str, status: str = "whole", **more: object) -> None:
        row: Values = dict.fromkeys(TABLES["captures"].column_names(), 0)
        row |= {
            "file": file,
            "sensor": "default",
            "format": "pcapng",
            "status": status,
            "error": None,
            "error_offset": None,
        }
        self.rows["captures"].append(row | more)


class Play:
    """One session: streams and frames in order; `end` adds its rows to the tables."""

    def __init__(self, stage: Stage, id: str, protocol: str = "mplex", **session: object) -> None:
        self.stage = stage
        self.id = id
        self.session: Values = {"protocol": protocol, **session}
        self.started = START + 7_000_000 * len(stage.rows["sessions"])
        self.streams: dict[str, Values] = {}
        self.frames: list[Values] = []
        self.found: list[Values] = []
        self.blocked: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)

    def stream(self, key: str, name: str | None = None, at: int = 0, **more: object) -> None:
        """Open a stream; `more` overrides any column of its row."""
        opener = {"d": "dialer", "a": "acceptor"}.get(key[0])
        number = int(key[1:].partition(".")[0])
        self.streams[key] = {
            "session_id": self.id, "stream": key, "opener": opener, "stream_id": number,
            "incarnation": int(key.partition(".")[2] or 1), "name": name,
            "name_bytes": None if name is None else name.encode("utf-8", "replace"),
            "opened_at": self.started + at, "ending": "open", **more,
        }  # fmt: skip

    def frame(
        self, at: int, sender: str, kind: str, stream: str | None = None, payload: int = 0,
        verdict: str = "clean", amount: int | None = None,
    ) -> None:  # fmt: skip
        self.frames.append(
            {
                "session_id": self.id, "sender": sender, "time": self.started + at, "kind": kind,
                "size": payload + 4, "stream": stream, "amount": amount, "payload_bytes": payload,
                "verdict": verdict,
            }
        )  # fmt: skip

    def violation(self, at: int, sender: str, rule: str, stream: str | None = None,
                  severity: str = "error", detail: str | None = None, kind: str = "Content",
                  certainty: str = "certain", origin: str = "spec") -> None:  # fmt: skip
        verdict = "clean" if severity == "note" else "violation"
        self.frame(at, sender, kind, stream, 20, verdict)
        self.found.append(
            {
                "session_id": self.id, "sender": sender, "time": self.started + at, "rule": rule,
                "stream": stream, "severity": severity, "detail": detail, "origin": origin,
                "certainty": certainty, "frame": self.frames[-1],
            }
        )  # fmt: skip

    def stall(self, at: int, lasted: int, stream: str, sender: str, cause: str,
              culprit: str | None = None, detail: str | None = None) -> None:  # fmt: skip
        self.stage.rows["stalls"].append(
            {
                "session_id": self.id, "stream": stream, "sender": sender, "cause": cause,
                "started_at": self.started + at, "duration_us": lasted, "blocking_stream": culprit,
                "detail": detail,
            }
        )  # fmt: skip
        if cause == "no-credit":
            self.blocked[stream, sender].append((at, at + lasted))

    def requests(self, opener: str, asked: int, answered: int, *latencies: int) -> None:
        """Add a row of `requests`; `latencies` are p50, p90, p99 and the maximum."""
        names = ("latency_p50_us", "latency_p90_us", "latency_p99_us", "latency_max_us")
        self.stage.rows["requests"].append(
            {
                "session_id": self.id, "opener": opener, "requests": asked, "answered": answered,
                **dict(zip(names, latencies, strict=bool(latencies))),
            }
        )  # fmt: skip

    def end(self, lasted: int, **session: object) -> None:
        """Number the frames, compute the totals and add the rows."""
        self.frames.sort(key=lambda frame: int(str(frame["time"])))
        ordinals = {"dialer": 0, "acceptor": 0}
        offsets = {"dialer": 0, "acceptor": 0}
        for frame in self.frames:
            sender = str(frame["sender"])
            frame["frame_index"], frame["byte_offset"] = ordinals[sender], offsets[sender]
            ordinals[sender] += 1
            offsets[sender] += int(str(frame["size"]))
        for row in self.found:
            broken = row.pop("frame")
            assert isinstance(broken, dict)
            row |= {"frame_index": broken["frame_index"], "byte_offset": broken["byte_offset"]}
        self.stage.rows["frames"] += self.frames
        self.stage.rows["violations"] += self.found
        self._timeline(lasted)
        self._streams()
        self.stage.rows["sessions"].append(self._session(lasted, offsets) | session)

    def _session(self, lasted: int, offsets: dict[str, int]) -> Values:
        row: Values = {
            "session_id": self.id, "capture": ["demo.pcapng"], "vantage": "middle",
            "dialer": "10.0.0.7:50112", "acceptor": "10.0.0.9:9000", "started_at": self.started,
            "ended_at": self.started + lasted, "frames": len(self.frames),
            "streams": len(self.streams), "violations": len(self.found), "ending": "clean",
            "sensor": "default",
        }  # fmt: skip
        for side in ("dialer", "acceptor"):
            row |= {
                f"bytes_{side}": offsets[side],
                f"missing_bytes_{side}": 0,
                f"undecoded_bytes_{side}": 0,
            }
            row[f"overhead_bytes_{side}"] = 0
            row[f"payload_bytes_{side}"] = sum(
                int(str(stream[f"bytes_{side}"])) for stream in self.streams.values()
            )
        return row | self.session

    def _streams(self) -> None:
        for key, stream in self.streams.items():
            for side in ("dialer", "acceptor"):
                own = [f for f in self.frames if f["stream"] == key and f["sender"] == side]
                size = sum(int(str(frame["payload_bytes"])) for frame in own)
                sums: Values = {
                    f"bytes_{side}": size, f"units_{side}": size, f"frames_{side}": len(own)
                }  # fmt: skip
                stood = [
                    row
                    for row in self.stage.rows["stalls"]
                    if (row["session_id"], row["stream"], row["sender"]) == (self.id, key, side)
                ]
                for name, causes in (
                    ("stalled_us", ("no-credit", "slow-reader", "head-of-line")),
                    ("hol_blocked_us", ("head-of-line",)),
                ):
                    sums[f"{name}_{side}"] = sum(
                        int(str(row["duration_us"])) for row in stood if row["cause"] in causes
                    )
                if own:
                    sums |= {f"first_at_{side}": own[0]["time"], f"last_at_{side}": own[-1]["time"]}
                if (key, side) in self.blocked:
                    sums[f"blocked_us_{side}"] = sum(b - a for a, b in self.blocked[key, side])
                self.streams[key] = stream = sums | stream
            self.stage.rows["streams"].append(stream)

    def _timeline(self, lasted: int) -> None:
        width = bucket_width_us(lasted)
        cells: dict[tuple[str | None, str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for frame in self.frames:
            bucket = bucket_of(int(str(frame["time"])) - self.started, width)
            key = frame["stream"]
            cell = cells[None if key is None else str(key), str(frame["sender"]), bucket]
            cell[0] += 1
            cell[1] += int(str(frame["payload_bytes"]))
        for (stream, sender), spans in self.blocked.items():
            for first, last in spans:
                for bucket in range(bucket_of(first, width), bucket_of(last, width) + 1):
                    inside = min(last, (bucket + 1) * width) - max(first, bucket * width)
                    cells[stream, sender, bucket][2] += max(0, inside)
        for (key, sender, bucket), (frames, size, blocked) in cells.items():
            self.stage.rows["timeline"].append(
                {
                    "session_id": self.id, "stream": key, "sender": sender, "bucket": bucket,
                    "frames": frames, "bytes": size, "blocked_us": blocked,
                }
            )  # fmt: skip
