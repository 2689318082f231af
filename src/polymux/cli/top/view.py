"""What is on the screen of `polymux top`, as lines of text, and what the keys do.

Everything that may come from the wire is escaped here (`cell`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from polymux.cli.support.output import plural
from polymux.cli.top.state import FindingLine, HalfLine, SessionLine, StreamLine, TopState
from polymux.report.render.wording import findings_sentence
from polymux.text.sanitize import escape_hidden
from polymux.text.units import duration_text, rate_text, size_text

TABS: Final = ("streams", "sessions", "findings")
MIN_ID_CHARS: Final = 4
MAX_NAME_CHARS: Final = 200  # escaped of a name, before it is cut to its column
SECOND_NS: Final = 1_000_000_000
STALLED, ERROR, WARNING, DIM, SELECTED, HEAD = (
    "bold yellow", "bold red", "yellow", "dim", "reverse", "bold",
)  # fmt: skip

SORTS: Final[dict[str, Callable[[StreamLine], object]]] = {
    "pain": lambda s: (-s.waits_ns if s.cause else 0, -s.stalled_ns, -s.rate, -s.content_bytes),
    "rate": lambda s: (-s.rate, -s.content_bytes),
    "bytes": lambda s: -s.content_bytes,
    "window": lambda s: -(s.window_use if s.window_use is not None else -1.0),
    "name": lambda s: (s.name or "", s.key),
    "age": lambda s: -(s.age_ns or 0),
}
HELP: Final = (
    ("1 2 3, tab", "streams, sessions, findings"),
    ("up down, j k", "choose a line; page up and down, home and end"),
    ("enter", "open the chosen stream, or the streams of the chosen session"),
    ("esc", "back: close, then clear the filter"),
    ("s", f"sort streams by {', '.join(SORTS)}"),
    ("r", "turn the order round"),
    ("/", "filter: words that must all be in a line"),
    ("w", "only streams that wait"),
    ("p, space", "pause and go on; reading goes on meanwhile"),
    ("q", "quit"),
)
LEGEND: Final = (
    ("no-credit", "the receiver has granted no credit: the sender may not send"),
    ("slow-reader", "the receiver does not read: its TCP window is closed"),
    ("head-of-line", "another stream occupies the connection, and this one waits behind it"),
    ("transport", "the network lost or delayed bytes"),
    ("no-reply", "the peer has ended or asked, and no answer came"),
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table on the screen. `width` 0: what is left is for this one."""

    title: str
    width: int
    right: bool = False
    min_screen: int = 0  # columns of the screen from which on it is shown


STREAM_COLUMNS: Final = (
    Column("stream", 7), Column("name", 0), Column("waits", 9, True), Column("why", 12),
    Column("behind", 7), Column("window", 6, True), Column("rate", 11, True),
    Column("bytes", 8, True), Column("frames", 9, True, 100), Column("stalled", 9, True, 112),
    Column("age", 10, True, 124),
)  # fmt: skip
SESSION_COLUMNS: Final = (
    Column("session", 8), Column("protocol", 11), Column("peers", 0),
    Column("open", 6, True), Column("waiting", 7, True), Column("findings", 8, True),
    Column("rate", 11, True), Column("streams", 8, True, 96), Column("frames", 9, True, 106),
    Column("bytes", 9, True, 116), Column("lasted", 11, True, 128),
)  # fmt: skip


def stream_columns(many_sessions: bool) -> tuple[Column, ...]:
    """The columns of streams; with several sessions, the first one names the session too."""
    first = Column("stream", 11 if many_sessions else 7)
    return (first, *STREAM_COLUMNS[1:])


