"""The page `docs/json.md`: the keys of every JSON line that a command prints, and of manifests."""

from polymux.analysis.schema.tables import TABLES, Column
from polymux.cli.commands.ls import STREAM_COLUMNS
from polymux.cli.support.stream_files import MANIFEST_KEYS

Key = tuple[str, str, str]  # name, type, meaning

INTRODUCTION = """\
# The JSON of each command

With `--json`, or when output is piped, a command prints one JSON object per line. Everything beyond
ASCII is escaped, so that no name from the wire can control a terminal. Timestamps are text in UTC
(`2026-05-04T12:30:00.000250Z`), durations end in `_us` and are in microseconds, bytes are
hexadecimal, and what a protocol does not have is null. Keys may be added; none listed here is
removed without a line in the changelog.

```text
polymux ls talk.pcapng --json | jq -r 'select(.table == "streams") | [.stream, .why] | @tsv'
polymux check talk.pcapng --json | jq -r .rule | sort | uniq -c
tcpdump -U -w - port 9000 | polymux frames - --json | jq -c 'select(.verdict == "violation")'
```

`polymux frames -` reads a pipe once, while it is written, and prints what is known so far. Reading
a complete file can give more: on a pipe, data whose acknowledgement was captured first is a gap,
after which that direction may not be decodable, while a file shows that the packets were captured
out of order. If that happens, record to a file and read it again. Session ids can differ as well: a
session that was silent while 16,384 other connections were active counts as ended on a pipe, and
has another id if it continues.

Messages about a run (files that cannot be read, what the command waits for) go to standard error,
as text. `polymux analyze` prints no JSON: its [tables](tables.md) contain more. The keys of
`polymux sql` are the columns of the query.
"""

TABLE = ("table", "text", "`{}`: the kind of this line.")
FINDINGS = [
    ("findings", "integer", "Violations of severity warning or error, and stalls."),
    ("stalls", "integer", "Stalls that are findings."),
    ("unfinished", "integer", "Streams whose end was not captured."),
    (
        "balanced",
        "boolean",
        "Whether every byte is accounted for: in a frame, missing, undecoded or overhead.",
    ),
]
RECEIVED_DATA = [
    ("stream", "text", "The stream's key: `d1`, `a2`; empty for a Streamux reply."),
    ("name", "text", "Its name or metadata."),
    ("bytes", "integer", "Bytes of this piece."),
    ("text", "text", "The bytes, if they are UTF-8."),
    ("hex", "text", "The bytes, if they are not UTF-8; there is no `text` then."),
]

MISSING = [
    (
        "missing",
        "text",
        "`not-captured`, or `not-decoded`: captured, but of no use without what is missing.",
    ),
    ("session_id", "text", "The session."),
    ("sender", "text", "The side that sent the bytes."),
    ("stream", "text or null", "The stream of the frame they lie in; null where it is not known."),
    ("frame_index", "integer", "That frame, or else the sender's next one."),
    ("byte_offset", "integer or null", "Their first byte in its TCP direction, if it is known."),
    ("size", "integer or null", "How many they are, if it is known."),
    ("zeros", "boolean", "Whether zeros take their place in the content of the frame."),
    ("time", "timestamp text", "When they were found to be missing."),
]

REPLAY = [
    ("session_id", "text", "The recorded session."),
    ("run", "integer", "Which replay of it, from 1."),
    ("equal", "boolean", "Whether content, endings and causal order are those of the recording."),
    ("same_content", "boolean", "Whether every stream carried the same bytes."),
    ("same_endings", "boolean", "Whether every half of a stream ended in the same way."),
    ("same_order", "boolean", "Whether nothing was sent before an answer that it had followed."),
    ("differences", "list of text", "What is different, at most 20 sentences."),
    ("streams", "integer", "Streams of the recording."),
    ("sends", "integer", "Pieces of content that were sent."),
    ("bytes_sent", "integer", "Content that was sent."),
    ("bytes_received", "integer", "Content that came."),
    ("recorded_us", "integer", "Duration of the recording."),
    ("replayed_us", "integer", "Duration of the replay."),
    ("recorded_answer_p50_us", "integer", "Median time from a send to content, when recorded."),
    ("replayed_answer_p50_us", "integer", "The same in the replay."),
    ("recorded_answer_p99_us", "integer", "The 99th percentile of it, when recorded."),
    ("replayed_answer_p99_us", "integer", "The same in the replay."),
    ("late_p99_us", "integer or null", "By how much sends came after their time; null: no times."),
]

