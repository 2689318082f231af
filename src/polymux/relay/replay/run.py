"""`replay`: speak one side of a recorded session again, through a live session."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final

from polymux.aio import connect, serve
from polymux.aio.connect import Unreachable
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.session_rows import make_session_id
from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import read_sessions
from polymux.core.errors import CaptureError, PolymuxError, SessionClosed
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import DIALER, NEITHER_SIDE
from polymux.live.hooks import RecorderFactory
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.session.session import Session
from polymux.relay.ends import End, SessionEnd, ignore_loss
from polymux.relay.engine import Relay
from polymux.relay.minmux_end import MinmuxEnd
from polymux.relay.pump import RelayedStream
from polymux.relay.replay.comparison import Comparison, compare
from polymux.relay.replay.player import NO_TIMES, Pace, Player, RecordingEnd, RunLog
from polymux.relay.replay.script import (
    CannotReplay,
    Recording,
    Script,
    make_script,
    read_recording,
)

RECORDED: Final = Pace(1.0)
CAUSAL: Final = Pace(NO_TIMES)
MAX: Final = Pace(NO_TIMES, causal=False)
ANSWER_SECONDS: Final = 10.0  # without any progress, after which an answer is no longer awaited


def parse_pace(text: str) -> Pace:
    """`recorded`, `causal`, `max`, or how much faster than recorded, such as `2` or `0.5`.

    Raises:
        CannotReplay: It is none of these.
    """
    known = {"recorded": RECORDED, "causal": CAUSAL, "max": MAX}
    if text in known:
        return known[text]
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.001 <= speed <= 1_000_000:
        raise CannotReplay(
            f"pace {text!r}: it is recorded, causal, max, or how much faster than recorded, from "
            "0.001 to 1000000"
        )
    return Pace(speed)


def load_recordings(
    captures: Sequence[str],
    *,
    protocol: str = "auto",
    session: str = "",
    keys: KeyLog | None = None,
) -> list[Recording]:
    """Read the sessions of captures, to be replayed.

    Args:
        captures: Files, folders or globs.
        protocol: Protocol string, or `auto` to detect that of each session.
        session: Only those whose id begins with this text.
        keys: Opens sessions inside TLS; secrets in the captures are used anyway.

    Raises:
        CannotReplay: A session is not complete, or its protocol is not known.
        LimitExceeded: A session has too much content.
        CaptureError: A capture cannot be read to its end.
    """
    options = AnalysisOptions(protocol, keys=keys)
    with read_sessions(captures) as reader:
        options = options.with_secrets(reader.secrets)
        for file in reader.files:
            if file.error is not None:
                raise CaptureError(
                    file.error if file.file in file.error else f"{file.file}: {file.error}"
                )
        return [
            read_recording(found, options)
            for found in reader
            if make_session_id(found.flow, found.started_at).startswith(session)
        ]


async def replay(
    recording: Recording,
    url: str,
    *,
    side: int = DIALER,
    pace: str | Pace = RECORDED,
    protocol: str | None = None,
    answer_timeout: float = ANSWER_SECONDS,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    recorder: RecorderFactory | None = None,
) -> Comparison:
    """Speak one side of a recorded session again, and compare both runs.

    The content is sent through a live session, with that session's own framing, ids and credit.
    Whatever followed an answer in the recording is sent only after that answer has come, unless the
    pace is `max`.

    Args:
        recording: From `read_recording`.
        url: Where to connect (`side` DIALER), or to listen for one session (ACCEPTOR).
        side: The side to speak, DIALER or ACCEPTOR.
        pace: A `Pace`, or text as for `parse_pace`.
        protocol: Protocol string; that of the recording by default.
        answer_timeout: Seconds without progress after which an answer is not awaited any longer; as
            ACCEPTOR also those after which no dialer is.
        tls, server_hostname, limits, timeouts, recorder: As for `polymux.connect` and `serve`.

    Raises:
        PolymuxError: There is no session: the peer cannot be reached, no dialer has come, or the
            URL is invalid.
        CannotReplay: The session has not the channels of the recording that neither side opens.
    """
    script = make_script(recording, side)
    chosen = parse_pace(pace) if isinstance(pace, str) else pace
    name = protocol or recording.protocol
    log = RunLog()
    if side == DIALER:
        session = await connect(
            url, protocol=name, tls=tls, server_hostname=server_hostname, limits=limits,
            timeouts=timeouts, recorder=recorder,
        )  # fmt: skip
        await run_script(session, script, chosen, log, answer_timeout)
        return compare(script, log)
    came = asyncio.Event()
    ran: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handle(session: Session) -> None:
        if came.is_set():
            session.abort("one session is replayed at a time")
            return
        came.set()
        try:
            await run_script(session, script, chosen, log, answer_timeout)
        except Exception as problem:
            if not ran.done():
                ran.set_exception(problem)
        else:
            if not ran.done():
                ran.set_result(None)

    async with await serve(
        handle, url, protocol=name, tls=tls, limits=limits, timeouts=timeouts, recorder=recorder
    ):
        try:
            await asyncio.wait_for(came.wait(), answer_timeout)
        except TimeoutError:
            raise Unreachable(
                f"{url}: no dialer came within {answer_timeout:g} s; start it in this time, or "
                "give a longer timeout"
            ) from None
        await ran
    return compare(script, log)


async def run_script(
    session: Session, script: Script, pace: Pace, log: RunLog, answer_timeout: float
) -> None:
    """Do the actions of a script on a session, then close it.

    Raises:
        CannotReplay: The session has not the channels that neither side opens; it is aborted.
    """
    player = Player(script, pace, log)
    keeps_ids = isinstance(session, MinmuxSession)
    recorded = RecordingEnd(script, player, log, keeps_ids)
    relay = Relay(recorded, live_end(session, script, recorded))
    began = session.loop.time()
    try:
        seeded = relay_seeded(session, script, recorded)
    except CannotReplay:
        session.abort("it cannot be replayed")
        await session.wait_closed()
        raise
    running = asyncio.ensure_future(relay.run())
    try:
        recorded.start()
        await wait_until_done(player, running, session, answer_timeout)
    finally:
        if not player.done.done():
            log.unanswered = player.waits_for() or "the live session to take what is sent"
        log.seconds = session.loop.time() - began
        recorded.is_closing = True
        player.stop()
        if script.side != DIALER and player.done.done():
            # The dialer ends a session; only one that does not is closed from here.
            await asyncio.wait([session.closed], timeout=answer_timeout)
        await session.close()
        recorded.abort("the replay is over")
        await asyncio.gather(running, return_exceptions=True)
        for relayed in seeded:
            relayed.abort_both("")


async def wait_until_done(
    player: Player, running: asyncio.Future[None], session: Session, answer_timeout: float
) -> None:
    """Wait until all was done, the session is over, or nothing has happened for too long."""
    while not player.done.done() and not running.done() and not session.closed.done():
        left = player.last_progress_at + answer_timeout - session.loop.time()
        if left <= 0 and not player.is_on_time:
            return
        await asyncio.wait(
            [player.done, running, session.closed],
            timeout=max(left, answer_timeout / 10),
            return_when=asyncio.FIRST_COMPLETED,
        )


class LiveEnd(SessionEnd):
    """The live session of a replay; its control messages go to the recording."""

    def __init__(self, session: Session, recorded: RecordingEnd) -> None:
        super().__init__(session)
        self._recorded = recorded

    async def relay_messages(self, far: End) -> None:
        if isinstance(self.session, OmnistreamsSession):
            try:
                async for message in self.session.controls:
                    self._recorded.on_control(message)
            except SessionClosed:
                return


def live_end(session: Session, script: Script, recorded: RecordingEnd) -> End:
    """The end of the live session."""
    if isinstance(session, MinmuxSession):
        written = [
            stream.stream_id
            for stream in script.recording.streams
            if stream.opener == 1 - script.side
        ]
        return MinmuxEnd(session, written, keeps_ids=True)
    return LiveEnd(session, recorded)


def relay_seeded(session: Session, script: Script, recorded: RecordingEnd) -> list[RelayedStream]:
    """Relay the channels that neither side opens (Nerdbank v3)."""
    numbers = [
        number
        for number, stream in enumerate(script.recording.streams)
        if stream.opener == NEITHER_SIDE
    ]
    if not numbers:
        return []
    if not isinstance(session, NerdbankSession):
        raise CannotReplay("the recording has seeded channels; name them with --protocol")
    end = SessionEnd(session)
    relayed = []
    for number in numbers:
        try:
            stream = session.seeded(script.recording.streams[number].stream_id)
        except (PolymuxError, ValueError, IndexError) as problem:
            raise CannotReplay(f"seeded channel {number}: {problem}") from None
        channel = recorded.channel(number)
        made = RelayedStream(channel, end.channel(stream), b"", ignore_done, ignore_loss)
        made.start()
        relayed.append(made)
    return relayed


def ignore_done(relayed: RelayedStream) -> None:
    """The replay itself knows when its streams are done."""