class TopView:
    """The screen and its keys. Give it the state with `show`, keys with `press`, then `lines`."""

    def __init__(self) -> None:
        self.state = TopState("")
        self.tab = 0
        self.sort = "pain"
        self.reversed = False
        self.filter = ""
        self.only_waiting = False
        self.paused = False
        self.quitting = False
        self.opened: tuple[str, str] | None = None
        """The stream that is shown alone, by session and key."""
        self._editing = False
        self._help = False
        self._chosen: object = None  # identity of the chosen line
        self._index = 0
        self._top = 0
        self._page = 1

    def show(self, state: TopState) -> None:
        """Take what goes on now, unless the view is paused."""
        if not self.paused:
            self.state = state

    # Keys

    def press(self, key: str) -> None:
        """React to a key."""
        if self._editing:
            self._edit(key)
        elif self._help:
            self._help = False
        elif key == "q":
            self.quitting = True
        elif key == "?":
            self._help = True
        elif key in ("1", "2", "3"):
            self._open_tab(int(key) - 1)
        elif key == "tab":
            self._open_tab((self.tab + 1) % len(TABS))
        elif key == "/":
            self._editing, self.opened = True, None
        elif key in ("p", " "):
            self.paused = not self.paused
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "r":
            self.reversed = not self.reversed
        elif key == "w":
            self.only_waiting = not self.only_waiting
        elif key in ("escape", "backspace", "left"):
            if self.opened is not None:
                self.opened = None
            else:
                self.filter = ""
        elif key in ("enter", "right"):
            self._open_chosen()
        else:
            self._move(key)

    def _edit(self, key: str) -> None:
        if key == "enter":
            self._editing = False
        elif key == "escape":
            self._editing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _open_tab(self, tab: int) -> None:
        self.tab, self.opened, self._chosen, self._index, self._top = tab, None, None, 0, 0

    def _move(self, key: str) -> None:
        steps = {
            "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._page, "pagedown": self._page,
            "home": -(1 << 40), "end": 1 << 40,
        }  # fmt: skip
        if key in steps:
            rows = self._rows()
            self._find_chosen(rows)
            self._index = max(0, min(len(rows) - 1, self._index + steps[key]))
            self._chosen = identity_of(rows[self._index]) if rows else None

    def _open_chosen(self) -> None:
        rows = self._rows()
        self._find_chosen(rows)
        if not rows or self.opened is not None:
            return
        row = rows[self._index]
        if isinstance(row, StreamLine):
            self.opened = row.identity
        elif isinstance(row, SessionLine):
            self._open_tab(0)
            self.filter = row.session_id

    def _find_chosen(self, rows: Sequence[Row]) -> None:
        """Set the index of the chosen line, which may have moved, or is gone."""
        if self._chosen is not None:
            for index, row in enumerate(rows):
                if identity_of(row) == self._chosen:
                    self._index = index
                    return
        self._index = max(0, min(self._index, len(rows) - 1))

    # What is listed

    def _rows(self) -> Sequence[Row]:
        if self.tab == 0:
            streams = [s for s in self.state.streams if not self.only_waiting or s.cause]
            kept = [s for s in streams if self._matches(s)]
            kept.sort(key=SORTS[self.sort], reverse=self.reversed)  # type: ignore[arg-type]  # one sort's keys are alike
            return kept
        if self.tab == 1:
            return [s for s in self.state.sessions if self._matches(s)]
        found = [finding for finding in self.state.findings if self._matches(finding)]
        return found if self.reversed else found[::-1]

    def _matches(self, row: Row) -> bool:
        if not self.filter:
            return True
        text = search_text(row)
        return all(word in text for word in self.filter.casefold().split())

    # Lines

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen: exactly `height` lines of at most `width` columns."""
        state, totals = self.state, self.state.totals
        status = "PAUSED" if self.paused else state.status
        head = [
            two_sided(f"polymux top  {escape_hidden(state.title, 400)}", status, width, HEAD),
            Text(fit(f"{totals_text(state)}; {rate_text(int(state.rate), SECOND_NS)}", width)),
            Text(fit(findings_text(state), width), ERROR if totals.findings else ""),
        ]
        if state.extra:
            head.append(Text(fit(escape_hidden(state.extra, 400), width), DIM))
        foot = [Text(fit(self._foot(), width), DIM)]
        if self._help:
            body = help_lines(width)
        elif self.opened is not None:
            body = self._stream_lines(width)
        else:
            recent = min(3, max(0, height - len(head) - 14)) if self.tab == 0 else 0
            foot = [finding_line(f, width) for f in self._latest(recent)] + foot
            head.append(self._tab_line(width))
            body = self._table_lines(width, max(1, height - len(head) - len(foot)))
        room = max(0, height - len(head) - len(foot))
        body = body[:room] + [Text("")] * (room - len(body))
        return (head + body + foot)[:height]

    def _latest(self, count: int) -> list[FindingLine]:
        findings = self.state.findings
        return [findings[n] for n in range(max(0, len(findings) - count), len(findings))]

    def _tab_line(self, width: int) -> Text:
        line = Text()
        for number, name in enumerate(TABS):
            style = SELECTED if number == self.tab else DIM
            line.append(f" {number + 1} {name} ", style)
            line.append(" ")
        if self.tab == 0:
            line.append(f" by {self.sort}{' (turned)' if self.reversed else ''}")
            if self.only_waiting:
                line.append("  only waiting")
        if self._editing or self.filter:
            cursor = "_" if self._editing else ""
            line.append(f"  filter: {escape_hidden(self.filter, 60)}{cursor}")
        line.truncate(width)
        return line

    def _foot(self) -> str:
        if self._editing:
            return "type words to filter; enter keeps it, esc clears it"
        if self.opened is not None:
            return "esc back   p pause   ? keys   q quit"
        return "enter open   s sort   / filter   w waiting   p pause   ? keys   q quit"

    def _table_lines(self, width: int, height: int) -> list[Text]:
        rows = self._rows()
        self._find_chosen(rows)
        self._page = max(1, height - 2)
        self._top = max(0, min(self._top, len(rows) - self._page))
        if self._index < self._top:
            self._top = self._index
        elif self._index >= self._top + self._page:
            self._top = self._index - self._page + 1
        shown = rows[self._top : self._top + self._page]
        if self.tab == 2:
            lines = [Text(fit("time          session stream   finding", width), HEAD)]
            made = [finding_line(row, width) for row in shown if isinstance(row, FindingLine)]
        else:
            many = self.state.totals.open_sessions > 1
            columns = [
                column
                for column in (stream_columns(many) if self.tab == 0 else SESSION_COLUMNS)
                if width >= column.min_screen
            ]
            lines = [Text(join_cells(columns, [c.title for c in columns], width), HEAD)]
            made = [self._row_line(row, columns, width, many) for row in shown]
        if shown and self._index - self._top < len(made):
            made[self._index - self._top].stylize(SELECTED)
        lines += made
        if not rows:
            lines.append(Text(fit(self._nothing(), width), DIM))
        elif len(rows) > self._page:
            end = self._top + len(shown)
            lines.append(Text(fit(f"{self._top + 1} to {end} of {len(rows)}", width), DIM))
        return lines

    def _nothing(self) -> str:
        if self.filter or self.only_waiting:
            return "nothing matches; esc clears the filter, w shows all streams"
        return f"no {'open ' if self.tab == 0 else ''}{TABS[self.tab]} so far"

    def _row_line(self, row: Row, columns: list[Column], width: int, many: bool) -> Text:
        if isinstance(row, StreamLine):
            cells = stream_cells(row, many)
            style = STALLED if row.cause else ""
        else:
            assert isinstance(row, SessionLine)  # findings have lines of their own
            cells = session_cells(row)
            style = DIM if row.over else STALLED if row.stalled_streams else ""
        values = [cells[column.title] for column in columns]
        return Text(join_cells(columns, values, width), style)

    def _stream_lines(self, width: int) -> list[Text]:
        """One stream: its two halves, what it waits for, and what was found on it."""
        stream = next((s for s in self.state.streams if s.identity == self.opened), None)
        session_id, key = self.opened or ("", "")
        if stream is None:
            lines = [Text(fit(f"stream {key} of session {session_id[:8]} is over", width), HEAD)]
        else:
            name = f"  {escape_hidden(stream.name, MAX_NAME_CHARS)}" if stream.name else ""
            lines = [Text(fit(f"stream {key}{name}  of session {session_id[:8]}", width), HEAD)]
            age = f", opened {duration_text(stream.age_ns)} ago" if stream.age_ns else ""
            rate = rate_text(int(stream.rate), SECOND_NS)
            lines.append(Text(fit(f"{plural(stream.frames, 'frame')}, {rate}{age}", width)))
            if stream.cause:
                text = f"waits {duration_text(stream.waits_ns)}: {stream.cause}"
                text += f" behind {stream.behind}" if stream.behind else ""
                lines += [Text(fit(text, width), STALLED)]
                lines += [Text(fit(f"  {escape_hidden(stream.detail, 300)}", width))]
            else:
                lines.append(Text(fit("waits for nothing", width)))
            for half in stream.halves:
                lines.append(Text(""))
                lines += [Text(fit(text, width)) for text in half_texts(half)]
        lines.append(Text(""))
        found = [f for f in self.state.findings if (f.session_id, f.stream) == self.opened]
        lines.append(Text(fit(f"{plural(len(found), 'finding')} on it", width), HEAD))
        lines += [finding_line(finding, width) for finding in found[::-1]]
        return lines


Row = StreamLine | SessionLine | FindingLine


def identity_of(row: Row) -> object:
    if isinstance(row, StreamLine):
        return row.identity
    return row.session_id if isinstance(row, SessionLine) else id(row)


def search_text(row: Row) -> str:
    """The text in which a filter's words are looked for."""
    if isinstance(row, StreamLine):
        parts = [row.session_id, row.key, row.name or "", row.cause, row.behind]
    elif isinstance(row, SessionLine):
        parts = [row.session_id, row.protocol, row.peers]
    else:
        parts = [row.session_id, row.stream, row.level, row.text]
    return " ".join(parts).casefold()


