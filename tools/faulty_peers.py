"""Faulty peers: the testee with one rule removed, examined by the conformance tester.

    python -m tools.faulty_peers                        every rule of every protocol
    python -m tools.faulty_peers --count 40 --seed 7    so many of them, chosen by the seed

The mutants are those of the mutation tool (`mutations.rule_removals`); of a rule that demands an
answer (`REPLIES`), the answer is left out. None is left out by hand:

- it is *unseen* if an endpoint reacts to every test vector that breaks the rule as it did with the
  rule, in bytes, in events and in closing the session: on the wire it is the same peer;
- it *conforms* if nothing requires the rule: it is a note, or all its requirements are dialects;
- every other one is a faulty peer.

A faulty peer is found out if a case about the rule FAILED, is WEDGED or NON-STRICT. A rule is
reported wrongly if a case FAILED or is WEDGED that is not about it. Needs the interpreted source,
since compiled modules cannot be changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from tools.mutations import rule_removals

from polymux.conform.catalogue import requirements_of
from polymux.conform.results import CaseResult, Results
from polymux.conform.runner import PeerTester
from polymux.conform.testee import serve_testee
from polymux.core.conformance import DIALECT, Verdict
from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError
from polymux.core.events import Opened
from polymux.core.rules import Severity
from polymux.protocols.registry import create

TIMEOUT = 2.0  # seconds
LONG_TIMEOUT = 15.0
PEERS_AT_A_TIME = 3
VECTORS = Path(__file__).parent.parent / "tests" / "vectors"
VARIANTS = (  # the protocol strings of testees
    "mplex", "nerdbank", "nerdbank:version=2", "nerdbank:version=1", "omnistreams",
    "omnistreams:numbering=legacy", "streamux", "minmux", "yamux",
)  # fmt: skip
REPLIES = (  # rules that demand an answer: without them, none is sent
    "nerdbank.termination-unanswered", "omnistreams.data-unanswered", "streamux.cancel-unanswered",
    "yamux.ping-unanswered",
)  # fmt: skip
# What breaks these rules depends on what the endpoint itself has sent, which the replay of one side
# of a vector leaves out; so they are taken for seen.
BOTH_SIDES = (
    "nerdbank.content-before-acceptance", "nerdbank.acknowledged-too-much",
    "minmux.write-past-limit",
)  # fmt: skip
MIN_FOUND_SHARE = 0.95
FAULTY, UNSEEN, CONFORMS = "faulty", "unseen", "conforms"
Vector = dict[str, Any]  # as in tests/vectors


def all_rules() -> list[str]:
    """The rules that the mutation tool can remove."""
    return [mutant.description for mutant in rule_removals()]


def chosen_rules(count: int, seed: int) -> list[str]:
    """So many of them, the same ones for the same seed and source."""
    every = all_rules()
    return Random(seed).sample(every, min(count, len(every)))


def kind_of(rule: str) -> tuple[str, tuple[str, ...]]:
    """What the testee without the rule is, and the protocol strings for which that shows."""
    protocol = rule.partition(".")[0]
    related = [found for found in requirements_of(protocol) if rule in found.rules]
    severity = next(found.severity for found in create(protocol).rules if found.name == rule)
    if rule in REPLIES:
        return FAULTY, (protocol,)
    if severity is Severity.NOTE or all(found.obligation is DIALECT for found in related):
        return CONFORMS, ()
    if rule in BOTH_SIDES:
        return FAULTY, (protocol,)
    variants = changed_variants(rule)
    return (FAULTY, variants) if variants else (UNSEEN, ())


def vectors_breaking(rule: str) -> list[tuple[int, Vector]]:
    """(side that breaks the rule, vector) of the test vectors that testees can be given."""
    found = []
    for path in sorted((VECTORS / rule.partition(".")[0]).glob("*.json")):
        for vector in json.loads(path.read_text()):
            sides = {letter for letter, _, name in vector.get("violations", []) if name == rule}
            if vector.get("protocol", "") in VARIANTS and len(sides) == 1:
                found.append(("da".index(sides.pop()), vector))
    return found


def reaction(side: int, vector: Vector) -> list[object]:
    """What an endpoint does with the bytes of one side: events, bytes, the end of the session."""
    endpoint = Endpoint(create(vector["protocol"], vantage=1 - side), 1 - side)
    endpoint.start(bytes(range(16)))
    seen: list[object] = [endpoint.data_to_send()]
    for letter, text in vector["steps"]:
        if letter != "da"[side]:
            continue
        try:
            events = endpoint.receive(raw_bytes(text), 0.0)
            for event in events:
                if (
                    isinstance(event, Opened)
                    and event.stream
                    and endpoint.protocol.needs_acceptance
                ):
                    endpoint.accept(event.stream)
        except PolymuxError:
            return [*seen, endpoint.data_to_send(), "closed"]
        seen += [list(map(repr, events)), endpoint.data_to_send()]
    return seen


def raw_bytes(text: str) -> bytes:
    """Hex with blanks; `7b*300` is that byte 300 times."""
    parts = [part.partition("*") for part in text.split()]
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in parts)


def changed_variants(rule: str) -> tuple[str, ...]:
    """The protocol strings of the vectors that show the removal of the rule."""
    vectors = vectors_breaking(rule)
    before = [reaction(side, vector) for side, vector in vectors]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        remove_rule(rule)
        changed = []
        for (side, vector), old in zip(vectors, before, strict=True):
            try:
                new = reaction(side, vector)
            except Exception as problem:  # the mutant crashes
                new = [type(problem).__name__]
            if new != old:
                changed.append(vector["protocol"])
        os.write(writing, "\n".join(changed).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = set(answer.read().splitlines())
    os.waitpid(child, 0)
    return tuple(variant for variant in VARIANTS if variant in found)


def modules_with(rule: str) -> list[ModuleType]:
    """The modules of the protocol in which the bit of the rule has a name."""
    protocol, _, name = rule.partition(".")
    constant = name.upper().replace("-", "_")
    return [
        module for path, module in sys.modules.items()
        if path.startswith(f"polymux.protocols.{protocol}.") and hasattr(module, constant)
    ]  # fmt: skip


def remove_rule(rule: str) -> None:
    """Remove a rule from this process: its bit is 0 wherever the protocol uses it."""
    protocol, _, name = rule.partition(".")
    if rule in REPLIES:
        # As `setattr`: the method of a class that is compiled elsewhere.
        setattr(type(create(protocol)), "reply_frame", lambda self, reply: None)  # noqa: B010
        return
    for module in modules_with(rule):
        setattr(module, name.upper().replace("-", "_"), 0)


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


def examine_all(
    peers: list[tuple[str, str]], timeout: float, peers_at_a_time: int
) -> list[Results]:
    """Examine testees, each (rule that is removed, protocol string), by all cases."""

    async def examine(url: str, protocol: str, slots: asyncio.Semaphore) -> Results:
        async with slots:
            return await PeerTester(url, protocol, level=2, timeout=timeout, jobs=8).run()

    async def examine_each(urls: list[str]) -> list[Results]:
        slots = asyncio.Semaphore(peers_at_a_time)
        return await asyncio.gather(
            *(examine(url, peer[1], slots) for url, peer in zip(urls, peers, strict=True))
        )

    with ExitStack() as running:
        urls = [running.enter_context(faulty_testee(name, rule)) for rule, name in peers]
        return asyncio.run(examine_each(urls))


def is_about(result: CaseResult, rule: str) -> bool:
    """Whether a case breaks the rule, or belongs to a requirement of it."""
    name = rule.partition(".")[0]
    related = {found.id for found in requirements_of(name) if rule in found.rules}
    return rule in result.case.breaks or result.case.requirement in related


def judged(rule: str, results: Results) -> tuple[set[str], set[str]]:
    """The cases that find out a testee without the rule, and those that report something else."""
    bad = (Verdict.FAILED, Verdict.WEDGED, Verdict.NON_STRICT)
    # A case can be NON-STRICT for an honest peer, too: it only counts where it is about the rule.
    found = {
        result.case.id for result in results.cases
        if result.verdict in bad and is_about(result, rule)
    }  # fmt: skip
    wrong = {result.case.id for result in results.failures() if not is_about(result, rule)}
    return found, wrong


def judge_all(rules: list[str]) -> list[dict[str, object]]:
    """What each testee is, and what the tester finds about it, in all variants that show it.

    One that is not found, or of which something else is reported, is examined again, alone: on a
    busy machine a peer may need longer than the time limit.
    """
    kinds = {rule: kind_of(rule) for rule in rules}
    peers = [(rule, variant) for rule in rules for variant in kinds[rule][1]]
    verdicts = {rule: (set[str](), set[str]()) for rule in rules}
    for (rule, variant), results in zip(
        peers, examine_all(peers, TIMEOUT, PEERS_AT_A_TIME), strict=True
    ):
        found, wrong = judged(rule, results)
        if wrong or not found:
            found, wrong = judged(rule, examine_all([(rule, variant)], LONG_TIMEOUT, 1)[0])
        verdicts[rule][0].update(found)
        verdicts[rule][1].update(wrong)
    return [
        {"rule": rule, "kind": kinds[rule][0], "found": sorted(found), "wrong": sorted(wrong)}
        for rule, (found, wrong) in verdicts.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faulty_peers")
    parser.add_argument("rules", nargs="*", help="rules to remove; default: all, or --count")
    parser.add_argument("--count", type=int, default=0, help="remove so many rules")
    parser.add_argument("--seed", type=int, default=0, help="that chooses them")
    options = parser.parse_args(arguments)
    rules = options.rules or all_rules()
    if options.count:
        rules = chosen_rules(options.count, options.seed)
    verdicts = judge_all(rules)
    for verdict in verdicts:
        print(json.dumps(verdict), flush=True)
    faulty = [verdict for verdict in verdicts if verdict["kind"] == FAULTY]
    found = sum(bool(verdict["found"]) for verdict in faulty)
    wrong = sum(bool(verdict["wrong"]) for verdict in faulty)
    print(json.dumps({"rules": len(rules), "faulty": len(faulty), "found": found, "wrong": wrong}))
    return 0 if found >= MIN_FOUND_SHARE * len(faulty) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