CHANGE = [
    ("group", "text", "The name, protocol or port of `--by`, or `all streams`."),
    ("measure", "text", "What is compared."),
    ("before", "number", "Its value before."),
    ("after", "number", "Its value after."),
    ("change", "number or null", "The relative change (0.2: 20 % more); null: nothing before."),
    ("low", "number or null", "The lower end of its interval."),
    ("high", "number or null", "The upper end of its interval."),
    ("reported", "boolean", "Whether it is a change that chance does not explain."),
    ("worse", "boolean", "Whether it changed for the worse."),
]

CASE = [
    ("case", "text", "The case: `MPLEX-HDR-2/flag-7`."),
    ("requirement", "text", "The requirement it belongs to."),
    ("level", "integer", "The cooperation it needs from the peer."),
    ("verdict", "text", "`OK`, `INFORMATIONAL`, `UNIMPLEMENTED`, `NON-STRICT`, `FAILED` or "
     "`WEDGED`."),
    ("outcome", "text or null", "What happened: `met`, `missing`, `forbidden`, `closed`, "
     "`refused`, `ignored`, `silent`, `wedged`; null if it was not run."),
    ("detail", "text", "What was seen."),
    ("closing", "text or null", "How the peer ended the connection: `clean`, `abrupt`, `late`, "
     "`none`."),
    ("seconds", "number", "The time it took."),
    ("capture", "text or null", "The capture of `--captures`."),
    ("violations", "array", "`sender` (`tester` or `peer`) and `rule` of what was broken."),
]  # fmt: skip
REQUIREMENT = [
    ("protocol", "text", "The protocol string."),
    ("requirement", "text", "Its id."),
    ("obligation", "text", "`must`, `should`, `dialect`, `ambiguous` or `robustness`."),
    ("sentence", "text", "The requirement as a sentence."),
    ("rules", "array", "The rules that belong to it."),
    ("cases", "array", "`case` and `level` of each case."),
    ("without_case", "text or null", "Why it has no case."),
]

MANIFEST = {
    "file": ("text", "The file beside the manifest: `stream-000001.bin` and so on."),
    "session_id": ("text or null", "The session (`follow`)."),
    "protocol": ("text or null", "The protocol of the session."),
    "dialer": ("text or null", "Address of the dialer."),
    "acceptor": ("text or null", "Address of the acceptor (`follow`)."),
    "stream": ("text", "The stream's key: `d1`, `a2`."),
    "opener": ("text or null", "The side that opened it."),
    "sender": ("text", "The side that sent the content of the file."),
    "name": ("text or null", "The stream's name or metadata."),
    "name_hex": ("hexadecimal text or null", "The bytes of the name."),
    "ending": ("text or null", "How the stream ended."),
    "note": ("text or null", "A remark about the session (`follow`)."),
    "bytes": ("integer", "Bytes in the file."),
    "sha256": ("hexadecimal text", "SHA-256 of the file."),
}


def table_keys(table: str, names: tuple[str, ...] = ()) -> list[Key]:
    """The columns of a table as keys: all, or those named."""
    columns = TABLES[table].columns
    return [
        (column.name, type_of(column), column.description)
        for column in columns
        if not names or column.name in names
    ]


def type_of(column: Column) -> str:
    """The type of a column in JSON."""
    words = {
        "timestamp": "timestamp text",
        "decimal(20,0)": "integer",
        "binary": "hexadecimal text",
    }
    kind = words.get(column.type.value, column.type.value)
    return f"{kind} or null" if column.nullable else kind


def counts(name: str, what: str) -> list[Key]:
    """The keys of `polymux lake` that count files."""
    return [
        (f"{name}_files", "integer", f"Number of {what}."),
        (f"{name}_rows", "integer", "Their rows."),
        (f"{name}_bytes", "integer", "Their bytes."),
    ]


