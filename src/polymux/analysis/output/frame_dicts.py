"""Frame rows of an observer as dicts, for `decode`, pipes and live sessions.

The analysis of captures makes Arrow columns instead (`arrow_batches`), which is many times faster.
"""

from __future__ import annotations

from polymux.analysis.schema.tables import SIDES, VERDICTS
from polymux.core.observer import Observer
from polymux.core.protocol import NO_STREAM
from polymux.core.streams import ID_MODULUS

Row = dict[str, object]


def take_frame_rows(observer: Observer) -> list[Row]:
    """The frames completed since the last call: the columns of `frames` without `session_id`.

    `time` is in microseconds.
    """
    assert observer.rows is not None
    found: list[Row] = []
    for batch in observer.rows.take():
        for i in range(batch.used):
            found.append(
                {
                    "sender": SIDES[int(batch.sender[i])],
                    "frame_index": int(batch.frame_index[i]),
                    "time": int(batch.time[i]) // 1000,
                    "byte_offset": int(batch.byte_offset[i]),
                    "size": int(batch.size[i]),
                    "kind": observer.protocol.kind_name(int(batch.kind[i])),
                    "stream": format_stream_key(
                        int(batch.opener[i]), int(batch.stream_id[i]), int(batch.incarnation[i])
                    ),
                    "amount": int(batch.amount[i]) if batch.amount[i] >= 0 else None,
                    "payload_bytes": int(batch.payload_bytes[i]),
                    "verdict": VERDICTS[int(batch.verdict[i])],
                }
            )
    return found


def format_stream_key(opener: int, stream_id: int, incarnation: int) -> str | None:
    """A stream's key as in the tables: `d1`, `a2`, `d0.2`; None for no stream."""
    if opener == NO_STREAM:
        return None
    use = f".{incarnation}" if incarnation > 1 else ""
    return f"{'das'[opener]}{stream_id if stream_id >= 0 else stream_id + ID_MODULUS}{use}"
