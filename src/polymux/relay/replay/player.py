"""The recording as an end of a relay: it does the actions of a script when their time has come.

`Player` releases the actions of a script in order. An action waits for what the other side had done
before it in the recording, for as much content of each stream, and for its time if the pace has
times. `RecordingEnd` is the end that the relay joins with a live session: its streams are those of
the recording, and what the live peer sends is compared with what the recorded peer sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from polymux.core.errors import PolymuxError, SessionClosed, StreamAborted
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.relay.channels import ALL, SLOW_READER, Channel
from polymux.relay.ends import Arrival, End, SessionEnd
from polymux.relay.replay.script import WHOLE_SESSION, Action, Deed, Script

NO_TIMES: Final = 0.0  # as the speed of a pace: actions have no times
EXTRA: Final = -2  # the number of a stream that the recording does not have


@dataclass(frozen=True)
class Pace:
    """When actions are done.

    Attributes:
        speed: How much faster than recorded; NO_TIMES: as soon as possible.
        causal: Whether an action waits for the answers that it followed.
    """

    speed: float
    causal: bool = True


@dataclass
class StreamRun:
    """What happened on one stream of the recording, or an extra one, in a replay.

    Attributes:
        sent: Bytes of this side's content that the live session took.
        received: Bytes of content that came.
        differs_at: Offset at which the content that came first differs; -1: it does not.
        endings: How this side's half and the peer's ended.
    """

    sent: int = 0
    received: int = 0
    differs_at: int = -1
    endings: list[str] = field(default_factory=lambda: ["", ""])


@dataclass
class RunLog:
    """What happened in one replay.

    Attributes:
        streams: By number; those that the recording does not have are in `extra`.
        extra: Streams that the live peer opened and the recorded one did not.
        controls: Control messages that came, and how many of them are equal to the recorded ones.
        lateness: Seconds by which sends came after their time, if the pace has times.
        early_sends: Sends that came before an answer which they followed in the recording.
        answer_seconds: From each send to the next content that came on its stream.
        seconds: Of the whole run.
        unanswered: What was waited for in vain; empty if nothing was.
    """

    streams: dict[int, StreamRun] = field(default_factory=dict)
    extra: int = 0
    controls: list[bytes] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)
    early_sends: int = 0
    sends: int = 0
    answer_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    unanswered: str = ""


class Player:
    """Releases the actions of a script.

    Args:
        script: The script.
        pace: When.
        log: Where to write what happens.
    """

    def __init__(self, script: Script, pace: Pace, log: RunLog) -> None:
        self.script = script
        self.log = log
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.progress: dict[tuple[int, Deed], int] = {}  # of the live peer
        self.last_progress_at = 0.0
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._next = 0
        self._perform: Callable[[Action, float], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began_at = 0.0
        self._first_at = script.actions[0].event.at if script.actions else 0.0
        self._advancing = False
        self._unmet = len(script.expected)  # kinds of deeds of the peer of which some are missing
        self._is_delivered: Callable[[], bool] = lambda: True

    def start(
        self, perform: Callable[[Action, float], None], is_delivered: Callable[[], bool]
    ) -> None:
        """Begin; `perform` is called with each action, and the loop time it was planned for.

        `is_delivered` says whether the live session has taken everything.
        """
        self._perform = perform
        self._is_delivered = is_delivered
        self._began_at = self.last_progress_at = self._loop.time()
        self.advance()

    def stop(self) -> None:
        """Release nothing more."""
        self._perform = None
        if self._timer is not None:
            self._timer.cancel()

    def note(self, stream: int, deed: Deed, amount: int = 1) -> None:
        """The live peer has done something; what the recorded one did not do is no progress."""
        key = (stream, deed)
        before = self.progress.get(key, 0)
        self.progress[key] = before + amount
        expected = self.script.expected.get(key, 0)
        if before < expected:
            self.last_progress_at = self._loop.time()
            if expected <= before + amount:
                self._unmet -= 1
        self.advance()

    def missing_needs(self, needs: tuple[tuple[int, Deed, int], ...]) -> list[str]:
        """Which of these the live peer has not done, as text."""
        return [
            self._describe(stream, deed, amount)
            for stream, deed, amount in needs
            if self.progress.get((stream, deed), 0) < amount
        ]

    def is_answered(self, action: Action) -> bool:
        """Whether the live peer has done what came before this action in the recording."""
        progress = self.progress
        for stream, deed, amount in action.needs:
            if progress.get((stream, deed), 0) < amount:
                return False
        return True

    def waits_for(self) -> str:
        """What the next action, or the end, waits for; empty if nothing."""
        actions = self.script.actions
        if self._next < len(actions):
            missing = self.missing_needs(actions[self._next].needs)
        else:
            missing = self.missing_needs(
                tuple((*key, amount) for key, amount in self.script.expected.items())
            )
        return ", ".join(missing[:3])

    @property
    def is_on_time(self) -> bool:
        """Whether the next action only waits for its time."""
        actions = self.script.actions
        return self._next < len(actions) and not self.waits_for()

    def advance(self) -> None:
        """Release the actions that are due. Harmless inside a call of itself."""
        if self._advancing or self._perform is None:
            return
        self._advancing = True
        try:
            self._release_due()
        finally:
            self._advancing = False
        released = self._next == len(self.script.actions) and not self._unmet
        if released and not self.done.done() and self._is_delivered():
            self.done.set_result(None)

    def _release_due(self) -> None:
        actions = self.script.actions
        while self._next < len(actions) and self._perform is not None:
            action = actions[self._next]
            if self._pace.causal and not self.is_answered(action):
                return
            planned = 0.0
            if self._pace.speed != NO_TIMES:
                planned = self._began_at + (action.event.at - self._first_at) / self._pace.speed
                if planned > self._loop.time():
                    self._wait_until(planned)
                    return
            self._next += 1
            self._perform(action, planned)

    def _wait_until(self, planned: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(planned, self.advance)

    def _describe(self, stream: int, deed: Deed, amount: int) -> str:
        if stream == WHOLE_SESSION:
            return f"control message {amount}"
        label = self.script.recording.streams[stream].label
        words = {
            Deed.OPEN: f"the opening of {label}",
            Deed.ACCEPT: f"the acceptance of {label}",
            Deed.SEND: f"{amount} bytes on {label}",
            Deed.END: f"the end of {label}",
            Deed.ABORT: f"the abort of {label}",
        }
        return words[deed]


class RecordedChannel(Channel):
    """A stream of the recording: its own content is read here, and the live peer's is written."""

    def __init__(self, end: RecordingEnd, number: int) -> None:
        self._end = end
        self._number = number
        self._run = end.run_of(number)
        self._ready: deque[tuple[float, Action]] = deque()  # with the planned time
        self._ending = ""
        self._abort_reason = ""
        self._on_change: Callable[[], None] | None = None
        self._sent_at = 0.0

    @property
    def label(self) -> str:
        streams = self._end.script.recording.streams
        return streams[self._number].label if self._number >= 0 else "a further stream"

    def watch(self, on_change: Callable[[], None], on_room: Callable[[], None]) -> None:
        self._on_change = on_change

    def perform(self, action: Action, planned: float) -> None:
        """Do an action of the script: content can be read, or the stream ends."""
        if action.event.deed is Deed.SEND:
            self._ready.append((planned, action))
        else:
            self._ending = "ended" if action.event.deed is Deed.END else "aborted"
            self._abort_reason = action.event.data.decode("utf-8", "replace")
        if self._on_change is not None:
            self._on_change()

    # Reading: what this side sends

    def has_unread(self) -> bool:
        return bool(self._ready)

    def take(self, size: int = ALL) -> bytes:
        """Return what the recorded side sent in one frame, whatever its size."""
        planned, action = self._ready.popleft()
        data = action.event.data
        self._run.sent += len(data)
        self._sent_at = self._end.on_sent(action, planned)
        return data

    @property
    def is_delivered(self) -> bool:
        """Whether the live session has taken all that was released."""
        return not self._ready and self._run.endings[0] == self._ending

    def at_end(self) -> bool:
        if self._ending and not self._run.endings[0]:
            self._run.endings[0] = self._ending
            self._end.player.advance()
        if self._ending == "aborted":
            raise StreamAborted(f"{self.label} was aborted in the recording")
        return self._ending == "ended"

    def stop_reading(self) -> bool:
        return False

    # Writing: what the live peer sends

    def is_full(self) -> bool:
        return False

    def wait_for_room(self) -> None:
        """Never called: the channel is never full."""

    def why_full(self) -> str:
        return SLOW_READER

    def write_failure(self) -> PolymuxError | None:
        return None

    def put(self, data: bytes) -> None:
        if self._sent_at:
            self._end.log.answer_seconds.append(self._end.loop.time() - self._sent_at)
            self._sent_at = 0.0
        self._end.compare(self._number, self._run, data)
        self._run.received += len(data)
        self._end.player.note(self._number, Deed.SEND, len(data))

    def end(self) -> None:
        self._run.endings[1] = "ended"
        self._end.player.note(self._number, Deed.END)

    # Ending

    def abort(self, reason: str) -> bool:
        self._on_change = None
        if not self._end.is_closing and self._ending != "aborted" and not self._run.endings[1]:
            self._run.endings[1] = "aborted"
            self._end.player.note(self._number, Deed.ABORT)
        return True

    @property
    def abort_reason(self) -> str:
        return self._abort_reason

    def release(self) -> None:
        self._on_change = None


