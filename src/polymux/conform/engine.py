"""The engine: runs the script of one case over a connection and finds the outcome.

It waits for evidence, never for a fixed time. What a peer does about a bad frame is known when it
closes the connection or aborts the stream, or when it answers something that was sent after the
frame (`Notation.liveness`): then it has gone on. Only without any of them the time limit decides;
it begins anew while the peer still sends or reads.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Callable

from polymux.conform.connection import PeerConnection, SeenFrame
from polymux.conform.notation.payload import BadScript, FrameWords, parse_frame
from polymux.core.conformance import Case, Outcome

SPLIT_SECONDS = 0.001  # between two bytes of `split`, so that each is a segment of its own
MAX_PERIODS = 20  # of the time limit, for a peer that is slow but goes on
LIVENESS_ROUNDS = 2  # after the first answer, reactions to earlier frames may still be on their way


class Ended(Exception):
    """The case has its outcome."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


class CaseRun:
    """Runs one case.

    Args:
        case: the case.
        link: a new connection.
        level: what the peer cooperates in: decides how its being alive is established; -1 if it
            answers nothing, so that it cannot be.
        timeout: seconds to wait for each piece of evidence, or for progress towards it.
        watched: names of further rules that the peer must not break.
    """

    def __init__(
        self,
        case: Case,
        link: PeerConnection,
        level: int,
        timeout: float,
        watched: tuple[str, ...] = (),
    ) -> None:
        self.case = case
        self.link = link
        self.level = level
        self.timeout = timeout
        self.watched = watched
        self.forbidden: list[tuple[str, Callable[[], bool]]] = []
        self.peer_stream = ""  # `p` in a script: the last stream of the peer that was waited for
        self.earlier_peer_stream = ""  # `pp`: the one before
        self._unsent = b""
        self._splitting = False
        self._liveness_count = 0

    async def run(self) -> tuple[Outcome, str]:
        """The outcome, and what was seen, for the user."""
        try:
            await self._run_script()
            await self._check_end()
        except Ended as ended:
            return ended.outcome, ended.detail
        return Outcome.MET, "every step was fulfilled"

    async def _run_script(self) -> None:
        lines = [line.strip() for line in self.case.script.splitlines() if line.strip()]
        if lines and lines[0] == "bare":
            lines = lines[1:]
        else:
            await self._shake_hands()
        for line in lines:
            if not line.startswith((">", "!")):
                await self._flush()
            await self._step(line)
        await self._flush()

    async def _shake_hands(self) -> None:
        """Exchange handshakes, if the protocol has them. A missing one shows in what follows."""
        hello = self.link.notation.hello()
        if hello:
            self.link.send(hello)
            await self._wait(self._seen("Handshake|Initiator"))

    async def _step(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == ">":
            self._unsent += self._encoded(rest)
        elif word == "<":
            await self._expect(rest)
        elif word == "!":
            self.forbidden.append((rest, self._seen(rest, taking=False)))
        elif word == "?":
            if not self._seen(rest)():
                raise Ended(Outcome.MISSING, f"the peer did not send: {rest}")
        elif word == "mirror":
            await self._mirror()
        elif word == "alive":
            await self._require_alive()
        elif word == "react":
            await self._react()
        elif word == "eof":
            self.link.end()
        elif word == "split":
            self._splitting = True
        else:
            raise BadScript(f"{self.case.id}: {line!r}")

    # Sending

    def _encoded(self, text: str) -> bytes:
        if text.startswith("hex "):
            return bytes.fromhex(text[4:])
        if text == "hello":
            return self.link.notation.hello()
        words = parse_frame(text)
        if words.stream in ("p", "pp"):
            stream = self.peer_stream if words.stream == "p" else self.earlier_peer_stream
            words = FrameWords(words.kind, stream, words.payload, words.values)
        return self.link.notation.encode(words) * words.value("times", 1)

    async def _flush(self) -> None:
        """Write the frames of consecutive lines at once, so that the peer reads them together."""
        data, self._unsent = self._unsent, b""
        if not self._splitting:
            self.link.send(data)
            return
        for i in range(len(data)):
            self.link.send(data[i : i + 1])
            await asyncio.sleep(SPLIT_SECONDS)

    async def _mirror(self) -> None:
        """Send the peer's own handshake back to it."""
        size = len(self.link.notation.hello())
        if not await self._wait(lambda: len(self.link.first_bytes) >= size):
            self._check_closed()
            raise Ended(Outcome.MISSING, "the peer sent no handshake")
        self.link.send(bytes(self.link.first_bytes[:size]))

    # Waiting

    def _seen(self, text: str, taking: bool = True) -> Callable[[], bool]:
        """A test for what a line waits for, or forbids."""
        link = self.link
        if text == "closed":
            return lambda: bool(link.closed)
        words = parse_frame(text)
        if words.stream == "p" and self.peer_stream and words.kind == "content":
            words = FrameWords(words.kind, self.peer_stream, words.payload, words.values)
        if words.kind == "content":
            wanted = words.payload or b""
            return lambda: any(wanted in data for data in self._contents(words.stream))
        if words.kind == "credit":
            stream = link.notation.wire_id(words.stream)
            return lambda: link.credit.get(stream, 0) >= words.value("amount")
        if words.kind == "bytes":  # as much content, whatever it is
            return lambda: sum(map(len, self._contents(words.stream))) >= words.value("amount")
        if words.kind == "frames":  # as many content frames
            return lambda: self._count(words) >= words.value("amount")

        def test() -> bool:
            if not taking:
                return any(self._matches(words, frame) for frame in link.frames)
            frame = link.take(lambda frame: self._matches(words, frame))
            if frame is None:
                return False
            if frame.opener == 1 - link.side:
                self.earlier_peer_stream = self.peer_stream
                self.peer_stream = f"p{frame.stream_id}"
            return True

        return test

    def _count(self, words: FrameWords) -> int:
        notation = self.link.notation
        return sum(
            frame.effect == 3 and notation.matches_stream(words.stream, frame.opener,
                                                          frame.stream_id)
            for frame in self.link.frames
        )  # fmt: skip

    def _contents(self, stream: str) -> list[bytearray]:
        notation = self.link.notation
        return [
            data for (opener, stream_id), data in self.link.content.items()
            if notation.matches_stream(stream, opener, stream_id)
        ]  # fmt: skip

    def _matches(self, words: FrameWords, frame: SeenFrame) -> bool:
        return (
            any(fnmatch.fnmatchcase(frame.kind, kind) for kind in words.kind.split("|"))
            and self.link.notation.matches_stream(words.stream, frame.opener, frame.stream_id)
            and (words.payload is None or frame.payload.endswith(words.payload))
            and words.value("amount", frame.amount) == frame.amount
        )

    async def _wait(self, test: Callable[[], bool], patient: bool = True) -> bool:
        """Wait until the test holds. False if the time limit passed, or the connection ended.

        A peer that is slow but sends, or reads, has more time, unless not `patient`. One that sends
        content even at the end of that is neither wedged nor done: the case shows nothing.
        """
        content = 0
        for _ in range(MAX_PERIODS if patient else 1):
            before, content = self.link.progress(), self.link.content_bytes
            if await self._wait_once(test):
                return True
            if self.link.closed or self.link.closed_by_us or self.link.progress() <= before:
                return False
        if patient and self.link.content_bytes > content:
            seconds = MAX_PERIODS * self.timeout
            raise Ended(Outcome.SILENT, f"the peer is slow: it still sent after {seconds:g} s")
        return False

    async def _wait_once(self, test: Callable[[], bool]) -> bool:
        link = self.link
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    link.changed.clear()
                    if test():
                        return True
                    self._check_peer()
                    if link.closed or link.closed_by_us:
                        return False
                    await link.changed.wait()
        except TimeoutError:
            return test()

    def _check_peer(self) -> None:
        """Give up on a peer whose bytes make no sense, or have no end."""
        if self.link.flooded:
            raise Ended(Outcome.FORBIDDEN, f"the peer sent {self.link.flooded}, unasked")
        problem = self.link.undecodable()
        # What the tester breaks can make the peer's bytes undecodable too, in some protocols.
        if problem and (not self.case.breaks or self.link.notation.directions_are_independent):
            raise Ended(Outcome.FORBIDDEN, f"the peer's bytes cannot be decoded: {problem}")

    async def _expect(self, text: str) -> None:
        if await self._wait(self._seen(text)):
            return
        if self.link.closed or self.link.closed_by_us:
            raise Ended(Outcome.CLOSED, f"{self._closing()}, instead of: {text}")
        if await self._is_alive():
            raise Ended(Outcome.MISSING, f"the peer did not send: {text}")
        self._check_closed()
        if self._has_liveness():
            raise Ended(Outcome.WEDGED, f"the peer sent neither {text} nor anything else")
        raise Ended(Outcome.MISSING, f"the peer did not send: {text}")

    # Is the peer alive?

    def _liveness_script(self) -> str | None:
        """A script that a live peer completes; None if there is none, or this side has ended."""
        if self.level < 0 or self.link.ended_by_us:
            return None
        return self.link.notation.liveness(self._liveness_count, self.level)

    def _has_liveness(self) -> bool:
        return self._liveness_script() is not None

    async def _is_alive(self) -> bool:
        """Send something unrelated. True when the peer has answered it."""
        self._liveness_count += 1
        script = self._liveness_script()
        if script is None:
            return False
        for line in script.strip().splitlines():
            word, _, rest = line.strip().partition(" ")
            if word == ">":
                self.link.send(self._encoded(rest))
            elif not await self._wait(self._seen(rest)):
                return False
        return True

    def _check_closed(self) -> None:
        if self.link.closed or self.link.closed_by_us:
            self._check_peer()
            raise Ended(Outcome.CLOSED, self._closing())

    def _closing(self) -> str:
        errors = self.link.closed == "reset"
        return "the peer reset the connection" if errors else "the peer closed the connection"

    async def _require_alive(self) -> None:
        if not self._has_liveness():
            raise Ended(Outcome.SILENT, "the peer answers nothing that would show it is alive")
        if not await self._is_alive():
            self._check_closed()
            raise Ended(Outcome.WEDGED, "the peer no longer answers")

    async def _react(self) -> None:
        """Find out what the peer does about what was sent; this ends the case."""
        if self._has_liveness():
            for _ in range(LIVENESS_ROUNDS):
                if await self._is_alive():
                    continue
                self._check_forbidden()
                self._check_closed()
                raise Ended(Outcome.WEDGED, "no error, and no answer to a valid stream after it")
        else:
            await self._wait(self._has_reacted, patient=False)
        self._check_forbidden()
        self._check_closed()
        if self.link.aborted_streams():
            frame = self.link.aborted_streams()[0]
            raise Ended(Outcome.REFUSED, f"the peer sent {frame.kind}, and the connection lives")
        if not self._has_liveness():
            raise Ended(Outcome.SILENT, f"no reaction in {self.timeout:g} s")
        raise Ended(Outcome.IGNORED, "the peer went on as if nothing had happened")

    def _has_reacted(self) -> bool:
        forbidden = any(test() for _, test in self.forbidden)
        return bool(self.link.closed or self.link.aborted_streams() or forbidden)

    # At the end

    def _check_forbidden(self) -> None:
        for text, test in self.forbidden:
            if test():
                raise Ended(Outcome.FORBIDDEN, f"the peer sent what must not come: {text}")

    async def _check_end(self) -> None:
        self._check_forbidden()
        self._check_peer()
        found = [] if self.case.breaks else self.link.peer_errors()
        found += [
            other for other in self.link.violations(1 - self.link.side)
            if other.rule.name in self.watched and other not in found
        ]  # fmt: skip
        if found:
            raise Ended(Outcome.FORBIDDEN, f"the peer broke {found[0]}")
