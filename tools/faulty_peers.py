"""Faulty peers: the testee with one rule removed, examined by the conformance tester.

`python -m tools.faulty_peers` removes each of `RULES` and `REPLIES` in turn, in a fork, and prints what the tester
finds. A peer is found out if a case that breaks the rule FAILED or is WEDGED, or has become
NON-STRICT; a rule is reported wrongly if a case FAILED or is WEDGED that neither breaks the rule nor
belongs to a requirement of it. Needs the interpreted source: compiled modules cannot be changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from polymux.conform.catalogue import requirements_of
from polymux.conform.results import CaseResult, Results
from polymux.conform.runner import Tester
from polymux.conform.testee import serve_testee
from polymux.core.conformance import Verdict
from polymux.protocols.registry import create

TIMEOUT = 2.0
# Removing any other rule changes nothing that a peer shows: what breaks it cannot be decoded either,
# or is dropped without it too, or a peer may ignore it.
RULES = (
    "mplex.frame-too-long", "mplex.id-reused",
    "nerdbank.bad-frame", "nerdbank.bad-offer", "nerdbank.bad-acceptance", "nerdbank.id-reused",
    "nerdbank.content-before-acceptance", "nerdbank.window-exceeded", "nerdbank.bad-window",
    "nerdbank.acknowledged-too-much", "nerdbank.id-parity", "nerdbank.frame-too-long",
    "omnistreams.credit-exceeded", "omnistreams.message-too-long", "omnistreams.metadata-too-long",
    "minmux.write-past-limit", "minmux.credit-exceeded", "minmux.credit-past-limit",
    "minmux.limit-raised", "minmux.forgo-exceeds-credit", "minmux.credit-overflow",
    "yamux.bad-version", "yamux.bad-type", "yamux.stream-zero", "yamux.id-parity",
    "yamux.id-reused", "yamux.window-exceeded", "yamux.window-overflow", "yamux.ping-flags",
)  # fmt: skip
REPLIES = (  # rules that demand an answer: without them, none is sent
    "nerdbank.termination-unanswered", "omnistreams.data-unanswered", "streamux.cancel-unanswered",
    "yamux.ping-unanswered",
)  # fmt: skip
VERSIONS = {"nerdbank.id-parity": "2"}


def remove_rule(rule: str) -> None:
    """Remove a rule from this process: its bit is 0 wherever the protocol uses it."""
    protocol, _, name = rule.partition(".")
    if rule in REPLIES:
        # As `setattr`: the method of a class that is compiled elsewhere.
        setattr(type(create(protocol)), "reply_frame", lambda self, reply: None)  # noqa: B010
        return
    constant = name.upper().replace("-", "_")
    found = [
        module for path, module in sys.modules.items()
        if path.startswith(f"polymux.protocols.{protocol}.") and hasattr(module, constant)
    ]  # fmt: skip
    if not found:
        raise ValueError(f"{rule}: no constant {constant}")
    for module in found:
        setattr(module, constant, 0)


@contextmanager
def faulty_testee(protocol: str, rule: str) -> Iterator[str]:
    """A testee without the rule, in a fork; its URL. An empty rule: an honest one."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            if rule:
                remove_rule(rule)
            asyncio.run(serve_until_killed(protocol, writing))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading) as lines:
            yield lines.readline().strip()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def serve_until_killed(protocol: str, writing: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    async with await serve_testee("tcp://127.0.0.1:0", protocol) as server:
        os.write(writing, server.url.encode() + b"\n")
        await asyncio.Event().wait()


def examine(protocol: str, rule: str) -> Results:
    """Examine a testee without the rule, by all cases of its protocol."""
    with faulty_testee(protocol, rule) as url:
        return asyncio.run(Tester(url, protocol, level=2, timeout=TIMEOUT, jobs=8).run())


def protocol_for(rule: str) -> str:
    """The protocol string under which a rule can be broken."""
    name = rule.partition(".")[0]
    return f"{name}:version={VERSIONS[rule]}" if rule in VERSIONS else name


def is_about(result: CaseResult, rule: str) -> bool:
    """Whether a case breaks the rule, or belongs to a requirement of it."""
    name = rule.partition(".")[0]
    related = {found.id for found in requirements_of(name) if rule in found.rules}
    return rule in result.case.breaks or result.case.requirement in related


def judge(rule: str) -> dict[str, object]:
    """What the tester finds about a testee without the rule."""
    results = examine(protocol_for(rule), rule)
    bad = (Verdict.FAILED, Verdict.WEDGED, Verdict.NON_STRICT)
    # A case can be NON-STRICT for an honest peer, too: it only counts where it is about the rule.
    found = [
        result.case.id for result in results.cases
        if result.verdict in bad and is_about(result, rule)
    ]  # fmt: skip
    wrong = [
        result.case.id for result in results.failures() if not is_about(result, rule)
    ]
    return {"rule": rule, "found": found, "wrong": wrong, "cases": len(results.cases)}


def main(rules: list[str]) -> int:
    missed = wrong = 0
    chosen = rules or [*RULES, *REPLIES]
    for rule in chosen:
        verdict = judge(rule)
        missed += not verdict["found"]
        wrong += bool(verdict["wrong"])
        print(json.dumps(verdict), flush=True)
    print(json.dumps({"peers": len(chosen), "missed": missed, "wrong": wrong}))
    return 1 if wrong or missed > len(chosen) * 0.05 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
