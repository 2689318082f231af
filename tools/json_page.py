"""The page `docs/json.md`: the keys of every line of JSON that a command prints."""

from polymux.analysis.schema.columns import Column
from polymux.analysis.schema.tables import TABLES
from polymux.cli.commands.ls import STREAM_COLUMNS

Key = tuple[str, str, str]  # name, type, meaning

INTRODUCTION = """\
# The JSON of each command

With `--json`, or into a pipe, a command prints one JSON object a line. Everything beyond ASCII is
escaped, so no name from the wire can play tricks with a terminal. Instants are texts in UTC
(`2026-05-04T12:30:00.000250Z`), durations end in `_us` and are microseconds, bytes are hexadecimal,
and what a protocol does not have is null. Keys may be added; none listed here goes away without a
line in the changelog.

```text
polymux ls talk.pcapng --json | jq -r 'select(.table == "streams") | [.stream, .why] | @tsv'
polymux check talk.pcapng --json | jq -r .rule | sort | uniq -c
tcpdump -U -w - port 9000 | polymux frames - --json | jq -c 'select(.verdict == "violation")'
```

`polymux frames -` reads a pipe once, as it is written, and prints what is known so far. A file is
read as a whole, so it can give more: bytes whose acknowledgement was captured before them are a gap
on a pipe, behind which that direction may not be decoded any further, while a file shows that the
packets were captured out of order. If that happens, record to a file and read it again. The same
holds for the ids of sessions that were silent while 16,384 other connections spoke: such a session
is ended there, and gets another id if it goes on.

What is said about a run (files that cannot be read, what is waited for) goes to standard error, as
text. `polymux analyze` prints no JSON: its [tables](tables.md) hold more.
"""

TABLE = ("table", "text", "`{}`: which kind of line this is.")
FINDINGS = [
    ("findings", "integer", "Violations that are no notes, and stalls."),
    ("stalls", "integer", "Stalls that are findings."),
    ("unfinished", "integer", "Streams that were not seen to end."),
    ("balanced", "boolean", "Whether every byte is in a frame, a gap, the carrier or undecoded."),
]
RECEIVED_DATA = [
    ("stream", "text", "The stream's key: `d1`, `a2`; empty for a Streamux reply."),
    ("name", "text", "Its name or metadata."),
    ("bytes", "integer", "Bytes of this piece."),
    ("text", "text", "They, if they are UTF-8."),
    ("hex", "text", "They, if they are not; then there is no `text`."),
]


def table_keys(table: str, names: tuple[str, ...] = ()) -> list[Key]:
    """Columns of a table as keys: all, or those named."""
    columns = TABLES[table].columns
    return [
        (column.name, type_of(column), column.description)
        for column in columns
        if not names or column.name in names
    ]


def type_of(column: Column) -> str:
    """What a column is in JSON."""
    words = {"timestamp": "instant", "decimal(20,0)": "integer", "binary": "hexadecimal text"}
    kind = words.get(column.type.value, column.type.value)
    return f"{kind} or null" if column.nullable else kind


def lines() -> dict[str, list[tuple[str, list[Key]]]]:
    """By command: the kinds of lines it prints, each with its keys."""
    frame = [key for key in table_keys("frames") if key[0] not in ("session_id", "time")]
    violation = table_keys(
        "violations",
        ("rule", "severity", "sender", "frame_index", "byte_offset", "stream", "detail"),
    )
    return {
        "ls": [
            ("A session", [(*TABLE[:2], TABLE[2].format("sessions")), *table_keys("sessions"),
                           *FINDINGS]),
            ("A stream, the worst first", [
                (*TABLE[:2], TABLE[2].format("streams")),
                *table_keys("streams", STREAM_COLUMNS),
                ("why", "text", "Why it stands where it does."),
            ]),
        ],
        "check": [("A violation", table_keys("violations"))],
        "frames": [("A frame", table_keys("frames"))],
        "follow": [("The content of a frame", table_keys("content"))],
        "decode": [
            ("A frame", [("protocol", "text", "What it was decoded as."), *frame]),
            ("A violation", [
                *violation,
                ("sentence", "text", "What the rule says."),
                ("section", "text", "Where it is written."),
            ]),
            ("What was not decoded", [("remark", "text", "A sentence for a side.")]),
        ],
        "rules": [("A rule", [
            ("rule", "text", "Its name."),
            ("severity", "text", "`error`, `warning` or `note`."),
            ("origin", "text", "Where it comes from."),
            ("section", "text", "Where it is written."),
            ("sentence", "text", "What it says."),
            ("reaction", "text", "What a live session does about it."),
            ("example", "object", "`story`, `protocol` and `lines` that break it."),
        ])],
        "index": [("A capture", [
            ("file", "text", "The capture."),
            ("index", "text", "The index that was written beside it."),
            ("bytes", "integer", "Bytes of the capture."),
            ("ranges", "integer", "Parts that can be read side by side."),
        ])],
        "connect": [("What was received", RECEIVED_DATA)],
        "serve": [("What was received, with `--action print`", RECEIVED_DATA)],
    }  # fmt: skip


def json_page() -> str:
    parts = [INTRODUCTION]
    for command, kinds in sorted(lines().items()):
        parts += [f"## polymux {command}", ""]
        for what, keys in kinds:
            parts += [f"{what}:", "", "| key | type | meaning |", "|---|---|---|"]
            parts += [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in keys]
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"
