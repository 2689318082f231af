"""The constructed stalls: every cause, on every protocol that can have it, from both sides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.analysis.constructed_stalls import (
    RATE,
    Case,
    Minmux,
    Mplex,
    Nerdbank,
    Omnistreams,
    Streamux,
)

TWO_WAY: tuple[Mplex, ...] = (Mplex(), Nerdbank(), Streamux())
CREDIT: tuple[Nerdbank | Omnistreams | Minmux, ...] = (Nerdbank(), Omnistreams(), Minmux())
ALL: tuple[Mplex, ...] = (*TWO_WAY, Omnistreams(), Minmux())
SIDES = (0, 1)
CHUNK = 4_000  # frame size of a stream that saturates the line


def number(wire: Mplex, opener: int, nth: int) -> int:
    """The id of an opener's nth stream; in Minmux, streams that the dialer writes have odd ids."""
    return nth * 2 - opener + 1 if isinstance(wire, Minmux) else nth + 1


def begun(name: str, wire: Mplex) -> Case:
    case = Case(f"{wire.name.partition(':')[0]}: {name}", wire.name)
    for side, data in wire.hello():
        case.send(0.0, side, data)
    return case


def opened(case: Case, wire: Mplex, at: float, opener: int, nth: int, window: int = -1) -> int:
    """A stream that both sides may use at once; its id."""
    n = number(wire, opener, nth)
    frames = wire.open(opener, n) if window < 0 else wire.open(opener, n, window)
    for step, (side, data) in enumerate(frames):
        case.send(at + step * 0.1, side, data)
    return n


def hog(
    case: Case, wire: Mplex, at: float, side: int, n: int, lasts: float, chunk: int = CHUNK,
    whole: bool = False,
) -> float:  # fmt: skip
    """A stream of this side saturates the line. Return when its last byte has passed.

    `whole`: each frame has one instant, that of its last byte, as in a recording.
    """
    for left in range(int(lasts * RATE), 0, -chunk):
        data = wire.data(side, side, n, min(chunk, left))
        if whole:
            at = case.send(at + len(data) / RATE, side, data)
        else:
            at = case.send(at, side, data, RATE)
    case.hogs = (wire.label(side, n),)
    return at


# Credit


def without_credit() -> Iterator[Case]:
    """Credit runs out with a frame; a grant follows after a pause, and content at once."""
    for wire, side, lasts in product(CREDIT, SIDES, (60.0, 130.0, 500.0, 2000.0)):
        case = begun(f"no credit for {lasts} ms, side {side}", wire)
        units = 1 if isinstance(wire, Omnistreams) else 1000
        n = opened(case, wire, 1.0, side, 0, units)
        case.send(3.0, side, wire.data(side, side, n, 1000))
        case.send(3.0 + lasts, 1 - side, wire.grant(1 - side, side, n, units))
        case.send(3.2 + lasts, side, wire.data(side, side, n, 900))
        label = wire.label(side, n)
        case.rows = [(label, side, "no-credit", lasts)]
        before = 2.0 if isinstance(wire, Omnistreams) else 0.0
        wait = (lasts + (0.1 if before else 0.0), 0.0)
        case.blocked = wait if side == 0 else (wait[1], wait[0])
        yield case


def small_windows() -> Iterator[Case]:
    """A sender of whole messages waits until there is credit for the next one."""
    wire = Nerdbank()
    for side, lasts, dribble in product(SIDES, (100.0, 500.0, 1500.0), (False, True)):
        case = begun(f"room for less than a message, {lasts} ms, side {side}, {dribble}", wire)
        n = opened(case, wire, 1.0, side, 0, 1000)
        case.send(3.0, side, wire.data(side, side, n, 700))
        if dribble:
            for part in range(1, 4):
                case.send(3.0 + lasts * part / 4, 1 - side, wire.grant(1 - side, side, n, 50))
        case.send(3.0 + lasts, 1 - side, wire.grant(1 - side, side, n, 300))
        case.send(3.4 + lasts, side, wire.data(side, side, n, 600))
        case.rows = [(wire.label(side, n), side, "no-credit", lasts)]
        yield case


def credit_by_drops() -> Iterator[Case]:
    """Credit runs out and is granted in small amounts until it suffices for the next message."""
    wires: tuple[Nerdbank | Minmux, ...] = (Nerdbank(), Minmux())
    for wire, side, lasts in product(wires, SIDES, (200.0, 500.0)):
        case = begun(f"credit in drops for {lasts} ms, side {side}", wire)
        n = opened(case, wire, 1.0, side, 0, 1000)
        case.send(3.0, side, wire.data(side, side, n, 1000))
        drops = int(lasts / 40.0)
        for nth in range(drops):
            case.send(43.0 + nth * 40.0, 1 - side, wire.grant(1 - side, side, n, 60))
        lasts = drops * 40.0
        case.send(3.2 + lasts, side, wire.data(side, side, n, drops * 60))
        case.rows = [(wire.label(side, n), side, "no-credit", lasts)]
        yield case