def lines() -> dict[str, list[tuple[str, list[Key]]]]:
    """The kinds of lines that each command prints, with their keys."""
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
                ("why", "text", "The reason for its rank."),
            ]),
        ],
        "check": [
            ("A violation", table_keys("violations")),
            ("Bytes that are missing, before the violations that come after them", MISSING),
        ],
        "frames": [("A frame", table_keys("frames"))],
        "follow": [
            ("The content of a frame", table_keys("content")),
            ("Content that is missing, before the frame that has zeros for it, or else in the "
             "order of time", MISSING),
        ],
        "decode": [
            ("A frame", [("protocol", "text", "The protocol it was decoded as."), *frame]),
            ("A violation", [
                *violation,
                ("sentence", "text", "The rule."),
                ("section", "text", "Where it is written."),
            ]),
            ("Bytes that were not decoded", [("remark", "text", "A sentence about one side.")]),
        ],
        "rules": [("A rule", [
            ("rule", "text", "Its name."),
            ("severity", "text", "`error`, `warning` or `note`."),
            ("origin", "text", "Where it comes from."),
            ("section", "text", "Where it is written."),
            ("sentence", "text", "The rule as a sentence."),
            ("reaction", "text", "What a live session does about it."),
            ("example", "object", "`story`, `protocol` and `lines` of frames that violate it."),
        ])],
        "index": [("A capture", [
            ("file", "text", "The capture."),
            ("index", "text", "The index that was written beside it."),
            ("bytes", "integer", "Bytes of the capture."),
            ("ranges", "integer", "Ranges that can be read in parallel."),
        ])],
        "lake history": [("A version", [
            ("version", "integer", "Its number."),
            ("time", "timestamp text", "When it was committed."),
            ("operation", "text", "What made it: `append`, `reprocess`, `follow`, `compact` or "
             "`expire`."),
            ("added", "integer", "Data files that it has and the version before has not."),
            ("removed", "integer", "Data files that only the version before has."),
            ("run", "text", "The run that committed it."),
            ("polymux", "text", "The version of polymux that ran."),
            ("options", "object", "What the run has recorded of its options."),
            ("tables", "object", "The Delta version or the location of the Iceberg metadata of "
             "each table; empty for Parquet."),
        ])],
        "lake compact": [("What was done", [
            *counts("joined", "small files"), *counts("made", "files that replace them"),
            ("version", "integer or null", "The new version; null if there is none."),
        ])],
        "lake expire": [("What was done", [
            *counts("removed", "files that the new version is without"),
            ("days", "list of text", "Their days."),
        ])],
        "lake vacuum": [("A file that was deleted", [
            ("file", "text", "Its path in the lake."),
            ("bytes", "integer", "Its size."),
            ("modified", "timestamp text", "When it was written."),
        ])],
        "connect": [("Received data", RECEIVED_DATA)],
        "conform": [
            ("A case", CASE),
            ("The run, as the last line", [
                ("summary", "object", "`peer`, `protocol`, `role`, `level`, `cooperation`, "
                 "`cases`, `verdicts` (the number of each), `note`, `seconds`."),
            ]),
            ("A requirement, with `--list`", REQUIREMENT),
        ],
        "replay": [("A replay", REPLAY)],
        "diff": [("A change, or with `--all` a measure", CHANGE)],
        "serve": [("Received data, with `--action print`", RECEIVED_DATA)],
    }  # fmt: skip


def json_page() -> str:
    """The text of `docs/json.md`."""
    parts = [INTRODUCTION]
    for command, kinds in sorted(lines().items()):
        parts += [f"## polymux {command}", ""]
        for what, keys in kinds:
            parts += [f"{what}:", "", *key_table(keys)]
    parts += ["## manifest.jsonl", ""]
    parts += ["`polymux follow --out` and `polymux serve --save` write one line per file:", ""]
    parts += key_table([(key, *MANIFEST[key]) for key in MANIFEST_KEYS])
    return "\n".join(parts).rstrip() + "\n"


def key_table(keys: list[Key]) -> list[str]:
    """The lines of a Markdown table of keys."""
    rows = [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in keys]
    return ["| key | type | meaning |", "|---|---|---|", *rows, ""]
