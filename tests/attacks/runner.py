"""One attack from start to end, and the common oracle.

The witness is a session opened before the attack. While the attack runs and after it, the witness
must get one MiB back; the server must say what it held against the attacker; its memory must stay
within the attack's bound; and nothing may be logged as a warning.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.attacks.attacker_connection import WS, Foe
from tests.attacks.target import Facts, Target, Zygote

import polymux
from polymux import MinmuxSession, OmnistreamsSession, Session, StreamuxSession, YamuxSession

SOAK = float(os.environ.get("POLYMUX_SOAK") or 0)  # minutes asked for; 0: the fast form
SLACK = 1.5 if SOAK else 5.0  # a busy machine may take so many times what is demanded
MIB = 1024 * 1024
PIECES = [bytes([n]) * 32768 for n in range(32)]  # one MiB that the witness sends and gets back

ENDED = "ended"  # the session ended, with one of `names` in its failure
COUNTED = "counted"  # the session lives on, and one of `names` was counted
UNHARMED = "unharmed"  # the session lives on
REFUSED = "refused"  # the connection was closed before there was a session to speak of

Play = Callable[["Scene"], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """What an attacker does to a server of one protocol, and the expected result."""

    number: int  # of the class
    title: str
    protocol: str
    play: Play
    verdict: str
    names: tuple[str, ...] = ()  # rules, limits or deadlines; one of them is to be named
    memory: float = 8  # MiB the server may grow
    within: float = 1.0  # seconds from the last byte sent to the end
    mode: str = "echo"  # what the server's application does with the attacker's streams
    handled: int = 0  # at most so many streams may reach the application; 0: any number
    send_buffer: int = 0  # bytes the system holds for the server's session; 0: as it likes
    limits: dict[str, int] = field(default_factory=dict)
    timeouts: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"ATK-{self.number:02d} {short(self.protocol)}: {self.title}"


def short(protocol: str) -> str:
    if protocol == WS:
        return "websocket"
    if protocol.startswith("minmux:"):
        return "minmux with a profile"
    return protocol.replace("nerdbank:version=", "nerdbank v")


@dataclass
class Scene:
    """What the script of an attack can use."""

    attack: Attack
    target: Target
    foe: Foe
    foes: list[Foe] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # figures of its own
    clients: list[Session] = field(default_factory=list)

    async def another(self, hello: bool = True, unread: bool = False) -> Foe:
        foe = Foe(self.attack.protocol, self.target.port)
        self.foes.append(foe)
        await foe.dial(hello, unread)
        return foe

    async def client(self) -> Session:
        """A session that keeps to its protocol, in place of the attacker's raw connection."""
        if self.foe in self.foes:
            self.foes.remove(self.foe)  # it has not connected
        url = f"tcp://127.0.0.1:{self.target.port}"
        self.clients.append(await polymux.connect(url, protocol=self.attack.protocol))
        return self.clients[-1]

    async def told(self) -> Facts:
        """The server's facts about the newest session."""
        facts: Facts = (await self.target.tell())["sessions"][-1]
        return facts


@dataclass
class Outcome:
    """The result of an attack; `problems` is empty if it is as expected."""

    attack: Attack
    growth: int = 0
    echo: float = 0.0
    said: str = ""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line: the attack, memory against its bound, the witness's latency."""
        word = "pass" if not self.problems else "FAIL"
        figures = f"memory +{self.growth / MIB:.2f} MiB (at most {self.attack.memory:g})"
        notes = "".join(f", {note}" for note in self.notes)
        said = f"; {self.said}" if self.said else ""
        return f"{word}  {self.attack}: {figures}, echo {self.echo:.2f} s{notes}{said}"


async def run(attack: Attack, zygote: Zygote) -> Outcome:
    """Attack a new server."""
    outcome = Outcome(attack)
    carried = attack.protocol == WS
    protocol = "omnistreams" if carried else attack.protocol
    url = "ws://127.0.0.1:0/" if carried else "tcp://127.0.0.1:0"
    order = {
        "protocol": protocol, "url": url, "mode": attack.mode, "limits": attack.limits,
        "timeouts": attack.timeouts, "send_buffer": attack.send_buffer,
    }  # fmt: skip
    async with await zygote.fork(order) as target:
        address = url.replace(":0", f":{target.port}", 1)
        witness = await polymux.connect(address, protocol=protocol, timeout=60)
        try:
            await echo(witness)
            await echo(witness)
            await assault(attack, target, witness, outcome)
        finally:
            witness.abort("the attack is over")
            await witness.wait_closed()
    return outcome


async def assault(attack: Attack, target: Target, witness: Session, outcome: Outcome) -> None:
    await target.tell()  # its memory is swept and its answer made before the weighing
    target.weigh()
    foe = Foe(attack.protocol, target.port)
    scene = Scene(attack, target, foe, [foe], outcome.notes)
    over = asyncio.Event()
    watching = asyncio.create_task(watch(target, witness, outcome, over))
    try:
        await attack.play(scene)
        outcome.growth = target.growth()
        await judge(scene, outcome)
    except Exception as problem:  # the outcome of this attack, not of all of them
        outcome.problems.append(f"the attack itself failed: {problem!r}")
    finally:
        over.set()
        await watching
        for each in scene.foes:
            await each.leave()
        for session in scene.clients:
            session.abort()
            await session.wait_closed()
    await measure_echo(witness, outcome)
    outcome.growth = max(outcome.growth, target.growth())
    if outcome.growth > attack.memory * MIB:
        outcome.problems.append(
            f"memory grew by {outcome.growth / MIB:.2f} MiB, the bound is {attack.memory:g}"
        )
    if outcome.echo > 2 * SLACK:
        outcome.problems.append(f"the witness waited {outcome.echo:.2f} s for its echo")
    if not target.process.is_running():
        outcome.problems.append("the server is gone")


