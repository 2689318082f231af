"""`illegal:RULE`: the rule is broken once, and the analysis of the capture finds it by its name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.relay.chaos_peers import Handler, echo, faulty, open_named, rows_in

import polymux
from polymux.core.errors import PolymuxError
from polymux.protocols.registry import create
from polymux.relay import BadRule
from polymux.relay.faults.breaches import Breach, Step, find_breach

PROTOCOLS = (
    "mplex",
    "nerdbank:version=1",
    "nerdbank:version=2",
    "nerdbank:version=3",
    "omnistreams",
    "streamux",
    "minmux",
    "yamux",
)
AT_ONCE = 8  # rules of a protocol that are broken at the same time, in proxies of their own

NOT_PRODUCIBLE = {
    # Broken by silence, or by items that only a profile defines:
    "nerdbank.not-terminated",
    "nerdbank.termination-unanswered",
    "omnistreams.data-unanswered",
    "streamux.cancel-unanswered",
    "streamux.chunk-too-long",
    "minmux.last-item-missing",
    "minmux.unassigned-stream",
    "minmux.endless-stream-stopped",
    "minmux.bad-item",
    "minmux.item-too-long",
    "yamux.unacknowledged",
    "yamux.ping-unanswered",
    "yamux.open-after-goaway",
}

Client = Callable[[Any, Breach, asyncio.Event], Awaitable[None]]


def needs_abort(breach: Breach) -> bool:
    """Whether the breach begins after the peer has aborted the stream."""
    return breach.steps[0] is Step.AWAIT_ABORT


async def use_stream(session: Any, breach: Breach, broken: asyncio.Event) -> None:
    stream = await open_named(session)
    await stream.send(b"reset" if needs_abort(breach) else b"hello")
    await broken.wait()
    await stream.end()
    await stream.receive_all()


async def use_messages(session: Any, breach: Breach, broken: asyncio.Event) -> None:
    sender = await session.open(b"work")
    await sender.send(b"cancel" if needs_abort(breach) else b"hello")
    await broken.wait()
    await sender.end()


async def use_requests(session: Any, breach: Breach, broken: asyncio.Event) -> None:
    exchange = await session.open()
    if breach.rule == "streamux.reply-before-end":
        await exchange.send(bytes(200_000))
    else:
        await exchange.send(b"hello")
        await exchange.end()
    if needs_abort(breach):
        await asyncio.sleep(0.05)
        exchange.abort()
    await broken.wait()


async def use_items(session: Any, breach: Breach, broken: asyncio.Event) -> None:
    sender = session.sender(1)
    await sender.send(b"items")
    await broken.wait()
    await sender.end()


async def take_messages(session: Any) -> None:
    async def take(receiver: polymux.MessageReceiver) -> None:
        async for message in receiver:
            if message == b"cancel":
                receiver.cancel()
                return

    await session.serve_streams(take)


async def answer_late(session: Any) -> None:
    async def work(call: polymux.Call) -> None:
        data = await call.read()
        await asyncio.sleep(0.2)
        await call.reply(data)

    await session.serve_calls(work)


async def take_items(session: Any) -> None:
    async for _ in session.receiver(1):
        pass
    await session.wait_closed()


PEERS: dict[str, tuple[Handler, Client]] = {
    "omnistreams": (take_messages, use_messages),
    "streamux": (answer_late, use_requests),
    "minmux": (take_items, use_items),
}


def producible(protocol: str) -> list[str]:
    """The rules that can be broken."""
    found = []
    for rule in create(protocol).rules:
        with contextlib.suppress(BadRule):
            find_breach(protocol, rule.name)
            found.append(rule.name)
    return found


def test_every_rule_is_broken_in_one_version_or_listed_as_not_producible() -> None:
    for name in {protocol.partition(":")[0] for protocol in PROTOCOLS}:
        rules = {rule.name for rule in create(name).rules}
        variants = [each for each in PROTOCOLS if each.partition(":")[0] == name]
        broken = {rule for variant in variants for rule in producible(variant)}
        assert rules - broken == rules & NOT_PRODUCIBLE


async def break_rule(protocol: str, rule: str, out: Path) -> int:
    """Break a rule in a session through a proxy that records it; return how often it was."""
    handler, use = PEERS.get(protocol.partition(":")[0], (echo, use_stream))
    breach = find_breach(protocol, rule)
    broken = asyncio.Event()
    timeouts = polymux.Timeouts(close=1.0)
    injected = 0
    with contextlib.suppress(PolymuxError, TimeoutError):
        async with faulty(
            protocol, [f"nth=1 : illegal:{rule}"], handler, out, timeouts=timeouts
        ) as (client, proxy):
            using = asyncio.ensure_future(use(client, breach, broken))
            async with asyncio.timeout(8):
                while not proxy.rules.injected[1] and not client.closed.done():
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)
            broken.set()
            await asyncio.wait([using], timeout=0.5)
            using.cancel()
            await asyncio.gather(using, return_exceptions=True)
            injected = proxy.rules.injected[1]
    return injected


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_each_broken_rule_is_found_by_its_name(protocol: str, tmp_path: Path) -> None:
    rules = producible(protocol)
    for start in range(0, len(rules), AT_ONCE):
        chosen = rules[start : start + AT_ONCE]
        counts = await asyncio.gather(
            *(break_rule(protocol, rule, tmp_path / f"{rule}.pcapng") for rule in chosen)
        )
        assert dict(zip(chosen, counts, strict=True)) == dict.fromkeys(chosen, 1)
    for rule in rules:
        capture = tmp_path / f"{rule}.pcapng"
        found = {row["rule"] for row in rows_in(capture, "violations")}
        assert rule in found, (rule, found)
        assert f"chaos: illegal:{rule} on ".encode() in capture.read_bytes()
