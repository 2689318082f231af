"""What the faults of streams do: a `FaultyDirection` is the filter of one direction of a stream.

A direction has the faults of the rules that select its stream, in the order of the rules. Content
passes through all of them. Each may bound what is read (what is not read gives its sender no
credit), keep content for a while, or act on the stream. A fault begins when the `after=` of its
rule is reached, and ends when its rule is removed: what it kept then goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from polymux.core.streams import NOT_YET, OPEN
from polymux.live.streams.duplex import Stream
from polymux.live.streams.items import ItemReceiver
from polymux.relay.channels import ALL, StreamChannel
from polymux.relay.faults.rules import FaultRule
from polymux.relay.pump import Filter

if TYPE_CHECKING:
    from polymux.relay.faults.relayed import FaultyStream

MAX_KEPT_BYTES: Final = 1 << 20  # by a fault; then nothing more is read
RATE_BURST_SECONDS: Final = 0.1  # of a rate that may pass at once
# Added to the credit that is due, so that the endpoint does not return it by itself.
WITHHELD: Final = 1 << 40
RESET_REASON: Final = "reset by polymux chaos"


class StreamFault:
    """A fault of one direction of a stream; this base class changes nothing.

    Args:
        direction: Of which stream and sender.
        number: Of the rule.
        rule: The rule.
    """

    def __init__(self, direction: FaultyDirection, number: int, rule: FaultRule) -> None:
        self.direction = direction
        self.number = number
        self.rule = rule
        self.loop = asyncio.get_running_loop()
        self.began = False
        self._noted = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The `after=` of the rule is reached."""

    def read_limit(self) -> int:
        """As `Filter.read_limit`, once it has begun."""
        return ALL

    def content(self, data: bytes) -> None:
        """Content that came through the faults before this one."""
        self.pass_on(data)

    def end(self) -> None:
        """The sender has ended its direction."""
        self.direction.end_after(self)

    def lift(self) -> None:
        """The rule was removed: let go what is kept."""

    def closed(self) -> None:
        """The direction is over."""
        self.stop_timer()

    def pass_on(self, data: bytes) -> None:
        self.direction.content_after(self, data)

    def note(self) -> None:
        """The fault has its effect: count it, and write it to the recording, once."""
        if not self._noted:
            self._noted = True
            self.direction.stream.note(self.number, self.rule)

    def start_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self.stop_timer()
        self._timer = self.loop.call_later(seconds, callback)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def source(self) -> Stream | None:
        """The stream that is read; None where the end is no session."""
        channel = self.direction.pump.source
        return channel.stream if isinstance(channel, StreamChannel) else None


class Keeping(StreamFault):
    """Keeps chunks in order until each may go on; the end waits behind them."""

    def __init__(self, direction: FaultyDirection, number: int, rule: FaultRule) -> None:
        super().__init__(direction, number, rule)
        self.kept: deque[tuple[float, bytes | None]] = deque()  # with a time or number; None: end
        self.kept_bytes = 0

    def read_limit(self) -> int:
        return 0 if self.kept_bytes >= MAX_KEPT_BYTES else ALL

    def keep(self, until: float, data: bytes | None) -> None:
        self.kept.append((until, data))
        self.kept_bytes += len(data or b"")

    def release(self) -> None:
        """Let the oldest chunk go on."""
        _, data = self.kept.popleft()
        if data is None:
            self.direction.end_after(self)
        else:
            self.kept_bytes -= len(data)
            self.pass_on(data)

    def lift(self) -> None:
        self.stop_timer()
        while self.kept:
            self.release()

    def closed(self) -> None:
        super().closed()
        self.kept.clear()
        self.kept_bytes = 0


