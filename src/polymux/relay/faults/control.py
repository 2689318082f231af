"""The control socket of a chaos proxy: its rules are listed and changed while it runs.

A client sends a line of JSON and gets one:

    {"do": "list"}
    {"do": "add", "rule": "stream=d3 : delay 200ms"}
    {"do": "remove", "number": 1}

Every answer has `rules`, the rules that hold from now on with their numbers and how often each was
injected; `number`, of the rule that was added or removed; or `error`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from polymux.metrics.state_socket import RequestSocket
from polymux.relay.faults.rules import BadRule, FaultRule, RuleSet, parse_rule

CONTROL_VERSION: Final = 1  # of the answers
MAX_REQUEST_BYTES: Final = 8192
REQUESTS: Final = (
    'there are {"do": "list"}, {"do": "add", "rule": TEXT}, {"do": "remove", "number": N}'
)


class ControlSocket(RequestSocket):
    """Lists and changes rules. Only processes of the same user can connect. Use in `async with`.

    Args:
        url: `unix:///path/of/the/socket`.
        rules: The rules.
        check: Raises BadRule for a rule that cannot be used here.

    Raises:
        BadUrl: `url` is not of a Unix socket.
    """

    def __init__(
        self, url: str, rules: RuleSet, check: Callable[[FaultRule], None] = lambda rule: None
    ) -> None:
        super().__init__(url, self._answer_request, "the control of chaos", MAX_REQUEST_BYTES)
        self._rules = rules
        self._check = check

    def _answer_request(self, line: bytes) -> bytes:
        try:
            answer = self._perform(line)
        except BadRule as problem:
            answer = {"error": str(problem)}
        text = json.dumps({"polymux": CONTROL_VERSION, **answer}, separators=(",", ":"))
        return text.encode() + b"\n"

    def _perform(self, line: bytes) -> dict[str, object]:
        """What the request asks for; BadRule if it cannot be understood or done."""
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            raise BadRule(f"a request is a line of JSON; {REQUESTS}") from None
        what = request.get("do") if isinstance(request, dict) else None
        if what == "list":
            return {"rules": self._list()}
        if what == "add" and isinstance(request.get("rule"), str):
            rule = parse_rule(request["rule"])
            self._check(rule)
            return {"number": self._rules.add(rule), "rules": self._list()}
        if what == "remove" and type(request.get("number")) is int:
            self._rules.remove(request["number"])
            return {"number": request["number"], "rules": self._list()}
        raise BadRule(f"no such request; {REQUESTS}")

    def _list(self) -> list[dict[str, object]]:
        return [
            {"number": number, "rule": rule.text, "injected": self._rules.injected[number]}
            for number, rule in self._rules.rules.items()
        ]
