"""Two honest mplex peers that reuse ids as npm `multiplex` does, observed in the middle.

Written from npm's source, with an encoder of its own. A new stream gets the lowest id that is free
at its opener: free once the opener has reset the stream, has read a reset, or has closed and read a
close. Both assign every frame that they read to the newest stream on the id. If a receiver reads a
NewStream for an id that it has open, it replaces the stream; with `zombies` the replaced stream
continues to write, as in npm, where the application still holds it. With `lags` a close takes
effect only some time after it was read, as in npm while the application has not read everything.
"""

from __future__ import annotations

from random import Random

MESSAGE, CLOSE, RESET, NEW = "message", "close", "reset", "new"


def varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


class Frame:
    """One frame, with the opener, id and use that its sender assigned it to."""

    def __init__(self, sender: int, kind: str, channel: Channel, payload: bytes) -> None:
        self.sender, self.kind, self.payload = sender, kind, payload
        self.opener, self.number, self.use = channel.opener, channel.number, channel.use
        own = sender == channel.opener
        flag = {NEW: 0, MESSAGE: 2 if own else 1, CLOSE: 4 if own else 3, RESET: 6 if own else 5}
        self.header = varint(channel.number * 8 + flag[kind]) + varint(len(payload))
        self.data = self.header + payload

    @property
    def key(self) -> tuple[int, int]:
        return self.opener, self.number

    def __repr__(self) -> str:
        return f"{'da'[self.sender]}:{self.kind}({'da'[self.opener]}{self.number}.{self.use})"


class Channel:
    """A stream as one peer's application holds it."""

    def __init__(self, opener: int, number: int, use: int) -> None:
        self.opener, self.number, self.use = opener, number, use
        self.finished = self.ended = self.dead = False
        self.reset = False  # by this side


class NpmPeer:
    """One peer: reads frames, and performs random legal actions."""

    def __init__(self, side: int, rng: Random, zombies: bool, half_open: bool, lags: bool) -> None:
        self.side, self.rng, self.lags = side, rng, lags
        self.lagging: list[Channel] = []
        self.zombies, self.half_open = zombies, half_open
        self.current: dict[tuple[int, int], Channel] = {}  # by opener and number, if not free
        self.held: list[Channel] = []  # streams that the application can still write to
        self.uses: dict[int, int] = {}
        self.newest: dict[tuple[int, int], Channel] = {}
        self.out: list[Frame] = []

    def send(self, kind: str, channel: Channel, payload: bytes = b"") -> None:
        self.out.append(Frame(self.side, kind, channel, payload))

    def act(self) -> None:
        if self.lagging and self.rng.random() < 0.1:
            self.notice_end(self.lagging.pop(0))
        pick = self.rng.random()
        if not self.held or pick < 0.15:
            if len(self.held) < 6:
                self.open()
            return
        channel = self.rng.choice(self.held)
        if pick < 0.6:
            if not channel.finished:
                self.send(MESSAGE, channel, bytes(self.rng.choice([0, 1, 3, 200])))
        elif pick < 0.85:
            self.finish(channel)
        else:
            self.send(RESET, channel, self.rng.choice([b"", b"why"]))
            channel.reset = True
            self.free(channel)

    def violate(self) -> tuple[Frame, str] | None:
        """Send a frame after this side's own close or reset; return it and the broken rule."""
        stopped = [each for each in self.newest.values() if each.finished or each.reset]
        if not stopped:
            return None
        channel = self.rng.choice(stopped)
        kind = self.rng.choice([MESSAGE, CLOSE])
        self.send(kind, channel, b"lie" if kind == MESSAGE else b"")
        if channel.reset:
            return self.out[-1], "mplex.write-after-reset"
        after = "mplex.write-after-close" if kind == MESSAGE else "mplex.close-twice"
        return self.out[-1], after

    def open(self) -> None:
        number = 0
        while (self.side, number) in self.current:
            number += 1
        self.uses[number] = self.uses.get(number, 0) + 1
        channel = Channel(self.side, number, self.uses[number])
        self.current[self.side, number] = self.newest[self.side, number] = channel
        self.held.append(channel)
        self.send(NEW, channel, b"%d" % channel.use)

    def finish(self, channel: Channel) -> None:
        if not channel.finished and not channel.dead:
            channel.finished = True
            self.send(CLOSE, channel)
            if channel.ended:
                self.free(channel)

    def free(self, channel: Channel) -> None:
        channel.dead = True
        self.held.remove(channel)
        key = channel.opener, channel.number
        if (
            self.current.get(key) is channel or self.zombies
        ):  # npm frees the id, whichever stream has it
            self.current.pop(key, None)

    def read(self, frame: Frame) -> None:
        key = frame.key
        if frame.kind == NEW:
            replaced = self.current.get(key)
            if replaced is not None and not self.zombies:
                replaced.dead = True
                self.held.remove(replaced)
            self.current[key] = Channel(frame.opener, frame.number, frame.use)
            self.newest[key] = self.current[key]
            self.held.append(self.current[key])
            return
        channel = self.current.get(key)
        if channel is None or channel.dead:
            return
        if frame.kind == RESET:
            self.free(channel)
        elif frame.kind == CLOSE and not channel.ended:
            if self.lags and channel.opener != self.side:
                self.lagging.append(channel)
            else:
                self.notice_end(channel)

    def notice_end(self, channel: Channel) -> None:
        if channel.dead or channel.ended:
            return
        channel.ended = True
        if channel.finished:
            self.free(channel)
        elif not self.half_open:
            self.finish(channel)