class Delay(Keeping):
    """Every chunk goes on later by `time`, and up to `jitter` more or less, in order."""

    def content(self, data: bytes) -> None:
        self.note()
        self._delay(data)

    def end(self) -> None:
        self._delay(None)

    def _delay(self, data: bytes | None) -> None:
        jitter = self.rule.values["jitter"]
        until = self.loop.time() + self.rule.values["time"] + random.uniform(-jitter, jitter)
        if self.kept:
            until = max(until, self.kept[-1][0])
        self.keep(until, data)
        if len(self.kept) == 1:
            self._wait()

    def _wait(self) -> None:
        self.start_timer(self.kept[0][0] - self.loop.time(), self._on_due)

    def _on_due(self) -> None:
        now = self.loop.time()
        while self.kept and self.kept[0][0] <= now:
            self.release()
        if self.kept:
            self._wait()
        self.direction.resume()


class Reorder(Keeping):
    """A chunk goes on when `chunks` chunks of other streams have passed it, or after `time`."""

    def begin(self) -> None:
        self.direction.stream.connection.reorders[self.direction.sender].append(self)

    def content(self, data: bytes) -> None:
        self.note()
        self._keep(data)

    def end(self) -> None:
        self._keep(None)

    def _keep(self, data: bytes | None) -> None:
        passed = self.direction.stream.connection.passed[self.direction.sender]
        self.keep(passed + self.rule.values["chunks"], data)
        if len(self.kept) == 1:
            self.start_timer(self.rule.values["time"], self._on_time)

    def on_passed(self, passed: int) -> None:
        """So many chunks of this sender have passed in the connection by now."""
        if self.kept and self.kept[0][0] <= passed:
            while self.kept and self.kept[0][0] <= passed:
                self.release()
            self._rearm()

    def _on_time(self) -> None:
        self.release()
        self._rearm()

    def _rearm(self) -> None:
        self.stop_timer()
        if self.kept:
            self.start_timer(self.rule.values["time"], self._on_time)
        self.direction.resume()

    def closed(self) -> None:
        super().closed()
        reorders = self.direction.stream.connection.reorders[self.direction.sender]
        if self in reorders:
            reorders.remove(self)

    def lift(self) -> None:
        super().lift()
        self.closed()


class Hold(StreamFault):
    """The first content waits for `time`; then everything goes on."""

    def __init__(self, direction: FaultyDirection, number: int, rule: FaultRule) -> None:
        super().__init__(direction, number, rule)
        self._until = -1.0

    def read_limit(self) -> int:
        now = self.loop.time()
        if self._until < 0:
            self.note()
            self._until = now + self.rule.values["time"]
            self.start_timer(self.rule.values["time"], self.direction.resume)
        return 0 if now < self._until else ALL


class Rate(StreamFault):
    """`rate` bytes go on in a second."""

    def begin(self) -> None:
        self._room, self._burst = 0.0, max(1.0, self.rule.values["rate"] * RATE_BURST_SECONDS)
        self._counted_at = self.loop.time()

    def read_limit(self) -> int:
        self.note()
        now = self.loop.time()
        rate = self.rule.values["rate"]
        self._room = min(self._burst, self._room + (now - self._counted_at) * rate)
        self._counted_at = now
        if self._room >= 1:
            return int(self._room)
        wanted = min(self._burst, 1 - self._room + self._burst / 8)
        self.start_timer(wanted / rate, self.direction.resume)
        return 0

    def content(self, data: bytes) -> None:
        self._room -= len(data)
        self.pass_on(data)


class Starve(StreamFault):
    """Nothing is read, until the sender or its connection is gone."""

    def read_limit(self) -> int:
        self.note()
        return 0

    def lift(self) -> None:
        self.direction.resume_soon()


