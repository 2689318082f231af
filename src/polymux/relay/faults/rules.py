"""Fault rules: `SELECT : FAULT` says which streams or connections suffer which fault.

    name~upload* every=2 : delay 200ms jitter=20ms
    stream=d3 after=64k : reset
    * : latency latency=100 jitter=10

SELECT is `*`, or any of `stream=LABEL`, `name~GLOB`, `opener=dialer|acceptor`, `nth=N`, `every=N`
and `after=SIZE|TIME`. FAULT is a name, its value, and further parameters as `key=value`. Words
with spaces are put in quotes. The faults of whole connections have toxiproxy's names, parameters
and units; a time may also have a unit of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from polymux.core.errors import PolymuxError
from polymux.core.side import ACCEPTOR, DIALER
from polymux.text.units import parse_bytes

TIME_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
MAX_SECONDS: Final = 86_400.0
MAX_SIZE: Final = 1 << 50
MAX_RULES: Final = 256  # of one set
MAX_RULE_CHARACTERS: Final = 1024
SIDE_NAMES: Final = ("dialer", "acceptor")
SEPARATOR: Final = " : "
ILLEGAL: Final = "illegal"

# `toward=`: the sides whose content, or bytes, suffer the fault.
TOWARD: Final = {"upstream": (DIALER,), "dialer": (ACCEPTOR,), "both": (DIALER, ACCEPTOR)}

# Kinds of parameters.
TIME: Final = "a time such as 200ms, 1.5s or 250us"
SIZE: Final = "a size such as 500, 64k or 1M"
COUNT: Final = "a number from 1 on"
SHARE: Final = "a number from 0 to 1"


class BadRule(PolymuxError):
    """A fault rule cannot be understood; the text says what, and what is possible instead."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a fault: its kind (TIME, SIZE, COUNT or SHARE) and its default.

    A time is in seconds; one without a unit is counted in `unit`. `default` None: it is required.
    `positive`: it is more than 0.
    """

    name: str
    kind: str
    default: float | None = None
    unit: str = "ms"
    positive: bool = False


@dataclass(frozen=True)
class FaultKind:
    """A fault that can be injected. Its first parameter may be given without the name."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    whole_connection: bool = False
    directed: bool = True  # takes `toward=`


def connection_fault(name: str, summary: str, *parameters: Parameter) -> FaultKind:
    """A fault of a whole connection, with the share of connections that suffer it."""
    share = Parameter("toxicity", SHARE, 1.0)
    return FaultKind(name, summary, (*parameters, share), whole_connection=True)


FAULTS: Final = {kind.name: kind for kind in (
    FaultKind("delay", "content arrives later by this time",
              (Parameter("time", TIME), Parameter("jitter", TIME, 0.0))),
    FaultKind("hold", "content waits for this time once; then everything passes",
              (Parameter("time", TIME),)),
    FaultKind("rate", "content passes at this many bytes a second",
              (Parameter("rate", SIZE, positive=True),)),
    FaultKind("reset", "the stream is reset towards both sides", directed=False),
    FaultKind("end-early", "the content ends here; what follows is discarded"),
    FaultKind("withhold-credit", "once its window is used up, the sender gets no credit for this "
              "time", (Parameter("time", TIME),)),
    FaultKind("dribble-credit", "credit is returned in pieces of this size, one each interval",
              (Parameter("size", SIZE, positive=True),
               Parameter("interval", TIME, 0.01, positive=True))),
    FaultKind("starve", "the content is never read"),
    FaultKind("reorder", "each chunk waits until this many chunks of other streams have passed it, "
              "or for this time", (Parameter("chunks", COUNT, 1.0), Parameter("time", TIME, 1.0))),
    FaultKind(ILLEGAL, "illegal:RULE breaks that rule of the protocol once", directed=False),
    connection_fault("latency", "bytes arrive later", Parameter("latency", TIME),
                     Parameter("jitter", TIME, 0.0)),
    connection_fault("bandwidth", "this many kilobytes pass in a second",
                     Parameter("rate", COUNT)),
    connection_fault("timeout", "bytes are discarded, and the connection ends after this time; "
                     "0: never", Parameter("timeout", TIME)),
    connection_fault("slow_close", "the end of the connection comes later by this time",
                     Parameter("delay", TIME)),
    connection_fault("slicer", "bytes arrive in slices of this size",
                     Parameter("average_size", SIZE, positive=True),
                     Parameter("size_variation", SIZE, 0.0),
                     Parameter("delay", TIME, 0.0, "us")),
    connection_fault("limit_data", "the connection ends after this many bytes",
                     Parameter("bytes", SIZE)),
    connection_fault("reset_peer", "the connection is reset (TCP RST) after this time",
                     Parameter("timeout", TIME, 0.0)),
)}  # fmt: skip
"""All faults by name: first those of streams, then those of whole connections."""


@dataclass(frozen=True)
class StreamFacts:
    """What a rule can select a stream by.

    Attributes:
        label: As its opener numbers it: `d3`.
        name: Its name or metadata; empty if it has none.
        opener: The side that opened it, DIALER or ACCEPTOR.
    """

    label: str
    name: str
    opener: int


