# mypyc: compiled
"""Profiles: which streams an instance of Minmux assigns, and how their items are encoded.

None of this is on the wire, so both sides and every observer need the same profile: from a file
(`minmux:profile=FILE.toml`) or, in Python, from `Profile.assign`.
"""

import os
import tomllib
from typing import Final

from mypy_extensions import i64

from polymux.protocols.minmux.item_codecs import DEFAULT_MAX_ITEM_BYTES, ENDLESS, PREFIXED, Codec
from polymux.protocols.minmux.packets import U64_MAX, key_of

MAX_PROFILE_BYTES: Final = 1024 * 1024  # of a profile file
MAX_FIXED_ITEM_BYTES: Final = 0x7FFFFFFF  # of an item of fixed size
UNIT_LAST_ITEM: Final[i64] = 0  # the last item has no content, so no packet carries it


class StreamFormat:
    """The item formats of one stream.

    `item_size` and `last_item_size` are in bytes, or PREFIXED or CODEC_SIZED; `last_item_size` may
    also be ENDLESS or UNIT_LAST_ITEM.
    """

    def __init__(
        self,
        item_size: i64,
        last_item_size: i64,
        item_codec: Codec | None = None,
        last_item_codec: Codec | None = None,
    ) -> None:
        self.item_size: i64 = item_size
        self.last_item_size: i64 = last_item_size
        self.item_codec: Codec | None = item_codec  # used if `item_size` is CODEC_SIZED
        self.last_item_codec: Codec | None = last_item_codec


class Profile:
    """The streams of an instance.

    `default` is the format of all streams that are not assigned one by one; None: they are not
    assigned at all.
    """

    def __init__(
        self,
        default: StreamFormat | None = None,
        reuse: bool = False,
        max_item_bytes: int = DEFAULT_MAX_ITEM_BYTES,
    ) -> None:
        self.default: StreamFormat | None = default
        self.reuse = reuse  # may an id be used again after both sides have stopped?
        self.max_item_bytes = max_item_bytes  # limit for items of variable size
        self.has_assigned_streams: bool = False  # is any format in `assigned_formats`?
        self.assigned_formats: dict[int, StreamFormat] = {}  # by key
        self.assigned_ids: list[int] = []  # the ids in `assigned_formats`

    def assign(
        self, stream_id: int, items: Codec, last: Codec | None = None, endless: bool = False
    ) -> None:
        """Assign a stream.

        Args:
            stream_id: 0 to 2**64-1.
            items: the encoding of its regular items.
            last: the encoding of its last item; None: the last item has no content.
            endless: the stream cannot end; `last` is ignored.

        Raises:
            ValueError: `stream_id` is out of range.
        """
        final = ENDLESS if endless else last.item_size if last is not None else UNIT_LAST_ITEM
        self.assign_format(stream_id, StreamFormat(items.item_size, final, items, last))

    def assign_format(self, stream_id: int, stream_format: StreamFormat) -> None:
        self.has_assigned_streams = True
        self.assigned_formats[key_of(stream_id)] = stream_format
        self.assigned_ids.append(stream_id)

    def format_of(self, key: i64) -> StreamFormat | None:
        """Return the format of a stream, or None if it is not assigned."""
        if self.has_assigned_streams:
            found = self.assigned_formats.get(key)
            if found is not None:
                return found
        return self.default


def byte_profile() -> Profile:
    """Return the built-in profile: every id assigned, items of one byte, no last-item content."""
    return Profile(StreamFormat(1, UNIT_LAST_ITEM))


# Profiles from files


def load_profile(path: str) -> Profile:
    """Read a profile from a TOML file.

    Raises:
        ValueError: the file cannot be read or is invalid; the message is one line.
    """
    if not os.path.isfile(path):
        raise ValueError(f"profile {path}: no such file")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PROFILE_BYTES + 1)
    except OSError as problem:
        raise ValueError(f"profile {path}: {problem.strerror}") from None
    if len(data) > MAX_PROFILE_BYTES:
        raise ValueError(f"profile {path}: more than {MAX_PROFILE_BYTES} bytes")
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ValueError(f"profile {path}: not TOML: {problem}") from None
    except RecursionError:
        raise ValueError(f"profile {path}: nested too deeply") from None
    try:
        return parse_profile(table)
    except ValueError as problem:
        raise ValueError(f"profile {path}: {problem}") from None


def parse_profile(table: dict[str, object]) -> Profile:
    """Make a profile from parsed TOML.

    Raises:
        ValueError: unknown key or invalid value.
    """
    reject_unknown_keys(table, ("reuse", "max_item", "default", "stream"), "the profile")
    reuse = table.get("reuse", False)
    if not isinstance(reuse, bool):
        raise ValueError(f"reuse is true or false, not {reuse!r}")
    profile = Profile(
        None, reuse, parse_size(table.get("max_item", DEFAULT_MAX_ITEM_BYTES), "max_item", 1)
    )
    item, last = 1, 0
    if "default" in table:
        item, last = parse_item_sizes(table["default"], "[default]", item, last)
        profile.default = StreamFormat(item, last)
    streams = table.get("stream", {})
    if not isinstance(streams, dict):
        raise ValueError("[stream] holds one table for each stream: [stream.4]")
    for text, entry in streams.items():
        number = parse_stream_id(text)
        one = parse_item_sizes(entry, f"[stream.{text}]", item, last)
        profile.assign_format(number, StreamFormat(one[0], one[1]))
    if profile.default is None and not profile.assigned_ids:
        raise ValueError("no stream is assigned: give a [default] or a [stream.N]")
    profile.assigned_ids.sort()
    return profile


def parse_item_sizes(entry: object, where: str, item: int, last: int) -> tuple[int, int]:
    """Parse `item` and `last` of one table; `item` and `last` given are the defaults."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is a table with item and last")
    reject_unknown_keys(entry, ("item", "last"), where)
    if "item" in entry:
        value = entry["item"]
        item = PREFIXED if value == "prefixed" else parse_size(value, f"{where} item", 0)
    if "last" in entry:
        value = entry["last"]
        if value == "never":
            last = ENDLESS
        else:
            last = PREFIXED if value == "prefixed" else parse_size(value, f"{where} last", 0)
    return item, last


def parse_size(value: object, what: str, minimum: int) -> int:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not minimum <= value <= MAX_FIXED_ITEM_BYTES
    ):
        words = ', "prefixed"' if what.endswith("item") and minimum == 0 else ""
        words = ', "prefixed" or "never"' if what.endswith("last") else words
        raise ValueError(
            f"{what} is {minimum} to {MAX_FIXED_ITEM_BYTES} bytes{words}, not {value!r}"
        )
    return value


def parse_stream_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20) or str(int(text)) != text:
        raise ValueError(f"[stream.{text!r}]: a stream id is a decimal number, 0 to 2^64-1")
    number = int(text)
    if number > U64_MAX:
        raise ValueError(f"[stream.{text}]: a stream id is at most 2^64-1")
    return number


def reject_unknown_keys(table: dict[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in keys:
            raise ValueError(f"{where} has no {key!r}; it has {', '.join(keys)}")