class CreditFault(StreamFault):
    """Keeps the credit of what was read instead of returning it."""

    def __init__(self, direction: FaultyDirection, number: int, rule: FaultRule) -> None:
        super().__init__(direction, number, rule)
        self.withholding = False

    def begin(self) -> None:
        source = self.source
        if isinstance(source, ItemReceiver):
            source.manual_credit = True
            self.withholding = True
        elif source is not None:
            source.buffers.unreturned_credit -= WITHHELD
            self.withholding = True

    @property
    def kept_credit(self) -> int:
        """Units that were read and whose credit was not returned."""
        source = self.source
        if source is None or not self.withholding:
            return 0
        return int(source.buffers.unreturned_credit) + WITHHELD

    def return_credit(self, amount: int) -> None:
        """Return so many units now."""
        source = self.source
        if source is None or source.peer_half.state != OPEN or source.state.over or amount <= 0:
            return
        source.buffers.unreturned_credit -= amount
        endpoint = source.endpoint
        frame = endpoint.protocol.credit_frame(endpoint.side, source.state, amount)
        endpoint.queue_frame(source.state, frame)
        source.session.schedule_flush()

    def stop_withholding(self) -> None:
        """Return what was kept; from now on credit returns by itself."""
        source = self.source
        if not self.withholding or source is None:
            return
        if isinstance(source, ItemReceiver):
            source.manual_credit = False
            source.return_credit()
        else:
            self.return_credit(self.kept_credit)
            source.buffers.unreturned_credit += WITHHELD
        self.withholding = False

    def lift(self) -> None:
        self.stop_timer()
        self.stop_withholding()

    def closed(self) -> None:
        super().closed()
        self.stop_withholding()


class WithholdCredit(CreditFault):
    """Once its credit is used up, the sender gets none for `time`; then it goes on as before.

    A sender that cannot use up the last of its credit gets some after the same time, and the fault
    waits for the next chance.
    """

    def content(self, data: bytes) -> None:
        self.pass_on(data)
        source = self.source
        if source is None or not self.withholding:
            return
        seconds = self.rule.values["time"]
        peer = source.peer_half
        if peer.credit_granted <= peer.credit_spent:
            self.note()
            if peer.blocked_since != NOT_YET:  # content may have waited before it was read
                seconds -= max(0.0, self.loop.time() - int(peer.blocked_since) / 1e9)
        self.start_timer(max(0.0, seconds), self._on_time)

    def _on_time(self) -> None:
        source = self.source
        if source is None:
            return
        used_up = source.peer_half.credit_granted <= source.peer_half.credit_spent
        self.stop_withholding()
        if not used_up and not source.state.over:
            self.begin()


class DribbleCredit(CreditFault):
    """Credit returns in pieces of `size`, one each `interval`."""

    def content(self, data: bytes) -> None:
        self.note()
        self.pass_on(data)
        if self.withholding and self._timer is None:
            self.start_timer(self.rule.values["interval"], self._on_time)

    def _on_time(self) -> None:
        self.stop_timer()
        self.return_credit(min(self.kept_credit, int(self.rule.values["size"])))
        if self.kept_credit > 0:
            self.start_timer(self.rule.values["interval"], self._on_time)


class Reset(StreamFault):
    """The stream is reset towards both sides."""

    def begin(self) -> None:
        if self.direction.stream.begin_once(self.number):
            self.note()
            self.direction.pump.relayed.abort_both(RESET_REASON)


