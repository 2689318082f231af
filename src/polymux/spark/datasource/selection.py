"""Which rows a read asks for: the options `onlySessions`, `onlyKinds`, `since` and their like.

PySpark 4.3 gives wrong rows when a source accepts pushed filters and a DataFrame is used twice, so
that what a query asks for is said by options. The rows are those of the same condition in `where`.
Sessions that have none of them are left out before their payload is read; other rows before they
are handed to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from polymux.analysis.options import AUTO, AnalysisOptions
from polymux.analysis.output.session_rows import make_session_id
from polymux.analysis.schema.tables import SIDES, TABLES, VERDICTS
from polymux.capture import TcpSession
from polymux.capture.packets.flows import sensor_of_flow
from polymux.protocols.registry import protocol_names

if TYPE_CHECKING:
    import pyarrow as pa

TIME_COLUMNS: Final = {
    "frames": "time", "violations": "time", "content": "time", "sessions": "started_at",
    "stalls": "started_at", "streams": "opened_at",
}  # fmt: skip
"""The column that `since` and `until` select by, of each table that has one."""
_ROW_OPTIONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "onlyStreams": ("stream", ()), "onlySenders": ("sender", SIDES), "onlyKinds": ("kind", ()),
    "onlyVerdicts": ("verdict", VERDICTS),
}  # fmt: skip
_SESSION_OPTIONS: Final = ("onlySessions", "onlyProtocols", "onlySensors")
_TIME_OPTIONS: Final = ("since", "until")
OPTION_NAMES: Final = (*_SESSION_OPTIONS, *_ROW_OPTIONS, *_TIME_OPTIONS)
_SESSION_ID: Final = re.compile(r"[0-9a-f]{16}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows of a table that are wanted. Empty sets and None select all.

    `values` are the wanted values of a column, by its name. Times are microseconds since 1970.
    """

    table: str
    sessions: frozenset[str] = frozenset()
    protocols: frozenset[str] = frozenset()
    sensors: frozenset[str] = frozenset()
    values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    since_us: int | None = None
    until_us: int | None = None

    @classmethod
    def parse(cls, table: str, options: Mapping[str, str]) -> RowSelection:
        """Parse the options, whose names are in lower case. Others are ignored.

        Raises:
            ValueError: An option is invalid, or the table cannot be selected by it.
        """
        given = {name: options[name.lower()] for name in OPTION_NAMES if name.lower() in options}
        lists = {name: _split(name, text) for name, text in given.items() if name[0] == "o"}
        for name in given:
            _check_table(name, table)
        for session in lists.get("onlySessions", ()):
            if not _SESSION_ID.fullmatch(session):
                raise ValueError(
                    f"onlySessions: {session!r} is not a session_id, which is 16 hexadecimal digits"
                )
        known = {name: allowed for name, (_, allowed) in _ROW_OPTIONS.items() if allowed}
        known["onlyProtocols"] = tuple(protocol_names())
        for name, allowed in known.items():
            for value in lists.get(name, ()):
                if value not in allowed:
                    raise ValueError(
                        f"{name}: {value!r} is not known; there are {', '.join(allowed)}"
                    )
        return cls(
            table,
            frozenset(lists.get("onlySessions", ())),
            frozenset(lists.get("onlyProtocols", ())),
            frozenset(lists.get("onlySensors", ())),
            tuple((_ROW_OPTIONS[name][0], lists[name]) for name in _ROW_OPTIONS if name in lists),
            _microseconds("since", given["since"]) if "since" in given else None,
            _microseconds("until", given["until"]) if "until" in given else None,
        )

    def accepts_flow(self, flow: bytes) -> bool:
        """Whether the flow with this key may have such rows."""
        return not self.sensors or sensor_of_flow(flow) in self.sensors

    def accepts_session(self, session: TcpSession, options: AnalysisOptions) -> bool:
        """Whether the session may have such rows, by what is known without its payload."""
        if self.sessions and make_session_id(session.flow, session.started_at) not in self.sessions:
            return False
        if self.sensors and session.sensor not in self.sensors:
            return False
        named = options.protocol_for(session)
        if self.protocols and named != AUTO and named.partition(":")[0] not in self.protocols:
            return False
        return (self.since_us is None and self.until_us is None) or self._meets_time(session)

    def _meets_time(self, session: TcpSession) -> bool:
        """Whether the session's packets reach into the wanted time. Clocks may step."""
        times = [session.started_at, session.ended_at]
        for events in session.events():
            stamps = [events.timestamp[n] for n in range(events.count)]
            times += (min(stamps), max(stamps))
        first, last = min(times) // 1000, max(times) // 1000
        return (self.since_us is None or last >= self.since_us) and (
            self.until_us is None or first < self.until_us
        )

    def select_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted rows of a batch of the table, by its own columns."""
        conditions = [_is_one_of(batch.column(name), values) for name, values in self.values]
        if self.table == "captures" and self.sensors:
            conditions.append(_is_one_of(batch.column("sensor"), tuple(self.sensors)))
        if self.since_us is not None or self.until_us is not None:
            conditions += self._time_conditions(batch.column(TIME_COLUMNS[self.table]))
        if not conditions:
            return batch
        import pyarrow.compute as pc

        return batch.filter(reduce(pc.and_, conditions))

    def _time_conditions(self, column: pa.Array) -> list[pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from polymux.analysis.output.arrow_batches import make_scalar

        times = column.cast(pa.int64())
        found = []
        if self.since_us is not None:
            found.append(pc.greater_equal(times, make_scalar(self.since_us, pa.int64())))
        if self.until_us is not None:
            found.append(pc.less(times, make_scalar(self.until_us, pa.int64())))
        return found


def _is_one_of(column: pa.Array, values: tuple[str, ...]) -> pa.Array:
    """For each row, whether its text is one of these; null or False where it has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.output.arrow_batches import make_array

    wanted = make_array(values, pa.string())
    if pa.types.is_dictionary(column.type):
        return pc.is_in(column.dictionary, value_set=wanted).take(column.indices)
    return pc.is_in(column, value_set=wanted)


def _check_table(option: str, table: str) -> None:
    """Raise ValueError if rows of this table cannot be selected by this option."""
    if option in _TIME_OPTIONS:
        tables = list(TIME_COLUMNS)
    elif option in _ROW_OPTIONS:
        column = _ROW_OPTIONS[option][0]
        tables = [name for name, schema in TABLES.items() if column in schema.column_names()]
    elif option == "onlySensors":
        tables = list(TABLES)
    else:
        tables = [name for name in TABLES if name != "captures"]
    if table not in tables:
        raise ValueError(
            f"{option}: rows of {table} cannot be selected by it, but those of {', '.join(tables)}"
        )


def _split(option: str, text: str) -> tuple[str, ...]:
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    if not values:
        raise ValueError(f"{option}: it is empty; leave it out to select all")
    return values


def _microseconds(option: str, text: str) -> int:
    """A time as ISO 8601 has it, by default of UTC, in microseconds since 1970."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{option}: {text!r} is not a time; write 2026-11-03, or 2026-11-03T12:30:00+01:00; "
            "without an offset it is UTC"
        ) from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(microseconds=1)