def totals_text(state: TopState) -> str:
    """The totals as `polymux ls` prints them, and what is open."""
    totals = state.totals
    counts = (totals.sessions, "session"), (totals.streams, "stream"), (totals.frames, "frame")
    text = ", ".join(plural(*count) for count in counts)
    return f"{text}; {totals.open_streams} open, {totals.stalled_streams} waiting"


def findings_text(state: TopState) -> str:
    totals = state.totals
    return findings_sentence(totals.findings - totals.stalls, totals.stalls, totals.unfinished)


def stream_cells(row: StreamLine, many_sessions: bool) -> dict[str, str]:
    session = f"{row.session_id[:MIN_ID_CHARS]} " if many_sessions else ""
    return {
        "stream": f"{session}{row.key}",
        "name": cell(row.name or ""),
        "waits": duration_text(row.waits_ns) if row.cause else "",
        "why": row.cause,
        "behind": row.behind,
        "window": "" if row.window_use is None else f"{row.window_use:.0%}",
        "rate": rate_text(int(row.rate), SECOND_NS) if row.rate else "",
        "bytes": size_cell(row.content_bytes),
        "frames": str(row.frames),
        "stalled": duration_text(row.stalled_ns) if row.stalled_ns else "",
        "age": "" if row.age_ns is None else duration_text(row.age_ns),
    }


