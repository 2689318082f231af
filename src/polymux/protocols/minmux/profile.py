# mypyc: compiled
"""An instance of Minmux: which streams are assigned, and how long their items are.

The wire does not say any of this, so both sides, and whoever watches them, must be told: by a file
(`minmux:profile=FILE.toml`) or, in Python, by `Profile.assign`.
"""

import os
import tomllib
from typing import Final

from mypy_extensions import i64

from polymux.protocols.minmux.item_codecs import ENDLESS, ITEM, PREFIXED, Codec
from polymux.protocols.minmux.packets import MOST, key_of

FILE: Final = 1024 * 1024  # octets of a profile at most: it is written by hand
SIZE: Final = 0x7FFFFFFF  # octets of a fixed item at most
UNIT: Final[i64] = 0  # the last item says nothing, so no packet carries it


class Shape:
    """One stream: octets of an item and of the last item, or PREFIXED, OWN, ENDLESS."""

    def __init__(
        self, item: i64, last: i64, items: Codec | None = None, finale: Codec | None = None
    ) -> None:
        self.item: i64 = item
        self.last: i64 = last
        self.items: Codec | None = items  # measures items where `item` is OWN
        self.finale: Codec | None = finale  # measures the last item where `last` is OWN


class Profile:
    """The streams of an instance. `default` is the shape of all that are not named, if any."""

    def __init__(
        self, default: Shape | None = None, reuse: bool = False, limit: int = ITEM
    ) -> None:
        self.default: Shape | None = default
        self.reuse = reuse  # may an id be used again once both sides are done with it?
        self.limit = limit  # octets accepted in an item that says its own length
        self.sorts: bool = False  # is any stream named?
        self.named: dict[int, Shape] = {}  # by key
        self.numbers: list[int] = []  # the ids in `named`

    def assign(
        self, number: int, items: Codec, last: Codec | None = None, endless: bool = False
    ) -> None:
        """Assign a stream. Without `last` its last item is the unit; `endless`: it cannot end."""
        final = ENDLESS if endless else last.form if last is not None else UNIT
        self.name(number, Shape(items.form, final, items, last))

    def name(self, number: int, shape: Shape) -> None:
        self.sorts = True
        self.named[key_of(number)] = shape
        self.numbers.append(number)

    def shape(self, key: i64) -> Shape | None:
        """What a stream carries; None if it is not assigned."""
        if self.sorts:
            found = self.named.get(key)
            if found is not None:
                return found
        return self.default


def plain_profile() -> Profile:
    """The built-in instance: every id assigned, an item is one octet, the last item is the unit."""
    return Profile(Shape(1, UNIT))


# --- from a file


def load_profile(path: str) -> Profile:
    """Read a profile; ValueError with one line that says what is wrong and where."""
    if not os.path.isfile(path):
        raise ValueError(f"profile {path}: no such file")
    try:
        with open(path, "rb") as file:
            octets = file.read(FILE + 1)
    except OSError as problem:
        raise ValueError(f"profile {path}: {problem.strerror}") from None
    if len(octets) > FILE:
        raise ValueError(f"profile {path}: more than {FILE} octets")
    try:
        table = tomllib.loads(octets.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ValueError(f"profile {path}: not TOML: {problem}") from None
    except RecursionError:
        raise ValueError(f"profile {path}: nested too deeply") from None
    try:
        return read_profile(table)
    except ValueError as problem:
        raise ValueError(f"profile {path}: {problem}") from None


def read_profile(table: dict[str, object]) -> Profile:
    """A profile from what its TOML says; ValueError if it says something else."""
    known(table, ("reuse", "max_item", "default", "stream"), "the profile")
    reuse = table.get("reuse", False)
    if not isinstance(reuse, bool):
        raise ValueError(f"reuse is true or false, not {reuse!r}")
    profile = Profile(None, reuse, octets_of(table.get("max_item", ITEM), "max_item", 1))
    item, last = 1, 0
    if "default" in table:
        item, last = sizes(table["default"], "[default]", item, last)
        profile.default = Shape(item, last)
    streams = table.get("stream", {})
    if not isinstance(streams, dict):
        raise ValueError("[stream] holds one table for each stream: [stream.4]")
    for text, entry in streams.items():
        number = number_of(text)
        one = sizes(entry, f"[stream.{text}]", item, last)
        profile.name(number, Shape(one[0], one[1]))
    if profile.default is None and not profile.numbers:
        raise ValueError("no stream is assigned: give a [default] or a [stream.N]")
    profile.numbers.sort()
    return profile


def sizes(entry: object, where: str, item: int, last: int) -> tuple[int, int]:
    """`item` and `last` of one table; what it leaves out stays as given."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is a table with item and last")
    known(entry, ("item", "last"), where)
    if "item" in entry:
        said = entry["item"]
        item = PREFIXED if said == "prefixed" else octets_of(said, f"{where} item", 0)
    if "last" in entry:
        said = entry["last"]
        if said == "never":
            last = ENDLESS
        else:
            last = PREFIXED if said == "prefixed" else octets_of(said, f"{where} last", 0)
    return item, last


def octets_of(value: object, what: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= SIZE:
        words = ', "prefixed"' if what.endswith("item") and least == 0 else ""
        words = ', "prefixed" or "never"' if what.endswith("last") else words
        raise ValueError(f"{what} is {least} to {SIZE} octets{words}, not {value!r}")
    return value


def number_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20) or str(int(text)) != text:
        raise ValueError(f"[stream.{text!r}]: a stream id is a decimal number, 0 to 2^64-1")
    number = int(text)
    if number > MOST:
        raise ValueError(f"[stream.{text}]: a stream id is at most 2^64-1")
    return number


def known(table: dict[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in keys:
            raise ValueError(f"{where} has no {key!r}; it has {', '.join(keys)}")
