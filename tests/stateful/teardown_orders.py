"""Every order in which two sides can tear one stream down while their frames cross (R16).

A world is two endpoints and the bytes between them. A script is what one side will do, in order.
What may happen next is always one of: this side does its next act, that side does, or some of the
bytes on their way arrive, in either direction. `orders` walks through all choices to a depth; what
is left then happens in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, StreamEnded
from polymux.core.events import Accepted, Credit, Event, Opened
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.minmux.packets import stop_read, stop_write
from polymux.protocols.registry import create

Script = tuple[str, ...]


class World:
    """A stream that side 0 has opened, at the moment its end begins."""

    def __init__(
        self, protocol: str, scripts: tuple[Script, Script], accepted: bool = True
    ) -> None:
        self.protocol = protocol
        self.ends = [Endpoint(create(protocol, vantage=side), side) for side in (0, 1)]
        self.scripts = [list(script) for script in scripts]
        self.links: list[list[bytes]] = [[], []]
        self.streams: list[StreamState | None] = [None, None]
        for side, end in enumerate(self.ends):
            end.start(bytes([side + 1]) * 16)
        self.settle()
        self.begin(accepted)

    def begin(self, accepted: bool) -> None:
        near = self.ends[0]
        if self.protocol == "minmux":
            self.streams[0] = near.protocol.reserve_stream(0, 1)
            self.streams[1] = self.ends[1].protocol.reserve_stream(1, 1)
            return
        stream = self.streams[0] = near.open(
            b"" if self.protocol in ("streamux", "yamux") else b"x"
        )
        if self.protocol == "streamux":
            near.send(stream, b"ask")
            near.end(stream)
        if accepted:
            self.settle()
            far = self.streams[1]
            assert far is not None
            self.ends[1].accept(far)
            self.settle()

    # --- what can happen

    def possible(self) -> list[str]:
        found = [f"act {side}" for side in (0, 1) if self.scripts[side]]
        self.flush()
        return found + [f"deliver {side}" for side in (0, 1) if self.links[side]]

    def do(self, move: str) -> None:
        side = int(move[-1])
        self.flush()  # as before the choice was made
        if move.startswith("act"):
            self.act(side, self.scripts[side].pop(0))
        else:
            self.deliver(side)

    def act(self, side: int, what: str) -> None:
        end, stream = self.ends[side], self.streams[side]
        if stream is None:
            return  # it has not heard of the stream yet
        try:
            if what == "send":
                end.send(stream, b"data")
            elif what == "end":
                end.end(stream)
            elif what == "abort":
                end.abort(stream)
            elif what == "hush":
                end.stop_reading(stream)
            elif what == "accept":
                end.accept(stream)
            elif what == "stop":
                end.send_frame(stop_write(1) if side == 0 else stop_read(1))
        except (StreamEnded, LocalProtocolError):
            pass  # told no: nothing has changed

    def flush(self) -> None:
        for side, end in enumerate(self.ends):
            data = end.data_to_send()
            if data:
                self.links[side].append(data)

    def deliver(self, side: int) -> None:
        """Deliver the oldest bytes of `side`; a reported violation raises."""
        reader = 1 - side
        data = self.links[side].pop(0)
        left = self.ends[reader].data_to_send(0)  # formed before reading leaves before it
        if left:
            self.links[reader].append(left)
        self.heard(reader, self.ends[reader].receive(data, 0.0))

    def heard(self, side: int, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Opened) and self.streams[side] is None:
                self.streams[side] = event.stream
            elif isinstance(event, Accepted | Credit) and event.stream is not None:
                self.ends[side].resume(event.stream)

    def settle(self) -> None:
        """Deliver everything in flight."""
        for _ in range(100):
            self.flush()
            if not any(self.links):
                return
            for side in (0, 1):
                while self.links[side]:
                    self.deliver(side)
        raise AssertionError("the two never come to rest")

    def wind_up(self) -> None:
        """Finish pending work; a side that has not ended the stream aborts it."""
        for side in (0, 1):
            while self.scripts[side]:
                self.act(side, self.scripts[side].pop(0))
        self.settle()
        for side, end in enumerate(self.ends):
            stream = self.streams[side]
            if stream is not None and not stream.over:
                if self.protocol == "minmux":
                    self.act(side, "stop")
                elif self.protocol == "streamux" and side == 1 and stream.half(1).state == OPEN:
                    end.end(stream)
                else:
                    end.abort(stream)
        self.settle()

    def leftovers(self) -> list[str]:
        """The state that either side still holds at the end; should be empty."""
        found = []
        for side, end in enumerate(self.ends):
            streams = [s.label() for s in end.protocol.streams.all() if not s.over]
            duties = [d.kind for d in end.protocol.pending_replies.values() if d.side == side]
            kept = {
                "streams": streams,
                "duties": duties,
                "queued": end.scheduler.ready_bytes,
                "answers": len(end.scheduler.control_queue),
                "broken": end.counters.hits,
            }
            found += [f"side {side} {name}: {what}" for name, what in kept.items() if what]
        return found


def orders(
    protocol: str, scripts: tuple[Script, Script], depth: int, accepted: bool = True
) -> Iterator[tuple[tuple[str, ...], World]]:
    """Every order of the first `depth` moves, each with the resulting state."""
    paths: list[tuple[str, ...]] = [()]
    while paths:
        path = paths.pop()
        world = World(protocol, scripts, accepted)
        for move in path:
            world.do(move)
        possible = world.possible() if len(path) < depth else []
        if possible:
            paths += [(*path, move) for move in possible]
        else:
            yield path, world