async def watch(target: Target, witness: Session, outcome: Outcome, over: asyncio.Event) -> None:
    """While the attack runs, check that the witness is served, and measure memory.

    A witness that speaks Streamux is asked less and less often: every one of its requests is
    remembered by the server, and would be counted as the attacker's doing.
    """
    pause = 10
    while not over.is_set():
        for _ in range(pause):
            target.sample()
            await asyncio.sleep(0.01)
        await measure_echo(witness, outcome)
        if isinstance(witness, StreamuxSession):
            pause += 10


async def measure_echo(witness: Session, outcome: Outcome) -> None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(10 * SLACK):
            await echo(witness)
    except (TimeoutError, polymux.PolymuxError) as problem:
        outcome.problems.append(f"the witness got no echo: {problem!r}")
    outcome.echo = max(outcome.echo, time.monotonic() - began)


async def until_read(scene: Scene) -> None:
    """Wait until the server has read what was sent so far, and its application has acted on it.

    It answers a question in an iteration of its loop, in which it also reads what has come.
    """
    await asyncio.sleep(0.05)
    for _ in range(10):
        await scene.target.tell()


async def judge(scene: Scene, outcome: Outcome) -> None:
    """Compare the end of the attacker's session with the expected one."""
    attack, foe = scene.attack, scene.foe
    problems = outcome.problems
    allowed = attack.within * SLACK
    if attack.verdict == REFUSED:
        if not await foe.wait_closed(allowed):
            problems.append(f"still open {allowed:g} s after the attack")
        return
    facts = await verdict_in_time(scene, allowed)
    if facts["loud"]:
        problems.append(f"logged: {facts['loud'][0]}")
    sessions = facts["sessions"][1:]
    if not sessions:
        problems.append("there never was a session")
        return
    found = sessions[0]
    outcome.said = found["failure"]
    if attack.verdict == ENDED:
        if not found["closed"]:
            problems.append(f"still open {allowed:g} s after the attack")
        if not any(name in found["failure"] for name in attack.names):
            problems.append(f"no word of {attack.names} in {found['failure']!r} {found['hits']}")
    elif found["closed"]:
        problems.append(f"the session has ended: {found['failure']}")
    if attack.verdict == COUNTED and not any(name in found["hits"] for name in attack.names):
        problems.append(f"none of {attack.names} was counted: {found['hits']}")
    if "\n" in found["failure"] or not all(text.isprintable() for text in found["texts"]):
        problems.append("a text of the peer is not safe to print")
    if attack.handled and found["handled"] > attack.handled:
        problems.append(f"{found['handled']} streams reached the application")
    most = found["most"]
    pending = attack.limits.get("accept_backlog", 1024)
    bounds = {"control": 4096, "pending": pending, "remembered": 65536}
    problems += [f"{name}: {most[name]} at once" for name in bounds if most[name] > bounds[name]]


async def verdict_in_time(scene: Scene, allowed: float) -> Facts:
    """The server's facts when it has ended the session, or after the time limit."""
    attack = scene.attack
    began = time.monotonic()
    while True:
        facts = await scene.target.tell()
        sessions = facts["sessions"][1:]
        waited = time.monotonic() - began
        if sessions:
            found = sessions[0]
            counted = any(name in found["hits"] for name in attack.names)
            if (
                found["closed"]
                or (attack.verdict == COUNTED and counted)
                or (attack.verdict == UNHARMED and waited > 0.2)
            ):
                return facts
        if waited > allowed:
            return facts
        await asyncio.sleep(0.02)


async def echo(session: Session) -> None:
    """The witness sends one MiB and gets it back, piece by piece: what the server holds of it at
    any moment is small beside the bounds on what an attack may make it hold."""
    if isinstance(session, StreamuxSession):
        for piece in PIECES:
            assert await session.request(piece, timeout=0) == piece
    elif isinstance(session, MinmuxSession):
        await echo_items(session)
    elif isinstance(session, OmnistreamsSession):
        await echo_messages(session)
    else:
        await echo_bytes(session)


async def echo_items(session: MinmuxSession) -> None:
    outlet, inlet = session.sender(1), session.receiver(2)
    for piece in PIECES:
        await outlet.send(piece)
        got = 0
        while got < len(piece):
            got += len(await inlet.receive())


async def echo_messages(session: OmnistreamsSession) -> None:
    async with await session.open("witness") as outlet:
        back = await session.accept()
        for piece in PIECES:
            await outlet.send(piece)
            assert await back.receive() == piece


async def echo_bytes(session: Session) -> None:
    name = "" if isinstance(session, YamuxSession) else "witness"
    async with await session.open(name) as stream:
        for piece in PIECES:
            await stream.send(piece)
            got = b""
            while len(got) < len(piece):
                got += await stream.receive()
            assert got == piece
        await stream.end()
        assert await stream.receive_all() == b""