def never_acknowledged() -> Iterator[Case]:
    wire = Nerdbank()
    for side, lasts in product(SIDES, (200.0, 5000.0)):
        case = begun(f"never acknowledged for {lasts} ms, side {side}", wire)
        n = opened(case, wire, 1.0, side, 0, 1000)
        case.send(3.0, side, wire.data(side, side, n, 1000))
        case.ends = 3.0 + lasts
        case.rows = [(wire.label(side, n), side, "slow-reader", lasts)]
        yield case


def credit_and_then_others() -> Iterator[Case]:
    """Credit is granted, and then another stream has the line: two causes in succession."""
    for wire, side, (dry, behind) in product(
        CREDIT, SIDES, ((60.0, 600.0), (200.0, 200.0), (30.0, 300.0))
    ):
        case = begun(f"no credit {dry} ms, then behind {behind} ms, side {side}", wire)
        units = 1 if isinstance(wire, Omnistreams) else 1000
        n = opened(case, wire, 1.0, side, 0, units)
        other = opened(case, wire, 1.5, side, 1)
        case.send(3.0, side, wire.data(side, side, n, 1000))
        case.send(3.0 + dry, 1 - side, wire.grant(1 - side, side, n, units))
        chunk = 40_000 if isinstance(wire, Omnistreams) else CHUNK
        passed = behind
        if isinstance(wire, Minmux):  # with credit for 60,000 items, renewed meanwhile
            for step in range(int(behind / 25.0)):
                data = wire.grant(1 - side, side, other, 60_000)
                case.send(3.0 + dry + step * 25.0, 1 - side, data)
        done = hog(case, wire, 3.1 + dry, side, other, passed, chunk)
        case.send(done, side, wire.data(side, side, n, 900))
        label = wire.label(side, n)
        case.rows = [(label, side, "head-of-line", behind)]
        if dry >= 50.0:
            case.rows.insert(0, (label, side, "no-credit", dry))
        case.behind = (behind, 0.0) if side == 0 else (0.0, behind)
        yield case


# Readers and the network


def closed_windows() -> Iterator[Case]:
    """The receiver offers no TCP window, or too small a one for what comes next."""
    for wire, side, (size, lasts) in product(
        TWO_WAY, SIDES, ((0, 80.0), (0, 500.0), (100, 500.0), (40, 90.0))
    ):
        case = begun(f"TCP window of {size} for {lasts} ms, side {side}", wire)
        n = opened(case, wire, 1.0, side, 0)
        case.send(3.0, side, wire.data(side, side, n, 1000))
        case.window(3.5, 1 - side, size)
        case.window(3.5 + lasts, 1 - side, 60_000)
        case.send(4.0 + lasts, side, wire.data(side, side, n, 1200))
        case.rows = [(wire.label(side, n), side, "slow-reader", lasts)]
        yield case


def retransmissions() -> Iterator[Case]:
    for wire, side, lasts in product(TWO_WAY, SIDES, (100.0, 600.0)):
        case = begun(f"sent again after {lasts} ms, side {side}", wire)
        n = opened(case, wire, 1.0, side, 0)
        case.send(3.0, side, wire.data(side, side, n, 300))
        lost, after = wire.data(side, side, n, 300), wire.data(side, side, n, 200)
        case.lose(3.5, side, lost, after, 3.5 + lasts)
        case.rows = [(wire.label(side, n), side, "transport", lasts)]
        yield case


# Head-of-line blocking


def asked(case: Case, wire: Mplex, at: float, side: int, nth: int) -> int:
    """The other side opens a stream and sends a request; `side` has to answer."""
    n = opened(case, wire, at, 1 - side, nth)
    case.send(at + 0.5, 1 - side, wire.data(1 - side, 1 - side, n, 50, last=True))
    return n


def answers_behind_a_hog() -> Iterator[Case]:
    """An answer is ready at once and queued behind another stream's data."""
    for wire, side, (lasts, whole) in product(
        TWO_WAY, SIDES, ((70.0, False), (100.0, True), (400.0, True), (1000.0, False))
    ):
        case = begun(f"an answer behind a hog of {lasts} ms, side {side}", wire)
        other = opened(case, wire, 1.0, side, 0)
        n = asked(case, wire, 3.0, side, 0)
        done = hog(case, wire, 3.5, side, other, lasts, whole=whole)
        case.send(done, side, wire.data(side, 1 - side, n, 50, last=True))
        case.rows = [(wire.label(1 - side, n), side, "head-of-line", lasts)]
        case.behind = (lasts, 0.0) if side == 0 else (0.0, lasts)
        yield case


