"""The scenes of the demo: two real peers each, connected through a recording proxy on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from polymux.aio import Session, connect, serve
from polymux.capture.synthesis.tcp_connection import PacketSink
from polymux.cli.demo import peers
from polymux.cli.demo.throttled_relay import MemoryCapture, ThrottledRelay
from polymux.core.errors import PolymuxError
from polymux.record.proxy import RecordingProxy

PeerScript = Callable[[Session], Awaitable[None]]
MAX_TAKES = 40  # attempts to play a scene undisturbed


class TooBusy(PolymuxError):
    """The machine was too busy to play a scene undisturbed in `MAX_TAKES` attempts."""


@dataclass(frozen=True)
class Scene:
    """What the acceptor and the dialer do, and a sentence that describes it."""

    protocol: str
    story: str
    acceptor: PeerScript
    dialer: PeerScript
    url: str = "tcp://127.0.0.1:0"
    throttled: bool = False  # limit the rate of the dialer's data


async def play_scene(scene: Scene, sink: PacketSink) -> None:
    """Run one scene to its end through the proxy, which records it to `sink`."""
    protocol = scene.protocol
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            await serve(scene.acceptor, scene.url, protocol=protocol)
        )
        proxy = await stack.enter_async_context(
            RecordingProxy(scene.url, server.url, sink, protocol=protocol)
        )
        url = proxy.url
        if scene.throttled:
            url = (await stack.enter_async_context(ThrottledRelay(proxy.url))).url
        async with connect(url, protocol=protocol) as session:
            await scene.dialer(session)
        deadline = session.loop.time() + 5
        while proxy.stats.open and session.loop.time() < deadline:
            await asyncio.sleep(0.01)  # until the proxy has seen both directions end


def record_scene(scene: Scene, sink: PacketSink) -> int:
    """Play a scene until the machine does not disturb it, and record that. Return the attempts.

    Raises:
        TooBusy: All `MAX_TAKES` attempts were disturbed.
    """
    for take in range(1, MAX_TAKES + 1):
        capture = MemoryCapture()
        try:
            asyncio.run(play_scene(scene, capture))
        except peers.MachineTooSlow:
            continue
        capture.copy_to(sink)
        return take
    raise TooBusy(f"{scene.story}: this machine is too busy to play it undisturbed; try again")


SCENES = (
    Scene("mplex", "five streams side by side", peers.echo, peers.exchange_on_five_streams),
    Scene("mplex", "a stream is reset in the middle", peers.echo, peers.reset_one),
    Scene("mplex", "a peer writes after closing its stream", peers.echo, peers.write_after_close),
    Scene(
        "nerdbank:version=1",
        "five channels of version 1",
        peers.echo,
        peers.exchange_on_five_streams,
    ),
    Scene(
        "nerdbank:version=2",
        "a transfer through a window that is too small",
        peers.read_slowly,
        peers.send_six_windows,
    ),
    Scene(
        f"nerdbank:version=3,seeded={peers.WINDOW}+1048576",
        "one reader reads nothing, another is prompt",
        peers.read_late,
        peers.give_up_waiting,
    ),
    Scene(
        "omnistreams",
        "four streams of messages over a WebSocket",
        peers.take_messages,
        peers.send_messages,
        "ws://127.0.0.1:0/omnistreams",
    ),
    Scene(
        "omnistreams",
        "a huge message holds up a small one on a thin line",
        peers.take_messages,
        peers.send_huge_message,
        "ws://127.0.0.1:0/omnistreams",
        throttled=True,
    ),
    Scene(
        "streamux", "thirty requests and their replies", peers.answer_requests, peers.send_requests
    ),
    Scene("minmux", "three streams of items under credit", peers.take_items, peers.send_items),
    Scene(
        "yamux",
        "a transfer that is limited by its window",
        peers.read_by_windows,
        peers.send_four_windows,
    ),
)
