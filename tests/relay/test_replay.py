"""Replays: recorded sessions spoken again to live peers, and the comparison of both runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.relay.chaos_peers import LOCAL, echo

import polymux
from polymux.capture import PcapngWriter
from polymux.cli.demo.scenes import SCENES, Scene, record_scene
from polymux.core.errors import CaptureError
from polymux.core.side import ACCEPTOR, DIALER, NEITHER_SIDE
from polymux.record import Recorder
from polymux.relay.replay import CannotReplay, Recording, load_recordings, parse_pace, replay
from polymux.relay.replay import script as script_module
from polymux.relay.replay.script import Deed, Event, RecordedStream, make_script

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
RUNS = 100 if SOAK else 2
SENDS = 10_000 if SOAK else 300
SLOW_SCENES = ("nerdbank:version=2", "yamux")  # readers that wait: seconds for each run
TIMEOUT = 30
SCENE_NAMES = [scene.story for scene in SCENES]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Scene, Path]]:
    """Every scene of the demo, recorded into a capture of its own."""
    folder = tmp_path_factory.mktemp("demo")
    scenes: dict[str, tuple[Scene, Path]] = {}
    for number, scene in enumerate(SCENES):
        path = folder / f"{number}.pcapng"
        with PcapngWriter(str(path)) as sink:
            record_scene(scene, sink)
        scenes[scene.story] = scene, path
    return scenes


def only_recording(path: Path, protocol: str = "auto") -> Recording:
    (found,) = load_recordings([str(path)], protocol=protocol)
    return found


@pytest.mark.parametrize("story", SCENE_NAMES)
async def test_every_scene_of_the_demo_is_replayed_against_its_own_server(
    story: str, demo: dict[str, tuple[Scene, Path]]
) -> None:
    scene, path = demo[story]
    recording = only_recording(path)
    slow = scene.protocol in SLOW_SCENES
    runs = RUNS if SOAK or not slow else 1
    async with polymux.serve(scene.acceptor, scene.url, protocol=scene.protocol) as server:

        async def again() -> None:
            async with asyncio.timeout(TIMEOUT):
                found = await replay(recording, server.url, pace="causal", protocol=scene.protocol)
            assert found.is_equal, found.differences
            assert found.bytes_sent == sum(len(each.content[0]) for each in recording.streams)

        at_once = 10 if slow else 1
        for start in range(0, runs, at_once):
            await asyncio.gather(*(again() for _ in range(min(at_once, runs - start))))


@pytest.mark.parametrize(
    "story", ["five streams side by side", "thirty requests and their replies"]
)
async def test_the_capture_of_a_replay_has_the_same_content_and_causal_order(
    story: str, demo: dict[str, tuple[Scene, Path]], tmp_path: Path
) -> None:
    scene, path = demo[story]
    recording = only_recording(path)
    again = tmp_path / "again.pcapng"
    with PcapngWriter(str(again)) as sink:
        async with polymux.serve(scene.acceptor, scene.url, protocol=scene.protocol) as server:
            await replay(
                recording, server.url, pace="causal", protocol=scene.protocol,
                recorder=Recorder(sink),
            )  # fmt: skip
    replayed = only_recording(again)
    assert contents(replayed) == contents(recording)
    assert has_order_of(replayed, recording)


def contents(recording: Recording) -> list[tuple[bytes, bytes, bytes, list[str]]]:
    return [
        (each.name, bytes(each.content[0]), bytes(each.content[1]), each.endings)
        for each in recording.streams
    ]


def has_order_of(replayed: Recording, recording: Recording) -> bool:
    """Whether each send of the dialer follows at least the content that it followed before."""

    def followed(found: Recording) -> list[dict[int, int]]:
        seen: dict[int, int] = {}
        sent: list[dict[int, int]] = []
        for action in make_script(found, DIALER).actions:
            for stream, deed, amount in action.needs:
                if deed is Deed.SEND:
                    seen[stream] = amount
            if action.event.deed is Deed.SEND:
                sent.append({action.event.stream: len(action.event.data), **seen})
        return sent

    before, after = followed(recording), followed(replayed)
    return len(before) == len(after) and all(
        new.get(stream, 0) >= amount
        for old, new in zip(before, after, strict=True)
        for stream, amount in old.items()
    )


@pytest.mark.parametrize(
    "story",
    [
        "five streams side by side",
        "five channels of version 1",
        "thirty requests and their replies",
    ],
)
async def test_the_acceptors_side_is_spoken_to_a_live_dialer(
    story: str, demo: dict[str, tuple[Scene, Path]]
) -> None:
    scene, path = demo[story]
    url = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    running = asyncio.ensure_future(
        replay(only_recording(path), url, side=ACCEPTOR, pace="causal", protocol=scene.protocol)
    )
    async with asyncio.timeout(TIMEOUT):
        async with polymux.connect(url, protocol=scene.protocol, wait=10) as session:
            await scene.dialer(session)
        found = await running
    assert found.same_content, found.differences
    assert found.same_order


async def test_a_message_is_spoken_whole_whatever_its_size(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def measure(session: polymux.Session) -> None:
        stream = await session.accept()
        async for message in stream:
            sizes.append(len(message))
        answer = await session.open()  # a stream of this protocol flows one way
        await answer.end()

    path = tmp_path / "messages.pcapng"
    async with asyncio.timeout(TIMEOUT):
        async with polymux.serve(measure, LOCAL, protocol="omnistreams") as server:
            with PcapngWriter(str(path)) as sink:
                recorder = Recorder(sink)
                async with polymux.connect(
                    server.url, protocol="omnistreams", recorder=recorder
                ) as client:
                    stream = await client.open()
                    for size in (10, 300_000, 700_000):
                        await stream.send(bytes(size))
                    await stream.end()
                    await (await client.accept()).receive_all()
            live = sizes.copy()
            sizes.clear()
            found = await replay(only_recording(path, "omnistreams"), server.url, pace="causal")
    assert found.is_equal, found.differences
    assert live == sizes == [10, 300_000, 700_000]


async def record_pings(path: Path, times: int, gap: float) -> None:
    """Record a client that sends `times` bytes, `gap` seconds apart, to an echoing server."""
    with PcapngWriter(str(path)) as sink:
        async with (
            polymux.serve(echo, LOCAL, protocol="mplex") as server,
            polymux.connect(server.url, protocol="mplex", recorder=Recorder(sink)) as client,
        ):
            stream = await client.open("pings")
            began = client.loop.time()
            for number in range(times):
                await asyncio.sleep(max(0.0, began + number * gap - client.loop.time()))
                await stream.send(b"p")
                client.flush()
            await stream.end()
            await stream.receive_all()


async def test_sends_keep_the_recorded_pace(tmp_path: Path) -> None:
    path = tmp_path / "pings.pcapng"
    await record_pings(path, SENDS, 0.001)
    recording = only_recording(path)
    async with polymux.serve(echo, LOCAL, protocol="mplex") as server:
        async with asyncio.timeout(TIMEOUT):
            found = await replay(recording, server.url, pace="recorded")
    assert found.is_equal, found.differences
    assert len(found.lateness) == found.sends
    assert min(found.lateness) >= 0
    assert found.seconds >= recording.seconds * 0.9
    if SOAK:
        assert found.lateness_quantile(0.99) < 0.002


async def test_a_replay_runs_faster_or_slower(tmp_path: Path) -> None:
    path = tmp_path / "pings.pcapng"
    await record_pings(path, 20, 0.02)
    recording = only_recording(path)
    async with polymux.serve(echo, LOCAL, protocol="mplex") as server:
        fast = await replay(recording, server.url, pace="4")
        slow = await replay(recording, server.url, pace="0.5")
    assert fast.is_equal
    assert slow.is_equal
    assert slow.seconds >= recording.seconds * 1.8
    assert fast.seconds < slow.seconds / 2


async def test_without_waiting_for_answers_the_order_differs(tmp_path: Path) -> None:
    path = tmp_path / "asked.pcapng"
    with PcapngWriter(str(path)) as sink:
        async with (
            polymux.serve(echo, LOCAL, protocol="mplex") as server,
            polymux.connect(server.url, protocol="mplex", recorder=Recorder(sink)) as client,
        ):
            stream = await client.open("asked")
            for _ in range(5):
                await stream.send(b"well?")
                await stream.receive()
            await stream.end()
            await stream.receive_all()
    recording = only_recording(path)
    async with polymux.serve(echo, LOCAL, protocol="mplex") as server:
        causal = await replay(recording, server.url, pace="causal")
        found = await replay(recording, server.url, pace="max")
    assert causal.is_equal
    assert found.same_content
    assert not found.same_order
    assert "4 sends came before an answer" in " ".join(found.differences)


async def test_another_answer_is_a_difference_with_its_place(
    demo: dict[str, tuple[Scene, Path]],
) -> None:
    async def shout(session: polymux.Session) -> None:
        async def answer(stream: polymux.Stream) -> None:
            async for chunk in stream:
                await stream.send(chunk.replace(b"you", b"YOU"))

        await session.serve_streams(answer)

    recording = only_recording(demo["five streams side by side"][1])
    async with polymux.serve(shout, LOCAL, protocol="mplex") as server:
        found = await replay(recording, server.url, pace="causal")
    assert not found.same_content
    assert found.same_order
    assert "d1: the content that came differs from byte 8" in found.differences


async def test_a_peer_that_does_not_answer_is_given_up(
    demo: dict[str, tuple[Scene, Path]],
) -> None:
    async def be_silent(session: polymux.Session) -> None:
        await session.wait_closed()

    recording = only_recording(demo["five streams side by side"][1])
    async with polymux.serve(be_silent, LOCAL, protocol="mplex") as server:
        async with asyncio.timeout(TIMEOUT):
            found = await replay(recording, server.url, pace="causal", answer_timeout=0.3)
    assert not found.is_equal
    assert any(text.startswith("waited in vain for ") for text in found.differences)


async def test_what_the_recording_does_not_have_is_no_progress(
    demo: dict[str, tuple[Scene, Path]],
) -> None:
    async def chatter(session: polymux.Session) -> None:
        stream = await session.open("heartbeat")
        while True:
            await stream.send(b"tick")
            await asyncio.sleep(0.02)

    recording = only_recording(demo["five streams side by side"][1])
    async with polymux.serve(chatter, LOCAL, protocol="mplex") as server:
        async with asyncio.timeout(10):
            found = await replay(recording, server.url, pace="causal", answer_timeout=0.3)
    assert any(text.startswith("waited in vain for ") for text in found.differences)


async def test_an_acceptor_that_cannot_speak_the_recording_says_so() -> None:
    seeded = RecordedStream("s0", 0, NEITHER_SIDE, b"")
    seeded.content[0].extend(b"hello")
    recording = Recording("x", "nerdbank", [seeded], [Event(Deed.SEND, DIALER, 0, b"hello", 0.0)])
    url = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    async with asyncio.timeout(10):
        running = asyncio.ensure_future(replay(recording, url, side=ACCEPTOR, pace="causal"))
        session = await polymux.connect(url, protocol="nerdbank", wait=10)
        with pytest.raises(CannotReplay, match="seeded channel 0"):
            await running
        await session.wait_closed()


async def test_an_acceptor_to_whom_no_dialer_comes_gives_up(
    demo: dict[str, tuple[Scene, Path]],
) -> None:
    recording = only_recording(demo["five streams side by side"][1])
    async with asyncio.timeout(10):
        with pytest.raises(polymux.Unreachable, match=r"no dialer came within 0\.1 s"):
            await replay(recording, LOCAL, side=ACCEPTOR, answer_timeout=0.1)


async def test_a_peer_that_goes_away_ends_the_replay(demo: dict[str, tuple[Scene, Path]]) -> None:
    async def leave(session: polymux.Session) -> None:
        await session.accept()
        session.abort()

    recording = only_recording(demo["five streams side by side"][1])
    async with polymux.serve(leave, LOCAL, protocol="mplex") as server:
        async with asyncio.timeout(TIMEOUT):
            found = await replay(recording, server.url, pace="causal")
    assert not found.is_equal


async def test_a_url_without_a_listener_is_an_error(demo: dict[str, tuple[Scene, Path]]) -> None:
    recording = only_recording(demo["five streams side by side"][1])
    with pytest.raises(polymux.Unreachable):
        await replay(recording, f"tcp://127.0.0.1:{free_ports(1)[0]}")


def test_what_followed_an_answer_needs_it(demo: dict[str, tuple[Scene, Path]]) -> None:
    script = make_script(only_recording(demo["a peer writes after closing its stream"][1]), DIALER)
    deeds = [(each.event.deed, each.event.stream) for each in script.actions]
    opening = script.actions[deeds.index((Deed.OPEN, 1))]
    assert set(opening.needs) == {(0, Deed.SEND, 13), (0, Deed.END, 1)}
    sent = b"".join(each.event.data for each in script.actions if each.event.deed is Deed.SEND)
    assert b"one more thing" not in sent  # it was no content of the stream any more


def test_a_session_whose_beginning_is_missing_cannot_be_replayed(
    demo: dict[str, tuple[Scene, Path]], tmp_path: Path
) -> None:
    data = demo["five streams side by side"][1].read_bytes()
    blocks = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        blocks.append(data[position : position + size])
        position += size
    packets = [block for block in blocks if block[:4] == b"\x06\0\0\0"]
    kept = [block for block in blocks if block not in packets[:6]]
    torn = tmp_path / "torn.pcapng"
    torn.write_bytes(b"".join(kept))
    with pytest.raises(CannotReplay, match="not captured"):
        load_recordings([str(torn)], protocol="mplex")


def test_too_much_content_is_refused(
    demo: dict[str, tuple[Scene, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_module, "MAX_CONTENT_BYTES", 1000)
    with pytest.raises(polymux.LimitExceeded, match="memory"):
        only_recording(demo["five streams side by side"][1])


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"nothing\.pcapng"):
        load_recordings([str(tmp_path / "nothing.pcapng")])


def test_a_torn_capture_is_an_error(demo: dict[str, tuple[Scene, Path]], tmp_path: Path) -> None:
    torn = tmp_path / "torn.pcapng"
    torn.write_bytes(demo["five streams side by side"][1].read_bytes()[:-3000])
    with pytest.raises(CaptureError, match=r"torn\.pcapng"):
        load_recordings([str(torn)])


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "1e9"])
def test_a_pace_that_is_none_says_what_is_possible(text: str) -> None:
    with pytest.raises(CannotReplay, match="recorded, causal, max"):
        parse_pace(text)