def behind_one_large_frame() -> Iterator[Case]:
    """Another stream's frame takes this long to pass, and continues after the answer."""
    wire = Mplex()
    for side, lasts in product(SIDES, (60.0, 250.0)):
        case = begun(f"an answer behind one frame of {lasts} ms, side {side}", wire)
        other = opened(case, wire, 1.0, side, 0)
        n = asked(case, wire, 3.0, side, 0)
        size = int(lasts * RATE)
        done = hog(case, wire, 3.5, side, other, lasts, size)
        done = case.send(done, side, wire.data(side, 1 - side, n, 50))
        hog(case, wire, done, side, other, 30.0, 60_000)
        case.rows = [(wire.label(1 - side, n), side, "head-of-line", lasts)]
        case.behind = (lasts, 0.0) if side == 0 else (0.0, lasts)
        yield case


def openings_and_backlogs() -> Iterator[Case]:
    """A stream that was opened, has a backlog, or is in the middle of large frames."""
    wire = Mplex()
    for side, lasts, kind in product(SIDES, (80.0, 400.0), ("opened", "backlog", "bulk")):
        case = begun(f"{kind}, behind a hog of {lasts} ms, side {side}", wire)
        other = opened(case, wire, 1.0, side, 0)
        n = opened(case, wire, 3.0, side, 1)
        if kind != "opened":
            case.send(3.1, side, wire.data(side, side, n, 3000 if kind == "bulk" else 60))
        done = hog(case, wire, 3.2, side, other, lasts)
        for step in range(1 if kind == "opened" else 2):
            size = 3000 if kind == "bulk" else 60
            case.send(done + step * 0.5, side, wire.data(side, side, n, size))
        case.rows = [(wire.label(side, n), side, "head-of-line", lasts)]
        case.behind = (lasts, 0.0) if side == 0 else (0.0, lasts)
        yield case


def short_waits() -> Iterator[Case]:
    """Requests and answers, each answer behind some milliseconds of another stream."""
    for wire, side, (times, lasts, whole) in product(
        TWO_WAY, SIDES, ((64, 32.0, False), (64, 16.0, True), (50, 8.0, False))
    ):
        case = begun(f"{times} waits of {lasts} ms, side {side}", wire)
        other = opened(case, wire, 0.5, side, 0)
        n = opened(case, wire, 1.0, 1 - side, 0)
        at = 3.0
        for nth in range(times):
            exchange = nth if isinstance(wire, Streamux) else n
            case.send(at, 1 - side, wire.data(1 - side, 1 - side, exchange, 20, last=True))
            at = hog(case, wire, at, side, other, lasts, whole=whole)
            at = case.send(at, side, wire.data(side, 1 - side, exchange, 20, last=True), RATE)
            at += 0.3
        spent = times * lasts
        case.behind = (spent, 0.0) if side == 0 else (0.0, spent)
        yield case


def takes_turns() -> Iterator[Case]:
    """A stream that always has a small message ready alternates with one that fills the line."""
    for wire, side, (times, lasts) in product(TWO_WAY, SIDES, ((40, 30.0), (40, 10.0))):
        case = begun(f"{times} turns behind {lasts} ms, side {side}", wire)
        other = opened(case, wire, 0.5, side, 0)
        n = opened(case, wire, 1.0, side, 1)
        at = case.send(3.0, side, wire.data(side, side, n, 200))
        for _ in range(times):
            at = hog(case, wire, at, side, other, lasts)
            at = case.send(at, side, wire.data(side, side, n, 200), RATE)
        spent = times * lasts
        case.behind = (spent, 0.0) if side == 0 else (0.0, spent)
        yield case


def pings_beside_bulk() -> Iterator[Case]:
    """One unsolicited ping per second, each behind one large frame of a bulk stream."""
    wire = Mplex()
    for side, lasts in product(SIDES, (20.0, 40.0)):
        case = begun(f"pings behind frames of {lasts} ms, side {side}", wire)
        other = opened(case, wire, 0.5, side, 0)
        n = opened(case, wire, 1.0, side, 1)
        case.send(1.5, side, wire.data(side, side, n, 20))
        at, times = 3.0, 20
        for _ in range(times):
            at = hog(case, wire, at, side, other, lasts, int(lasts * RATE))
            at = case.send(at, side, wire.data(side, side, n, 20))
            at += 20.0
        spent = times * lasts
        case.behind = (spent, 0.0) if side == 0 else (0.0, spent)
        case.rows = []
        yield case


# Idle senders


