"""Faulty peers: the testee with one rule removed, examined by the conformance tester.

`python -m tools.faulty_peers` prints what the tester finds about each. `RULES` are all rules whose
removal changes what an endpoint does when it is fed with a test vector that breaks them
(`changes_reaction`), except for those of `CONFORMING`, and three that need both sides of a vector;
`REPLIES` demand an answer. Removing another rule makes no faulty peer: what breaks it cannot be
decoded anyway, or is dropped all the same.

A peer is found out if a case about the rule FAILED, is WEDGED or NON-STRICT. A rule is reported
wrongly if a case FAILED or is WEDGED that is not about it. Needs the interpreted source, since
compiled modules cannot be changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from polymux.conform.catalogue import requirements_of
from polymux.conform.results import CaseResult, Results
from polymux.conform.runner import PeerTester
from polymux.conform.testee import serve_testee
from polymux.core.conformance import Verdict
from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError
from polymux.core.events import Opened
from polymux.protocols.registry import create, protocol_names

TIMEOUT = 2.0  # seconds
LONG_TIMEOUT = 15.0
PEERS_AT_A_TIME = 3
VECTORS = Path(__file__).parent.parent / "tests" / "vectors"
REPLIES = (  # rules that demand an answer: without them, none is sent
    "nerdbank.termination-unanswered", "omnistreams.data-unanswered", "streamux.cancel-unanswered",
    "yamux.ping-unanswered",
)  # fmt: skip
RULES = (
    "mplex.frame-too-long", "mplex.id-reused",
    "nerdbank.bad-frame", "nerdbank.frame-too-long", "nerdbank.bad-offer",
    "nerdbank.bad-acceptance", "nerdbank.id-reused", "nerdbank.window-exceeded",
    "nerdbank.bad-window", "nerdbank.content-before-acceptance", "nerdbank.acknowledged-too-much",
    "omnistreams.message-too-long", "omnistreams.metadata-too-long", "omnistreams.credit-exceeded",
    "minmux.credit-exceeded", "minmux.credit-past-limit", "minmux.limit-raised",
    "minmux.forgo-exceeds-credit", "minmux.credit-overflow", "minmux.write-past-limit",
    "yamux.bad-version", "yamux.bad-type", "yamux.stream-zero", "yamux.id-parity",
    "yamux.id-reused", "yamux.window-exceeded", "yamux.window-overflow", "yamux.ping-flags",
)  # fmt: skip
CONFORMING = {  # without these rules a peer still does what is required, and why
    "mplex.bad-flag": "a frame with flag 7 may be ignored",
    "minmux.varint-noncanonical": "longer forms of numbers may be accepted",
    "nerdbank.equal-randoms": "without odd ids for a side, the session ends all the same",
    "nerdbank.wrong-source": "an offer in the peer's name ends the session for other reasons too",
    "streamux.bad-version": "what follows a bad initiator is not understood, and is discarded",
    "streamux.bad-bit-counts": "what follows a bad initiator is not understood, and is discarded",
    "streamux.chunk-too-long": "a long chunk is legal; the limit is one of this implementation",
    "yamux.frame-too-long": "such a frame is over the window, too",
}
MIN_FOUND_SHARE = 0.95
Vector = dict[str, Any]  # as in tests/vectors


def vectors_breaking(rule: str) -> list[tuple[int, Vector]]:
    """(side that breaks the rule, vector) of the test vectors."""
    found = []
    for path in sorted((VECTORS / rule.partition(".")[0]).glob("*.json")):
        for vector in json.loads(path.read_text()):
            sides = {letter for letter, _, name in vector.get("violations", []) if name == rule}
            if "profile=" not in vector.get("protocol", "") and len(sides) == 1:
                found.append(("da".index(sides.pop()), vector))
    return found


def reaction(side: int, vector: Vector) -> list[object]:
    """What an endpoint does with the bytes of one side: events, bytes, the kind of error."""
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
        except PolymuxError as problem:
            return [*seen, type(problem).__name__]
        seen += [list(map(repr, events)), endpoint.data_to_send()]
    return seen


def raw_bytes(text: str) -> bytes:
    """Hex with blanks; `7b*300` is that byte 300 times."""
    parts = [part.partition("*") for part in text.split()]
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in parts)


def changes_reaction(rule: str) -> bool:
    """Whether a vector that breaks the rule shows its removal."""
    vectors = vectors_breaking(rule)
    before = [reaction(side, vector) for side, vector in vectors]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        remove_rule(rule)
        after = []
        for side, vector in vectors:
            try:
                after.append(reaction(side, vector))
            except Exception as problem:  # the mutant crashes
                after.append([type(problem).__name__])
        os.write(writing, b"yes" if before != after else b"no")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        changed = answer.read() == "yes"
    os.waitpid(child, 0)
    return changed


def removable_rules() -> list[str]:
    """Every rule that can be removed: its bit has a name."""
    rules = [rule.name for name in protocol_names() for rule in create(name).rules]
    return [rule for rule in rules if modules_with(rule)]


def unexplained_rules() -> list[str]:
    """Rules whose removal can be seen, but which are neither in `RULES` nor in `CONFORMING`."""
    known = {*RULES, *REPLIES, *CONFORMING}
    return [rule for rule in removable_rules() if rule not in known and changes_reaction(rule)]


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


def examine_all(rules: list[str], timeout: float, peers_at_a_time: int) -> list[Results]:
    """Examine a testee without each of the rules, by all cases of its protocol."""

    async def examine(url: str, protocol: str, slots: asyncio.Semaphore) -> Results:
        async with slots:
            return await PeerTester(url, protocol, level=2, timeout=timeout, jobs=8).run()

    async def examine_each(peers: list[tuple[str, str]]) -> list[Results]:
        slots = asyncio.Semaphore(peers_at_a_time)
        return await asyncio.gather(*(examine(url, name, slots) for url, name in peers))

    with ExitStack() as running:
        peers = []
        for rule in rules:
            name = rule.partition(".")[0]
            peers.append((running.enter_context(faulty_testee(name, rule)), name))
        return asyncio.run(examine_each(peers))


def is_about(result: CaseResult, rule: str) -> bool:
    """Whether a case breaks the rule, or belongs to a requirement of it."""
    name = rule.partition(".")[0]
    related = {found.id for found in requirements_of(name) if rule in found.rules}
    return rule in result.case.breaks or result.case.requirement in related


def judged(rule: str, results: Results) -> dict[str, object]:
    """What the tester has found about a testee without the rule."""
    bad = (Verdict.FAILED, Verdict.WEDGED, Verdict.NON_STRICT)
    # A case can be NON-STRICT for an honest peer, too: it only counts where it is about the rule.
    found = [
        result.case.id for result in results.cases
        if result.verdict in bad and is_about(result, rule)
    ]  # fmt: skip
    wrong = [result.case.id for result in results.failures() if not is_about(result, rule)]
    return {"rule": rule, "found": found, "wrong": wrong}


def judge_all(rules: list[str]) -> list[dict[str, object]]:
    """What the tester finds about each; one that is not as expected is examined again, alone.

    On a busy machine a peer may need longer than the time limit.
    """
    verdicts = []
    for rule, results in zip(rules, examine_all(rules, TIMEOUT, PEERS_AT_A_TIME), strict=True):
        verdict = judged(rule, results)
        if verdict["wrong"] or not verdict["found"]:
            verdict = judged(rule, examine_all([rule], LONG_TIMEOUT, 1)[0])
        verdicts.append(verdict)
    return verdicts


def main(rules: list[str]) -> int:
    unexplained = [] if rules else unexplained_rules()
    verdicts = judge_all(rules or [*RULES, *REPLIES])
    for verdict in verdicts:
        print(json.dumps(verdict), flush=True)
    found = sum(bool(verdict["found"]) for verdict in verdicts)
    wrong = sum(bool(verdict["wrong"]) for verdict in verdicts)
    print(json.dumps({"peers": len(verdicts), "found": found, "wrong": wrong,
                      "unexplained": unexplained}))  # fmt: skip
    enough = found >= MIN_FOUND_SHARE * len(verdicts)
    return 0 if enough and not wrong and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