def session_cells(row: SessionLine) -> dict[str, str]:
    return {
        "session": row.session_id[:8],
        "protocol": cell(row.protocol or "undecided"),
        "peers": cell(f"{row.peers}  {row.note}" if row.note else row.peers),
        "open": "ended" if row.over else str(row.open_streams),
        "waiting": str(row.stalled_streams or ""),
        "findings": str(row.findings or ""),
        "rate": rate_text(int(row.rate), SECOND_NS) if row.rate else "",
        "streams": str(row.stream_count),
        "frames": str(row.frames),
        "bytes": size_cell(row.total_bytes),
        "lasted": "" if row.lasted_ns is None else duration_text(row.lasted_ns),
    }


def half_texts(half: HalfLine) -> list[str]:
    """What one side does on a stream, in words."""
    sent = f"{half.title}: {size_text(half.content_bytes)}"
    if half.frames is not None:
        sent += f" in {plural(half.frames, 'frame')}"
    made = [sent + (", ended" if half.ended else "")]
    if half.window is not None and half.in_use is not None:
        made.append(f"  window {size_text(half.window)}, {size_text(max(0, half.in_use))} in use")
    elif half.credit is not None:
        made.append(f"  credit left: {half.credit}")
    for title, spent in (
        ("without credit", half.blocked_ns),
        ("stalled", half.stalled_ns),
        ("behind other streams", half.hol_blocked_ns),
    ):
        if spent:
            made.append(f"  {title}: {duration_text(spent)} in all")
    for title, size in (("queued", half.queued_bytes), ("not read", half.unread_bytes)):
        if size:
            made.append(f"  {title}: {size_text(size)}")
    return made


def finding_line(finding: FindingLine, width: int) -> Text:
    place = f"{finding.clock:<13} {finding.session_id[:MIN_ID_CHARS]:<7} {finding.stream:<8} "
    style = ERROR if finding.level == "error" else WARNING
    return Text(fit(place + escape_hidden(finding.text, 600), width), style)


def help_lines(width: int) -> list[Text]:
    lines = [Text("Keys", HEAD)]
    lines += [Text(fit(f"  {keys:<14}{meaning}", width)) for keys, meaning in HELP]
    lines += [Text(""), Text("Why a stream waits", HEAD)]
    lines += [Text(fit(f"  {cause:<14}{meaning}", width)) for cause, meaning in LEGEND]
    return lines


def cell(text: str) -> str:
    return escape_hidden(text, MAX_NAME_CHARS)


def size_cell(size: int) -> str:
    return size_text(size).removesuffix(" bytes").removesuffix(" byte")


def fit(text: str, width: int) -> str:
    """The text, cut to `width` columns."""
    return text if cell_len(text) <= width else set_cell_size(text, width)


def two_sided(left: str, right: str, width: int, style: str) -> Text:
    """One line with a text at each end; the left one is cut."""
    right = fit(right, max(0, width - 12))
    left = set_cell_size(left, max(0, width - cell_len(right) - 1))
    return Text(f"{left} {right}", style)


def join_cells(columns: Sequence[Column], values: Sequence[str], width: int) -> str:
    """One line of a table."""
    fixed = sum(column.width for column in columns) + len(columns) - 1
    left = max(4, width - fixed)
    parts = []
    for column, value in zip(columns, values, strict=True):
        size = column.width or left
        used = len(value) if value.isascii() else cell_len(value)
        if used > size:
            parts.append(set_cell_size(value, size))
        elif column.right:
            parts.append(" " * (size - used) + value)
        else:
            parts.append(value + " " * (size - used))
    return fit(" ".join(parts).rstrip(), width)