@dataclass(frozen=True)
class Selection:
    """The part of a rule before the colon. What was not given selects everything."""

    stream: str = ""
    name: str | None = None
    opener: int | None = None
    nth: int = 0
    every: int = 0
    after_bytes: int = 0
    after_seconds: float = 0.0

    def matches(self, facts: StreamFacts) -> bool:
        """Whether the stream is one of those that `nth` and `every` count."""
        return (
            (not self.stream or self.stream == facts.label)
            and (self.name is None or fnmatchcase(facts.name, self.name))
            and (self.opener is None or self.opener == facts.opener)
        )

    def counts_in(self, number: int) -> bool:
        """Whether the `number`-th that matches, from 1 on, is selected."""
        return (not self.nth or number == self.nth) and (not self.every or number % self.every == 0)

    @property
    def concerns_streams(self) -> bool:
        """Whether it has a term that only streams have."""
        return bool(self.stream) or self.name is not None or self.opener is not None


@dataclass(frozen=True)
class FaultRule:
    """One rule.

    Attributes:
        text: As it was written.
        select: What suffers the fault.
        kind: The fault.
        values: Its parameters by name; times in seconds, sizes in bytes.
        senders: The sides whose content suffers it.
        broken_rule: For `illegal`, the rule of the protocol that is broken.
    """

    text: str
    select: Selection
    kind: FaultKind
    values: dict[str, float] = field(hash=False)
    senders: tuple[int, ...] = (DIALER, ACCEPTOR)
    broken_rule: str = ""

    @property
    def fault_text(self) -> str:
        """The part after the colon, for comments in captures."""
        return self.text.partition(SEPARATOR)[2].strip()


def parse_rule(text: str) -> FaultRule:
    """Parse `SELECT : FAULT`.

    Raises:
        BadRule: It is malformed; the text says what, and what is possible.
    """
    text = text.strip()
    if len(text) > MAX_RULE_CHARACTERS:
        raise BadRule(f"a rule of {len(text)} characters: at most {MAX_RULE_CHARACTERS}")
    selection, colon, fault = f" {text}".partition(SEPARATOR)
    if not colon or not fault.strip():
        raise BadRule(
            f"{text!r} has no ' : ' with a fault behind it; write SELECT : FAULT, such as "
            "'name~upload* : delay 200ms', or '* : latency latency=100'"
        )
    select = parse_selection(split_words(selection, text), text)
    words = split_words(fault, text)
    name, _, broken_rule = words[0].partition(":")
    kind = FAULTS.get(name)
    if kind is None or (broken_rule and name != ILLEGAL):
        raise BadRule(f"{text!r}: no fault is named {words[0]!r}; there are {', '.join(FAULTS)}")
    if name == ILLEGAL and not broken_rule:
        raise BadRule(f"{text!r}: say which rule is broken: illegal:mplex.write-after-close")
    if kind.whole_connection and select.concerns_streams:
        raise BadRule(
            f"{text!r}: {name} concerns whole connections, so stream=, name~ and opener= select "
            "nothing there; use nth=, every= or after="
        )
    senders, words = take_toward(kind, words[1:], text)
    return FaultRule(text, select, kind, parse_values(kind, words, text), senders, broken_rule)


def split_words(part: str, text: str) -> list[str]:
    try:
        return shlex.split(part)
    except ValueError as problem:
        raise BadRule(f"{text!r}: {problem}") from None


def parse_selection(words: list[str], text: str) -> Selection:
    """The terms before the colon; BadRule if one is not understood, or given twice."""
    found: dict[str, object] = {}
    seen: set[str] = set()
    for word in words:
        if word in ("*", "all") and len(words) == 1:
            break
        match = re.fullmatch(r"(\w+)([=~])(.*)", word, re.DOTALL)
        known = match is not None and (match[1] == "name") == (match[2] == "~")
        if match is None or not known or match[1] not in SELECT_TERMS:
            raise BadRule(
                f"{text!r}: {word!r} selects nothing; there are stream=LABEL, name~GLOB, "
                "opener=dialer|acceptor, nth=N, every=N, after=SIZE|TIME, and * for all"
            )
        if match[1] in seen:
            raise BadRule(f"{text!r}: {match[1]} is given twice")
        seen.add(match[1])
        found |= SELECT_TERMS[match[1]](match[3], f"{text!r}: {match[1]}")
    return Selection(**found)  # type: ignore[arg-type]  # each term has a value of its field's type


def parse_stream(value: str, where: str) -> dict[str, object]:
    if not re.fullmatch(r"[das]\d+(\.\d+)?", value):
        raise BadRule(f"{where}={value!r}: a stream is written as `polymux ls` does: d3, a2, d0.2")
    return {"stream": value}


def parse_opener(value: str, where: str) -> dict[str, object]:
    if value not in SIDE_NAMES:
        raise BadRule(f"{where}={value!r}: it is dialer or acceptor")
    return {"opener": SIDE_NAMES.index(value)}