class RecordedArrival(Arrival):
    """A stream that the recorded side opens."""

    def __init__(self, end: RecordingEnd, number: int, channel: Channel, name: bytes) -> None:
        super().__init__(channel, name)
        self._end = end
        self._number = number

    def accept(self) -> None:
        self._end.player.note(self._number, Deed.ACCEPT)


class RecordingEnd(End):
    """The end of a relay that speaks one side of a recording.

    Args:
        script: What it says.
        player: Decides when.
        log: Where to write what happens.
        keeps_ids: Streams have their ids as names (Minmux).
    """

    def __init__(self, script: Script, player: Player, log: RunLog, keeps_ids: bool) -> None:
        self.script = script
        self.player = player
        self.log = log
        self.is_closing = False
        self.loop = asyncio.get_running_loop()
        self._keeps_ids = keeps_ids
        self._channels: dict[int, RecordedChannel] = {}
        self._waiting = [
            number
            for number, stream in enumerate(script.recording.streams)
            if stream.opener == 1 - script.side
        ]
        self._arrivals: asyncio.Queue[Arrival | None] = asyncio.Queue()
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._expected_controls = [
            event.data
            for event in script.recording.events
            if event.deed is Deed.CONTROL and event.sender != script.side
        ]

    def start(self) -> None:
        """Begin to do the actions of the script."""
        self.player.start(
            self._perform, lambda: all(each.is_delivered for each in self._channels.values())
        )

    def channel(self, number: int) -> RecordedChannel:
        """The channel of a stream of the recording, made when it is first asked for."""
        if number not in self._channels:
            self._channels[number] = RecordedChannel(self, number)
        return self._channels[number]

    def run_of(self, number: int) -> StreamRun:
        return self.log.streams.setdefault(number, StreamRun())

    def _perform(self, action: Action, planned: float) -> None:
        event = action.event
        if event.deed is Deed.CONTROL:
            self._messages.put_nowait(event.data)
        elif event.deed is Deed.OPEN:
            stream = self.script.recording.streams[event.stream]
            name = str(stream.stream_id).encode() if self._keeps_ids else stream.name
            channel = self.channel(event.stream)
            self._arrivals.put_nowait(RecordedArrival(self, event.stream, channel, name))
        else:
            self.channel(event.stream).perform(action, planned)

    def on_sent(self, action: Action, planned: float) -> float:
        """The live session has taken content of this action; return the loop time."""
        now = self.loop.time()
        self.log.sends += 1
        if planned:
            self.log.lateness.append(now - planned)
        self.player.last_progress_at = now
        if not self.player.is_answered(action):
            self.log.early_sends += 1
        self.loop.call_soon(self.player.advance)
        return now

    def compare(self, number: int, run: StreamRun, data: bytes) -> None:
        """Compare content that came with what the recorded peer sent at this place."""
        if number < 0 or run.differs_at >= 0:
            return
        expected = self.script.recording.streams[number].content[1 - self.script.side]
        at = run.received
        if expected[at : at + len(data)] != data:
            same = 0
            for one, other in zip(expected[at:], data, strict=False):
                if one != other:
                    break
                same += 1
            run.differs_at = at + same

    def on_control(self, message: bytes) -> None:
        """A control message came."""
        self.log.controls.append(message)
        self.player.note(WHOLE_SESSION, Deed.CONTROL)

    # End

    async def next_arrival(self) -> Arrival:
        arrival = await self._arrivals.get()
        if arrival is None:
            raise SessionClosed("the recording is over")
        return arrival

    async def open(self, name: bytes) -> Channel:
        """The live peer has opened a stream: the next of this name that the recorded one opened."""
        streams = self.script.recording.streams
        for number in self._waiting:
            stream = streams[number]
            if name == (str(stream.stream_id).encode() if self._keeps_ids else stream.name):
                self._waiting.remove(number)
                self.player.note(number, Deed.OPEN)
                return self.channel(number)
        self.log.extra += 1
        return RecordedChannel(self, EXTRA)

    async def relay_messages(self, far: End) -> None:
        while True:
            message = await self._messages.get()
            session = far.session if isinstance(far, SessionEnd) else None
            if isinstance(session, OmnistreamsSession):
                await session.control(message)

    async def close(self) -> None:
        self.abort("")

    def abort(self, reason: str) -> None:
        if not self.is_closing:
            self.is_closing = True
            self.player.stop()
            self._arrivals.put_nowait(None)