class EndEarly(StreamFault):
    """The direction ends here; what still comes is read and discarded."""

    def begin(self) -> None:
        if not self.direction.pump.finished:
            self.note()
            self.direction.pump.sink.end()

    def content(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        self.direction.pump.finish()

    def lift(self) -> None:
        """An end cannot be taken back: the direction stays over."""


class Illegal(StreamFault):
    """A rule of the protocol is broken once."""

    def begin(self) -> None:
        if self.direction.stream.begin_once(self.number):
            self.direction.stream.start_breach(self.number, self.rule)


FAULT_CLASSES: Final[dict[str, type[StreamFault]]] = {
    "delay": Delay,
    "hold": Hold,
    "rate": Rate,
    "reset": Reset,
    "end-early": EndEarly,
    "withhold-credit": WithholdCredit,
    "dribble-credit": DribbleCredit,
    "starve": Starve,
    "reorder": Reorder,
    "illegal": Illegal,
}
CREDIT_FAULTS: Final = ("withhold-credit", "dribble-credit")
ACTIONS: Final = (Reset, EndEarly, Illegal)  # act on the stream when they begin


class FaultyDirection(Filter):
    """The filter of one direction of a stream: its faults, in the order of the rules.

    Args:
        stream: The stream.
        sender: Whose content this is, DIALER or ACCEPTOR.
    """

    def __init__(self, stream: FaultyStream, sender: int) -> None:
        self.stream = stream
        self.sender = sender
        self.faults: list[StreamFault] = []
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._waiting = 0  # faults that have not begun
        self._over = False

    # Faults

    def add(self, number: int, rule: FaultRule) -> None:
        """Add the fault of a rule; it begins now, or when `after=` is reached."""
        if self._over:
            return
        fault = FAULT_CLASSES[rule.kind.name](self, number, rule)
        self.faults.append(fault)
        select = rule.select
        self._waiting += 1
        if select.after_seconds:
            left = self._began_at + select.after_seconds - self._loop.time()
            fault.start_timer(max(0.0, left), lambda: self._begin(fault))
        elif isinstance(fault, ACTIONS):
            self._loop.call_soon(self._begin_if_due, fault)

    def remove(self, number: int) -> None:
        """Remove the fault of a rule; what it kept goes on."""
        for fault in [each for each in self.faults if each.number == number]:
            if fault.began:
                fault.lift()
            else:
                self._waiting -= 1
                fault.stop_timer()
            if not isinstance(fault, EndEarly) or not fault.began:
                self.faults.remove(fault)
        self.resume_soon()

    def _begin_if_due(self, fault: StreamFault) -> None:
        select = fault.rule.select
        if not select.after_seconds and self.pump.bytes >= select.after_bytes:
            self._begin(fault)

    def _begin(self, fault: StreamFault) -> None:
        if not fault.began and not self._over and fault in self.faults:
            fault.began = True
            self._waiting -= 1
            fault.begin()

    def _begin_due(self) -> None:
        for fault in list(self.faults):
            if not fault.began:
                self._begin_if_due(fault)

    # Filter

    def read_limit(self) -> int:
        limit = ALL
        if self._waiting:
            self._begin_due()
        source = self.pump.source
        if isinstance(source, StreamChannel) and source.stream.read_error is not None:
            return ALL  # its sender is gone: nothing is held up any more
        for fault in self.faults:
            if fault.began:
                most = fault.read_limit()
            elif fault.rule.select.after_bytes > self.pump.bytes:
                most = fault.rule.select.after_bytes - self.pump.bytes
            else:
                continue
            if most != ALL and (limit == ALL or most < limit):
                limit = most
        return limit

    def content(self, data: bytes) -> None:
        if self.faults:
            first = self._first()
            if first is not None:
                first.content(data)
            else:
                self._pass(data)
            if self._waiting:
                self._begin_due()
        else:
            self._pass(data)

    def end(self) -> None:
        self.stream.on_change()
        first = self._first()
        if first is not None:
            first.end()
        else:
            self.pump.forward_end()

    def aborted(self, reason: str) -> None:
        self.stream.on_change()
        self.pump.forward_abort(reason)

    def closed(self) -> None:
        self.stream.on_change()
        self._over = True
        for fault in self.faults:
            fault.closed()
        self.stream.on_direction_over(self)

    # For faults

    def content_after(self, fault: StreamFault, data: bytes) -> None:
        """Content goes on behind this fault."""
        following = self._following(fault)
        if following is not None:
            following.content(data)
        else:
            self._pass(data)

    def end_after(self, fault: StreamFault) -> None:
        """The end goes on behind this fault."""
        following = self._following(fault)
        if following is not None:
            following.end()
        else:
            self.pump.forward_end()

    def resume(self) -> None:
        """Read on: a fault may allow it now."""
        if not self._over:
            self.pump.resume()

    def resume_soon(self) -> None:
        self._loop.call_soon(self.resume)

    def _first(self) -> StreamFault | None:
        return next((fault for fault in self.faults if fault.began), None)

    def _following(self, fault: StreamFault) -> StreamFault | None:
        position = self.faults.index(fault) + 1
        return next((each for each in self.faults[position:] if each.began), None)

    def _pass(self, data: bytes) -> None:
        self.pump.forward(data)
        self.stream.on_change()
        self.stream.connection.chunk_passed(self)