def parse_after(value: str, where: str) -> dict[str, object]:
    """A size, or a time with a unit."""
    if re.search(r"\d(us|ms|s|min)$", value):
        return {"after_seconds": parse_time(value, where, "")}
    return {"after_bytes": parse_size(value, where)}


SELECT_TERMS: Final[dict[str, Callable[[str, str], dict[str, object]]]] = {
    "stream": parse_stream,
    "name": lambda value, where: {"name": value},
    "opener": parse_opener,
    "nth": lambda value, where: {"nth": parse_count(value, where)},
    "every": lambda value, where: {"every": parse_count(value, where)},
    "after": parse_after,
}


def take_toward(kind: FaultKind, words: list[str], text: str) -> tuple[tuple[int, ...], list[str]]:
    """The sides that `toward=` names, and the other words."""
    rest = [word for word in words if not word.startswith("toward=")]
    given = [word.removeprefix("toward=") for word in words if word.startswith("toward=")]
    if not given:
        return TOWARD["both"], rest
    if not kind.directed:
        raise BadRule(f"{text!r}: {kind.name} has no direction, so it takes no toward=")
    if len(given) > 1 or given[0] not in TOWARD:
        raise BadRule(f"{text!r}: toward={given[-1]}: it is upstream, dialer or both, given once")
    return TOWARD[given[0]], rest


def parse_values(kind: FaultKind, words: list[str], text: str) -> dict[str, float]:
    """The parameters of a fault; BadRule if one is missing, unknown, given twice or malformed."""
    known = {parameter.name: parameter for parameter in kind.parameters}
    given: dict[str, str] = {}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals and position == 0 and kind.parameters:
            name, value = kind.parameters[0].name, word
        elif not equals or name not in known:
            possible = ", ".join(f"{each}=" for each in known) or "none"
            raise BadRule(f"{text!r}: {kind.name} has no parameter {word!r}; it has {possible}")
        if name in given:
            raise BadRule(f"{text!r}: {name} is given twice")
        given[name] = value
    values: dict[str, float] = {}
    for parameter in kind.parameters:
        if parameter.name in given:
            values[parameter.name] = parse_value(parameter, given[parameter.name], repr(text))
            if parameter.positive and not values[parameter.name]:
                raise BadRule(f"{text!r}: {parameter.name}= is more than 0")
        elif parameter.default is not None:
            values[parameter.name] = parameter.default
        else:
            raise BadRule(f"{text!r}: {kind.name} needs {parameter.name}=, {parameter.kind}")
    return values


def parse_value(parameter: Parameter, value: str, text: str) -> float:
    where = f"{text}: {parameter.name}"
    if parameter.kind == TIME:
        return parse_time(value, where, parameter.unit)
    if parameter.kind == SIZE:
        return parse_size(value, where)
    if parameter.kind == COUNT:
        return parse_count(value, where)
    if not re.fullmatch(r"0(\.\d+)?|1(\.0+)?", value):
        raise BadRule(f"{where}={value!r} is not {SHARE}")
    return float(value)


def parse_time(value: str, where: str, unit: str) -> float:
    """Seconds. `unit` counts for a value without one; "" demands one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|min|)", value)
    if match is None or not (match[2] or unit):
        raise BadRule(f"{where}={value!r} is not {TIME}")
    seconds = float(match[1]) * TIME_UNITS[match[2] or unit]
    if seconds > MAX_SECONDS:
        raise BadRule(f"{where}={value!r} is longer than a day")
    return seconds


def parse_size(value: str, where: str) -> int:
    """Bytes."""
    size = parse_bytes(value)
    if size is None or size > MAX_SIZE:
        raise BadRule(f"{where}={value!r} is not {SIZE}")
    return size


def parse_count(value: str, where: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", value):
        raise BadRule(f"{where}={value!r} is not {COUNT}")
    return int(value)


class RuleSet:
    """The rules of a chaos proxy, which may change while it runs.

    Each rule has a number that is never used again, and counts how often it was injected.
    """

    def __init__(self) -> None:
        self.rules: dict[int, FaultRule] = {}
        self.injected: dict[int, int] = {}  # by number, also of rules that were removed
        self.on_change: list[Callable[[], None]] = []
        self._next_number = 1

    def add(self, rule: FaultRule) -> int:
        """Add a rule behind the others; return its number.

        Raises:
            BadRule: There are `MAX_RULES` already.
        """
        if len(self.rules) >= MAX_RULES:
            raise BadRule(f"there are {MAX_RULES} rules already; remove one first")
        number = self._next_number
        self._next_number += 1
        self.rules[number] = rule
        self.injected[number] = 0
        self._changed()
        return number

    def remove(self, number: int) -> FaultRule:
        """Remove a rule and return it. What it holds up goes on.

        Raises:
            BadRule: No rule has this number.
        """
        rule = self.rules.pop(number, None)
        if rule is None:
            known = ", ".join(map(str, self.rules)) or "none"
            raise BadRule(f"no rule has the number {number}; there are {known}")
        self._changed()
        return rule

    def count(self, number: int) -> None:
        """A fault of this rule was injected."""
        self.injected[number] = self.injected.get(number, 0) + 1

    def _changed(self) -> None:
        for callback in list(self.on_change):
            callback()
