"""The schemas of all tables: names, columns, types, allowed values and descriptions.

Writers, readers, the report and the table reference of the documentation (`docs/tables.md`) are all
derived from them. pyarrow is imported only when an Arrow schema is requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from polymux.capture.packets.file_summary import STATUSES
from polymux.capture.pcapng.comments import VANTAGES as HINTED_VANTAGES
from polymux.core.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa

TIMELINE_BUCKETS: Final = 500  # at most, per session
MIN_BUCKET_US: Final = 1_000


class ColumnType(Enum):
    """The type of a column; the value is its name in the documentation."""

    TEXT = "text"
    TEXT_LIST = "list of text"
    INTEGER = "integer"
    DECIMAL = "decimal(20,0)"
    TIMESTAMP = "timestamp"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `allowed_values`, if any, are all values it can have besides null."""

    name: str
    type: ColumnType
    description: str
    nullable: bool = False
    allowed_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One table: a folder of Parquet files called `name`.

    `one_row_per` says what a row describes; the columns in `key` identify a row.
    """

    name: str
    one_row_per: str
    description: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def column_names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column called `name`; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_arrow(self) -> pa.Schema:
        """The pyarrow schema; MissingExtra if pyarrow is not installed."""
        types = _arrow_types()
        import pyarrow as pa

        return pa.schema(
            [pa.field(c.name, types[c.type], nullable=c.nullable) for c in self.columns]
        )


def _arrow_types() -> dict[ColumnType, pa.DataType]:
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("captures", "reading or writing tables") from None
    return {
        ColumnType.TEXT: pa.string(),
        ColumnType.TEXT_LIST: pa.list_(pa.string()),
        ColumnType.INTEGER: pa.int64(),
        ColumnType.DECIMAL: pa.decimal128(20, 0),
        ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
        ColumnType.BINARY: pa.binary(),
    }


def bucket_width_us(session_us: int) -> int:
    """The width of a timeline bucket in a session that lasted `session_us`, in microseconds."""
    return max(MIN_BUCKET_US, -(-session_us // TIMELINE_BUCKETS))


def bucket_of(since_us: int, width_us: int) -> int:
    """The bucket of a time `since_us` after the session's start; the last one includes its end."""
    return max(0, min(TIMELINE_BUCKETS - 1, since_us // width_us))


def arrow_schema(table: str) -> pa.Schema:
    """The pyarrow schema of the table with this name; KeyError if there is none."""
    return TABLES[table].to_arrow()


def column_reference() -> str:
    """All tables and columns as Markdown, for the documentation."""
    parts = [
        "# Tables\n",
        "What `polymux analyze` writes: one folder of Parquet files per table, which exists even "
        "if the table is empty. `sender` and `opener` are `dialer` or `acceptor`; times are UTC, "
        "columns that end in `_us` are microseconds; what a protocol does not have is null.\n",
    ]
    for table in TABLES.values():
        parts.append(f"## `{table.name}`\n\nOne row per {table.one_row_per}. {table.description}\n")
        parts.append("Key: " + ", ".join(f"`{name}`" for name in table.key) + ".\n")
        parts.append("| column | type | null | meaning |\n|---|---|---|---|")
        for column in table.columns:
            values = ""
            if column.allowed_values:
                values = (
                    " One of " + ", ".join(f"`{value}`" for value in column.allowed_values) + "."
                )
            null = "yes" if column.nullable else "no"
            parts.append(
                f"| `{column.name}` | {column.type.value} | {null} | {column.description}{values} |"
            )
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


SIDES: Final = ("dialer", "acceptor")
_PEER: Final = {"dialer": "acceptor", "acceptor": "dialer"}
VANTAGES: Final = (*HINTED_VANTAGES, "unordered")
SESSION_ENDINGS: Final = ("clean", "truncated", "gap", "undecodable", "unknown")
STREAM_ENDINGS: Final = (
    "clean", "half-closed", "reset", "cancelled", "rejected", "never-accepted", "abandoned", "open",
)  # fmt: skip
UNFINISHED_ENDINGS: Final = ("open", "half-closed", "never-accepted")
"""Endings of streams that were not finished when the capture ended."""
HALF_ENDINGS: Final = ("ended", "aborted")
VERDICTS: Final = ("clean", "crossed", "violation")
ORIGINS: Final = ("spec", "limit", "advice")
SEVERITIES: Final = ("error", "warning", "note")
CERTAINTIES: Final = ("certain", "possible")
STALL_CAUSES: Final = (
    "no-credit", "slow-reader", "head-of-line", "transport", "no-reply", "sender-idle",
)  # fmt: skip


def _text(name: str, description: str, *allowed_values: str, null: bool = False) -> Column:
    return Column(name, ColumnType.TEXT, description, null, allowed_values)


def _integer(name: str, description: str, null: bool = False) -> Column:
    return Column(name, ColumnType.INTEGER, description, null)


def _timestamp(name: str, description: str, null: bool = False) -> Column:
    return Column(name, ColumnType.TIMESTAMP, description, null)


def _per_side(
    stem: str, type: ColumnType, description: str, *allowed_values: str, null: bool = False
) -> Iterator[Column]:
    """The column once per side; `{side}` and `{peer}` in the description are replaced."""
    for side in SIDES:
        text = description.format(side=side, peer=_PEER[side])
        yield Column(f"{stem}_{side}", type, text, null, allowed_values)


def _integer_per_side(stem: str, description: str, null: bool = False) -> Iterator[Column]:
    return _per_side(stem, ColumnType.INTEGER, description, null=null)


_SESSION_ID: Final = _text(
    "session_id",
    "The session: a hash of its flow, sensor and first timestamp, the same on every run.",
)
_SENDER: Final = _text("sender", "The side that sent it.", *SIDES)
_FRAME_INDEX: Final = _integer(
    "frame_index", "Position of the frame among its direction's frames, from 0."
)
_STREAM: Final = _text(
    "stream",
    "The stream: the opener's letter, the id and, from its second use on, the incarnation "
    "(`d1`, `a2`, `d0.2`; `s0` for a seeded channel).",
)
_NULLABLE_STREAM: Final = _text(
    "stream", _STREAM.description + " Null where there is none.", null=True
)
_TIME: Final = _timestamp("time", "When the frame's last byte and all bytes before it had arrived.")

_CAPTURES: Final = TableSchema(
    "captures",
    "file read",
    "Which files were read, and how completely.",
    ("file",),
    (
        _text("file", "Path or URL of the file; a URL without credentials and options."),
        _text("format", "Detected format and compression; null if none was detected.", null=True),
        _text("status", "How much of the file could be read.", *STATUSES),
        _integer("packets", "Packets read."),
        _integer("tcp_packets", "Packets that carried TCP."),
        _integer("other_packets", "Packets that carried anything else."),
        _integer("fragments", "IP fragments; they are counted and not reassembled."),
        _integer("bytes", "Bytes of the file that were read, after decompression."),
        _text("error", "The error; null if there was none.", null=True),
        _integer("error_offset", "Byte offset in the file at which the error occurred.", null=True),
        _text("sensor", "Where it was captured; `default` if that is not known."),
    ),
)

_SESSIONS: Final = TableSchema(
    "sessions",
    "connection",
    "One connection between two peers, with totals of its traffic. Conservation: "
    "`bytes` = frame sizes + `missing_bytes` + `undecoded_bytes` + `overhead_bytes`, in each "
    "direction.",
    ("session_id",),
    (
        _SESSION_ID,
        Column("capture", ColumnType.TEXT_LIST, "The files with its packets."),
        _text("protocol", "Name of the protocol; null if it was not detected.", null=True),
        _text("version", "Version of the protocol, where it has versions.", null=True),
        _text("dialect", "Dialect, where the protocol has several.", null=True),
        _text(
            "evidence",
            "Why this protocol: the option, the capture's note, or what its bytes show.",
            null=True,
        ),
        _text("vantage", "Where the capture was taken.", *VANTAGES),
        _text("dialer", "Address and port of the side that opened the connection."),
        _text("acceptor", "Address and port of the side that accepted it."),
        _timestamp("started_at", "First packet."),
        _timestamp("ended_at", "Last packet."),
        _integer("frames", "Frames decoded in both directions."),
        _integer("streams", "Stream incarnations."),
        *_integer_per_side("bytes", "Bytes the {side} sent on the wire."),
        *_integer_per_side("payload_bytes", "Content bytes the {side} sent on all streams."),
        *_integer_per_side(
            "missing_bytes", "Bytes of the {side} that were not captured, outside decoded frames."
        ),
        *_integer_per_side("undecoded_bytes", "Bytes of the {side} that could not be decoded."),
        *_integer_per_side(
            "overhead_bytes",
            "Bytes of the {side} that belong to the encapsulation only (TLS, HTTP upgrade, "
            "WebSocket ping and close).",
        ),
        _integer("violations", "Number of its rows in `violations`."),
        _text("ending", "How the session ended.", *SESSION_ENDINGS),
        _text("note", "Remarks on the analysis of this session.", null=True),
        _integer(
            "rtt_us", "Round trip of the connection in microseconds; null if unknown.", null=True
        ),
        _text("tls", "TLS version and suite; null without TLS.", null=True),
        _text("server_name", "The server name in the TLS ClientHello.", null=True),
        _text("alpn", "The application protocol agreed on in the TLS handshake.", null=True),
        _integer(
            "tls_records",
            "TLS records of both sides, lost ones included; null if the session was not opened.",
            null=True,
        ),
        _integer(
            "tls_unopened",
            "TLS records of both sides that could not be opened: lost, damaged, or early data "
            "without a secret.",
            null=True,
        ),
        _integer("tls_handshake_us", "Time from the ClientHello to the last Finished.", null=True),
        _text("sensor", "Where it was captured; `default` if that is not known."),
        _text(
            "connection_id",
            "The TCP connection: the same for its sessions at different sensors. Null if its SYN "
            "was not captured.",
            null=True,
        ),
    ),
)

_STREAMS: Final = TableSchema(
    "streams",
    "stream incarnation",
    "A stream from its opening to its end; each reuse of an id is another row.",
    ("session_id", "stream"),
    (
        _SESSION_ID,
        _STREAM,
        _text("opener", "The side that opened it; null for a seeded channel.", *SIDES, null=True),
        Column("stream_id", ColumnType.DECIMAL, "The id on the wire."),
        _integer("incarnation", "Which use of the id this is, from 1."),
        _text(
            "name",
            "Name or metadata, decoded as UTF-8 with replacement characters, not escaped.",
            null=True,
        ),
        Column("name_bytes", ColumnType.BINARY, "The same as bytes.", True),
        _timestamp("opened_at", "When it was opened; null if the opening was not seen.", null=True),
        _timestamp("accepted_at", "When it was accepted, where the protocol accepts.", null=True),
        _timestamp("closed_at", "When both halves had ended.", null=True),
        _text("ending", "How it ended.", *STREAM_ENDINGS),
        _text(
            "reset_by",
            "The side that first reset, cancelled, rejected or terminated it.",
            *SIDES,
            null=True,
        ),
        _text("error", "The error text that side sent.", null=True),
        *_integer_per_side("bytes", "Content bytes the {side} sent up to its own end or abort."),
        *_integer_per_side(
            "units",
            "The same in messages (omnistreams), items (Minmux, the last item not counted), "
            "else bytes, for the {side}.",
        ),
        *_integer_per_side("frames", "All frames of the {side} on this stream."),
        *_per_side(
            "ended", ColumnType.TEXT, "How the {side} ended its half.", *HALF_ENDINGS, null=True
        ),
        *_per_side(
            "credit_granted",
            ColumnType.DECIMAL,
            "Total credit granted to the {side}, whether spent or not.",
            null=True,
        ),
        *_integer_per_side(
            "peak_in_flight_bytes",
            "Maximum of bytes the {side} had sent and the peer not acknowledged (Nerdbank v2, v3).",
            null=True,
        ),
        *_integer_per_side(
            "blocked_us",
            "Microseconds the {side} had no send credit, whether or not it had more to send.",
            null=True,
        ),
        *_per_side("first_at", ColumnType.TIMESTAMP, "First frame of the {side}.", null=True),
        *_per_side("last_at", ColumnType.TIMESTAMP, "Last frame of the {side}.", null=True),
        *_integer_per_side(
            "window_bytes",
            "Largest window the {peer} announced to the {side}, in bytes (Nerdbank v2, v3).",
            null=True,
        ),
        *_integer_per_side(
            "window_limit_bps",
            "Bits per second that this window allows the {side}: one full window per round trip. "
            "Null without a window or a round trip.",
            null=True,
        ),
        *_integer_per_side(
            "throughput_bps",
            "Content bits per second of the {side} between its first and last frame; "
            "near `window_limit_bps`, the window is smaller than the bandwidth-delay product.",
            null=True,
        ),
        *_integer_per_side(
            "stalled_us",
            "Microseconds of the {side}'s stalls, without those of cause `sender-idle`.",
        ),
        *_integer_per_side(
            "hol_blocked_us",
            "Microseconds the {side} was head-of-line blocked by other streams, including waits "
            "that are too short for a row in `stalls`.",
        ),
    ),
)

_FRAMES: Final = TableSchema(
    "frames",
    "frame",
    "Every frame, in both directions.",
    ("session_id", "sender", "frame_index"),
    (
        _SESSION_ID,
        _SENDER,
        _FRAME_INDEX,
        _TIME,
        _integer(
            "byte_offset",
            "First byte of the frame in its TCP direction, encapsulation prefix included.",
        ),
        _integer("size", "Bytes of the frame, encapsulation prefix included."),
        _text("kind", "The protocol's name for this kind of frame."),
        _NULLABLE_STREAM,
        _integer(
            "amount",
            "The number in the frame that changes a credit or window; values above 2^63-1 are "
            "stored as 2^63-1.",
            null=True,
        ),
        _integer("payload_bytes", "Bytes of payload."),
        _text(
            "verdict",
            "`crossed`: it crossed a reset in flight, which is legal; `violation`: it broke a rule "
            "of severity warning or worse.",
            *VERDICTS,
        ),
    ),
)

_VIOLATIONS: Final = TableSchema(
    "violations",
    "frame and rule",
    "Every violation of a rule: the side, the frame and the rule.",
    ("session_id", "sender", "frame_index", "rule"),
    (
        _SESSION_ID,
        _SENDER,
        _integer(
            "frame_index",
            "The frame's position among its direction's frames; the next one's where no frame was "
            "complete.",
        ),
        _integer("byte_offset", "First byte of the frame in its TCP direction."),
        _TIME,
        _NULLABLE_STREAM,
        _text("rule", "The rule, as `protocol.rule`."),
        _text("origin", "Where the rule comes from.", *ORIGINS),
        _text("severity", "Severity of the rule.", *SEVERITIES),
        _text(
            "certainty",
            "`possible`: bytes that were not captured could excuse it, or the bytes look like "
            "another protocol than the named one.",
            *CERTAINTIES,
        ),
        _text("detail", "What the frame did, with numbers.", null=True),
    ),
)

_STALLS: Final = TableSchema(
    "stalls",
    "stall of a stream",
    "Pauses of at least 50 ms and 5 round trips, each with its cause; and answers that took "
    "2 seconds or more, or were missing for at least the last second of the capture.",
    ("session_id", "stream", "sender", "started_at"),
    (
        _SESSION_ID,
        _STREAM,
        _text(
            "sender",
            "The side whose bytes did not arrive; for `no-reply`, the silent side.",
            *SIDES,
        ),
        _timestamp("started_at", "When it began."),
        _integer("duration_us", "Duration in microseconds."),
        _text("cause", "The cause; `sender-idle` is never a finding.", *STALL_CAUSES),
        _text(
            "blocking_stream",
            "The stream that blocked it, if the cause is `head-of-line`.",
            null=True,
        ),
        _text("detail", "What the capture shows, with numbers.", null=True),
    ),
)

_REQUESTS: Final = TableSchema(
    "requests",
    "session and requesting side",
    "Request latencies, for protocols with requests and replies (Streamux). A latency is "
    "`closed_at` - `opened_at` of an exchange that ended `clean`; percentiles are at most one "
    "percent too high.",
    ("session_id", "opener"),
    (
        _SESSION_ID,
        _text("opener", "The side that sent the requests.", *SIDES),
        _integer("requests", "Requests sent."),
        _integer("answered", "Requests with a complete reply."),
        *(
            _integer(
                f"latency_{name}_us",
                f"{share} of the replies were complete within this time.",
                null=True,
            )
            for name, share in (
                ("p50", "Half"),
                ("p90", "Nine tenths"),
                ("p99", "Ninety-nine hundredths"),
            )
        ),
        _integer("latency_max_us", "The longest latency.", null=True),
    ),
)

_TIMELINE: Final = TableSchema(
    "timeline",
    "session, stream, sender and time bucket",
    "Traffic over time. A bucket is 1/500 of the session and at least 1 ms long; empty buckets "
    "have no row.",
    ("session_id", "stream", "sender", "bucket"),
    (
        _SESSION_ID,
        _NULLABLE_STREAM,
        _SENDER,
        _integer("bucket", "Index of the bucket, from 0 at the session's start."),
        _integer("frames", "Frames in the bucket."),
        _integer("bytes", "Content bytes in the bucket, counted as in `streams`."),
        _integer("blocked_us", "Microseconds of the bucket without send credit.", null=True),
    ),
)

_CONTENT: Final = TableSchema(
    "content",
    "content frame",
    "Written on request only: the content that `streams` counts.",
    ("session_id", "sender", "frame_index"),
    (
        _SESSION_ID,
        _NULLABLE_STREAM,
        _SENDER,
        _FRAME_INDEX,
        _TIME,
        Column("data", ColumnType.BINARY, "The content bytes."),
    ),
)

TABLES: Final[dict[str, TableSchema]] = {
    table.name: table
    for table in (
        _CAPTURES, _SESSIONS, _STREAMS, _FRAMES, _VIOLATIONS, _STALLS, _REQUESTS, _TIMELINE,
        _CONTENT,
    )
}  # fmt: skip