class Passing:
    """A frame as observed in the middle."""

    def __init__(self, frame: Frame, ordinal: int) -> None:
        self.frame, self.ordinal = frame, ordinal
        self.newest = 0  # uses of its id that had been opened when its first byte passed


class Conversation:
    """A recorded conversation: pieces of bytes in order, and the frames with their true use."""

    def __init__(
        self,
        seed: int,
        *,
        zombies: bool = False,
        lags: bool = False,
        steps: int = 90,
        faulty: bool = False,
    ) -> None:
        self.rng = Random(seed)
        self.violate: tuple[Frame, str] | None = None
        half_open = self.rng.random() < 0.7
        self.peers = [NpmPeer(side, self.rng, zombies, half_open, lags) for side in (0, 1)]
        self.near: list[list[Frame]] = [[], []]  # written, not yet seen in the middle
        self.far: list[list[Frame]] = [[], []]  # seen in the middle, not yet read
        self.begun: list[Passing | None] = [None, None]
        self.cut = [0, 0]
        self.pieces: list[tuple[int, bytes]] = []
        self.beside: list[list[tuple[int, bytes]]] = [[], []]  # as each peer wrote and read it
        self.log: list[Passing] = []  # in the order in which an observer can validate them
        self.sent = [0, 0]
        self.opened: dict[tuple[int, int], int] = {}
        eagerness = self.rng.choice([0.2, 0.5, 0.8])  # of links, so of frames that cross
        for turn in range(steps):
            self.step(eagerness)
            if faulty and self.violate is None and turn > 20:
                self.violate = self.rng.choice(self.peers).violate()
        while any(self.near) or any(self.far) or any(peer.out for peer in self.peers):
            self.step(1.0)

    def step(self, eagerness: float) -> None:
        side = self.rng.randrange(2)
        if self.rng.random() > eagerness:
            self.peers[side].act()
        move = self.rng.randrange(3)
        peer = self.peers[side]
        if move == 0 and peer.out:
            self.near[side] += peer.out
            self.beside[side] += [(side, frame.data) for frame in peer.out]
            peer.out = []
        elif move == 1 and self.near[side]:
            self.carry(side)
        elif move == 2 and self.far[side] and not self.peers[1 - side].out:
            frame = self.far[side].pop(0)
            self.beside[1 - side].append((side, frame.data))
            self.peers[1 - side].read(frame)

    def carry(self, side: int) -> None:
        """Deliver a frame, or a part of it, to the middle."""
        frame = self.near[side][0]
        passing = self.begun[side]
        if passing is None:
            passing = Passing(frame, self.sent[side])
            passing.newest = self.opened.get(frame.key, 0)
            self.begun[side] = passing
        rest = frame.data[self.cut[side] :]
        if len(rest) > 1 and self.rng.random() < 0.15:
            size = self.rng.randrange(1, len(rest))
            self.pieces.append((side, rest[:size]))
            before = self.cut[side]
            self.cut[side] += size
            if frame.kind == MESSAGE and before < len(frame.header) <= self.cut[side]:
                self.log.append(passing)
            return
        self.pieces.append((side, rest))
        if frame.kind != MESSAGE or self.cut[side] < len(frame.header):
            self.log.append(passing)
        if frame.kind == NEW:
            self.opened[frame.key] = frame.use
        self.sent[side] += 1
        self.cut[side] = 0
        self.begun[side] = None
        self.near[side].pop(0)
        self.far[side].append(frame)
