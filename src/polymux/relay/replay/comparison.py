"""The comparison of a recording with a replay of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from polymux.relay.replay.player import RunLog, StreamRun
from polymux.relay.replay.script import Deed, RecordedStream, Recording, Script


@dataclass
class Comparison:
    """What one replay has in common with its recording.

    Attributes:
        same_content: Every stream carried the same bytes in both directions, control messages too,
            and no stream was missing or new.
        same_endings: Every half of a stream ended in the same way.
        same_order: Nothing was sent before an answer that it followed in the recording.
        differences: What is different, one sentence each.
        streams: Streams of the recording.
        sends: Pieces of content that were sent.
        bytes_sent: Content that was sent.
        bytes_received: Content that came.
        recorded_seconds: Duration of the recording.
        seconds: Duration of the replay.
        recorded_answers: Seconds from a send to the next content on its stream, in the recording.
        answers: The same in the replay.
        lateness: Seconds by which each send came after its time, if the pace has times.
    """

    same_content: bool = True
    same_endings: bool = True
    same_order: bool = True
    differences: list[str] = field(default_factory=list)
    streams: int = 0
    sends: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    recorded_seconds: float = 0.0
    seconds: float = 0.0
    recorded_answers: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether content, endings and causal order are those of the recording."""
        return self.same_content and self.same_endings and self.same_order

    def answer_quantile(self, share: float, recorded: bool = False) -> float:
        """The seconds within which this share of the answers came; 0 if there were none."""
        return quantile(self.recorded_answers if recorded else self.answers, share)

    def lateness_quantile(self, share: float) -> float:
        """The seconds by which this share of the sends was late at most."""
        return quantile(self.lateness, share)


def compare(script: Script, log: RunLog) -> Comparison:
    """Compare a replay with its recording."""
    recording = script.recording
    found = Comparison(
        streams=len(recording.streams),
        sends=log.sends,
        recorded_seconds=recording.seconds,
        seconds=log.seconds,
        recorded_answers=recorded_answers(recording, script.side),
        answers=log.answer_seconds,
        lateness=log.lateness,
    )
    for number, stream in enumerate(recording.streams):
        run = log.streams.get(number, StreamRun())
        found.bytes_sent += run.sent
        found.bytes_received += run.received
        compare_content(found, stream, run, script.side)
        compare_endings(found, stream, run, script.side)
    if log.extra:
        found.same_content = False
        found.differences.append(f"{log.extra} streams were opened that the recording has not")
    expected = [
        event.data
        for event in recording.events
        if event.deed is Deed.CONTROL and event.sender != script.side
    ]
    if log.controls != expected:
        found.same_content = False
        found.differences.append(
            f"control messages differ: {len(log.controls)} came, {len(expected)} were recorded"
        )
    if log.early_sends:
        found.same_order = False
        found.differences.append(
            f"{log.early_sends} sends came before an answer that they followed in the recording"
        )
    if log.unanswered:
        found.same_content = False
        found.differences.append(f"waited in vain for {log.unanswered}")
    return found


def compare_content(found: Comparison, stream: RecordedStream, run: StreamRun, side: int) -> None:
    """Compare the content of one stream."""
    own, theirs = len(stream.content[side]), len(stream.content[1 - side])
    problems = []
    if run.sent != own:
        problems.append(f"{stream.label}: {run.sent} of {own} bytes were sent")
    if run.differs_at >= 0:
        problems.append(f"{stream.label}: the content that came differs from byte {run.differs_at}")
    elif run.received != theirs:
        problems.append(f"{stream.label}: {run.received} bytes came, {theirs} were recorded")
    if problems:
        found.same_content = False
        found.differences += problems


def compare_endings(found: Comparison, stream: RecordedStream, run: StreamRun, side: int) -> None:
    """Compare how the two halves of a stream ended."""
    for which, who in enumerate((side, 1 - side)):
        if run.endings[which] != stream.endings[who]:
            names = [text or "open" for text in (run.endings[which], stream.endings[who])]
            half = "this side's half" if which == 0 else "the peer's half"
            found.same_endings = False
            found.differences.append(f"{stream.label}: {half} is {names[0]}, recorded: {names[1]}")


def recorded_answers(recording: Recording, side: int) -> list[float]:
    """Seconds from each send of `side` to the next content of the peer on its stream."""
    sent_at: dict[int, float] = {}
    answers: list[float] = []
    for event in recording.events:
        if event.deed is not Deed.SEND:
            continue
        if event.sender == side:
            sent_at[event.stream] = event.at
        elif event.stream in sent_at:
            answers.append(event.at - sent_at.pop(event.stream))
    return answers


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
