"""The page of each rule: its sentence, section, severity, reaction, and an example of frames that
break it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from polymux.core.rules import Rule
from polymux.protocols import registry

EXAMPLES_PATH: Final = Path(__file__).parent / "assets" / "rules.json"
ORIGINS: Final = {
    "spec": "the protocol's specification",
    "limit": "a limit of this program, which can be set",
    "advice": "good practice, not the specification",
}
REACTIONS: Final = {
    "ignore": "drops the frame and counts it",
    "stream": "aborts the stream",
    "session": "ends the session",
}


@dataclass(frozen=True, slots=True)
class ExampleFrame:
    """One frame of an example: its bytes in hex, its kind, and whether it breaks the rule."""

    sender: str
    hex_bytes: str
    description: str
    violates: bool


@dataclass(frozen=True, slots=True)
class RulePage:
    """The page of one rule. `story` says what happens in the example's `frames`."""

    name: str
    sentence: str
    section: str
    origin: str
    severity: str
    reaction: str
    protocol: str = ""
    story: str = ""
    frames: tuple[ExampleFrame, ...] = ()

    def example_lines(self) -> list[str]:
        """The example as lines of text, the violating frame marked."""
        wide = max((len(line.hex_bytes) for line in self.frames), default=0)
        return [
            f"{line.sender:<8}  {line.hex_bytes:<{wide}}  {line.description}"
            + ("  <-- breaks the rule" if line.violates else "")
            for line in self.frames
        ]


def all_rules() -> list[Rule]:
    """The rules of every protocol, and those of the WebSocket layer."""
    from polymux.core.websocket.rules import (
        AFTER_CLOSE,
        BAD_CODE,
        BAD_REASON,
        FRAME_RULES,
        SHORT_CLOSE,
        TRUNCATED,
    )

    found: list[Rule] = [
        rule for name in registry.protocol_names() for rule in registry.create(name).rules
    ]
    return [*found, *FRAME_RULES, SHORT_CLOSE, BAD_CODE, BAD_REASON, AFTER_CLOSE, TRUNCATED]


def page_for_rule(rule: Rule) -> RulePage:
    """The page of a rule, with its example if there is one."""
    example = _examples().get(rule.name, {})
    lines = example.get("lines", [])
    assert isinstance(lines, list)  # of rules.json, which the package contains
    return RulePage(
        rule.name, rule.sentence, rule.section, rule.origin.value, rule.severity.value,
        rule.reaction.value, str(example.get("protocol", "")), str(example.get("story", "")),
        tuple(ExampleFrame(*line) for line in lines),
    )  # fmt: skip


def rule_pages(names: Iterable[str]) -> dict[str, RulePage]:
    """The pages of these rules; a rule that this version does not know has none."""
    wanted = set(names)
    return {rule.name: page_for_rule(rule) for rule in all_rules() if rule.name in wanted}


@cache
def _examples() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(EXAMPLES_PATH.read_text(encoding="utf-8"))
    return found