def slow_answers() -> Iterator[Case]:
    """A server takes this long to answer while another of its streams is busy, not saturated."""
    for wire, side, (lasts, size, pace) in product(
        TWO_WAY,
        SIDES,
        ((120.0, 2000, 5.0), (400.0, 4000, 8.0), (400.0, 8000, 5.0), (900.0, 900, 1.5)),
    ):
        case = begun(f"an answer after {lasts} ms beside {size} in {pace} ms, side {side}", wire)
        other = opened(case, wire, 1.0, side, 0)
        n = asked(case, wire, 3.0, side, 0)
        at = 1.7
        rate = 0 if size > 5000 else 100_000  # large frames have one timestamp
        while at < lasts + 100.0:
            case.send(at, side, wire.data(side, side, other, size), rate)
            at += pace
        case.send(3.5 + lasts, side, wire.data(side, 1 - side, n, 50, last=True))
        case.hogs = (wire.label(side, other),)
        case.rows = [(wire.label(1 - side, n), side, "sender-idle", lasts)]
        case.idle = True
        yield case


def idle_senders() -> Iterator[Case]:
    for wire, side, lasts in product(ALL, SIDES, (70.0, 900.0)):
        case = begun(f"idle for {lasts} ms, side {side}", wire)
        n = opened(case, wire, 1.0, side, 0)
        case.send(3.0, side, wire.data(side, side, n, 100))
        case.send(3.0 + lasts, side, wire.data(side, side, n, 100))
        case.rows = [(wire.label(side, n), side, "sender-idle", lasts)]
        case.idle = True
        yield case


def pauses_too_short() -> Iterator[Case]:
    for wire, side in product(ALL, SIDES):
        case = begun(f"pauses of 45 ms, side {side}", wire)
        n = opened(case, wire, 1.0, side, 0)
        for nth in range(6):
            case.send(3.0 + nth * 45.0, side, wire.data(side, side, n, 100))
        case.idle = True
        yield case


# Replies


def missing_replies() -> Iterator[Case]:
    """A request, or a half that ended, and no answer: never, or after seconds."""
    for wire, side, (lasts, comes) in product(
        TWO_WAY, SIDES, ((1200.0, False), (8000.0, False), (2500.0, True), (6000.0, True))
    ):
        case = begun(f"{'late' if comes else 'no'} answer in {lasts} ms, side {side}", wire)
        n = asked(case, wire, 3.0, side, 0)
        if not isinstance(wire, Streamux):
            case.send(3.6, 1 - side, wire.end(1 - side, 1 - side, n))
        if comes:
            case.send(3.6 + lasts, side, wire.data(side, 1 - side, n, 50, last=True))
        case.ends = 3.6 + lasts + (10.0 if comes else 0.0)
        case.rows = [(wire.label(1 - side, n), side, "no-reply", lasts)]
        yield case


def missing_acceptances() -> Iterator[Case]:
    wire = Nerdbank()
    for side, (lasts, comes) in product(SIDES, ((1500.0, False), (9000.0, False), (3000.0, True))):
        case = begun(f"{'late' if comes else 'no'} acceptance in {lasts} ms, side {side}", wire)
        case.send(1.0, 1 - side, wire.offer(1 - side, 1))
        if comes:
            case.send(1.0 + lasts, side, wire.accept(1 - side, 1))
            case.send(1.5 + lasts, 1 - side, wire.data(1 - side, 1 - side, 1, 50))
        case.ends = 1.0 + lasts + (10.0 if comes else 0.0)
        case.rows = [(wire.label(1 - side, 1), side, "no-reply", lasts)]
        yield case


def answers_in_time() -> Iterator[Case]:
    """The capture ends soon after the request; or the answer is slow, but not late."""
    for wire, side, comes in product(TWO_WAY, SIDES, (False, True)):
        case = begun(f"{'an answer after' if comes else 'an end within'} 700 ms, side {side}", wire)
        n = asked(case, wire, 3.0, side, 0)
        if not isinstance(wire, Streamux):
            case.send(3.6, 1 - side, wire.end(1 - side, 1 - side, n))
        if comes:
            case.send(703.6, side, wire.data(side, 1 - side, n, 50, last=True))
        case.ends = 710.0 if comes else 703.6
        yield case


def all_cases() -> list[Case]:
    families = (
        without_credit, small_windows, credit_by_drops, never_acknowledged, credit_and_then_others,
        closed_windows, retransmissions, answers_behind_a_hog, behind_one_large_frame,
        openings_and_backlogs, short_waits, takes_turns, pings_beside_bulk, slow_answers,
        idle_senders, pauses_too_short,
        missing_replies, missing_acceptances, answers_in_time,
    )  # fmt: skip
    return [case for family in families for case in family()]
