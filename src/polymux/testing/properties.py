"""Properties that every protocol implementation has, checked on simulated connections.

Each property is a function of a protocol string and seeds that raises `PropertyFailed`. `other` is
the acceptor's protocol string, if it differs.
"""

from collections.abc import Callable, Iterable
from random import Random

from polymux.core.direction import Direction
from polymux.core.errors import LocalProtocolError
from polymux.core.frames import FrameRows
from polymux.core.observer import Observer
from polymux.core.rules import Severity, rules_in_mask
from polymux.core.side import Vantage
from polymux.protocols.registry import create
from polymux.testing.simulator import PropertyFailed, Simulation

Row = tuple[int, ...]


def honest_peers_have_no_violations(text: str, seeds: Iterable[int], other: str = "") -> None:
    """No observer or endpoint reports a violation, and in the end all have the same state."""
    for seed in seeds:
        simulation = Simulation(text, seed, acceptor_protocol=other or None)
        simulation.run()
        findings = simulation.findings()
        if findings:
            raise PropertyFailed(f"{text}, seed {seed}: violations of honest peers: {findings[:3]}")
        views = simulation.stream_summaries()
        for view in views[1:]:
            if view != views[0]:
                odd = [key for key in {**views[0], **view} if view.get(key) != views[0].get(key)]
                raise PropertyFailed(f"{text}, seed {seed}: the views differ in {odd[:3]}: "
                             f"{[[v.get(key) for v in views] for key in odd[:1]]}")  # fmt: skip


def honest_peers_may_reuse_ids(text: str, seeds: Iterable[int]) -> None:
    """mplex: honest peers may reuse an id as soon as its opener regards the stream as over.

    npm does so. Frames that cross such an opening may belong to either use, so observers agree on
    what was sent on an id, but not always on the use.
    """
    reused = 0
    for seed in seeds:
        simulation = Simulation(text, seed, reuse_ids=True)
        simulation.run()
        findings = simulation.findings()
        if findings:
            raise PropertyFailed(f"{text}, seed {seed}: violations of honest peers: {findings[:3]}")
        reused += sum(
            stream.incarnation > 1 for stream in simulation.middle_observer.protocol.streams.all()
        )
    if reused == 0:
        raise PropertyFailed(f"{text}: no id was reused")


def violations_are_reported_beside_their_sender(
    text: str, seeds: Iterable[int], other: str = ""
) -> None:
    """A frame that an endpoint would reject is reported by an observer at its sender."""
    caught = 0
    for seed in seeds:
        simulation = Simulation(text, seed, acceptor_protocol=other or None)
        rng = Random(seed)
        for _ in range(rng.randrange(20, 120)):
            simulation.step(acting=True)
        side = rng.randrange(2)
        end, observer = simulation.ends[side], simulation.side_observers[side]
        while end.pending():
            simulation.flush(side)
        frame = simulation.drivers[side].random_frame()
        if frame is None or not end.protocol.handshake_done:
            continue
        violation_mask = end.connection.validate_outgoing(side, frame, len(frame.payload))
        rules = {
            r.name
            for r in rules_in_mask(end.protocol.rules, violation_mask & end.protocol.error_mask)
        }
        if not rules:
            continue
        caught += 1
        observer.take_violations()
        end.send_frame(frame, force=True)
        observer.feed(side, end.data_to_send(1 << 30), simulation.now)
        found = {v.rule.name for v in observer.take_violations()}
        if not rules & found:
            raise PropertyFailed(
                f"{text}, seed {seed}: {frame} breaks {rules}, the observer reports {found}"
            )
    if caught == 0:
        raise PropertyFailed(f"{text}: no violation was sent, so none could be reported")


def any_split_gives_the_same_rows(text: str, seeds: Iterable[int], other: str = "") -> None:
    """Rows, violations and streams do not depend on how the bytes are split."""
    for seed in seeds:
        simulation = Simulation(text, seed, acceptor_protocol=other or None)
        simulation.run(60)
        runs = join_adjacent(simulation.record)
        whole = observe(text, [(side, data, 0) for side, data in runs])
        rng = Random(seed)
        cut = [(side, piece, 0) for side, data in runs for piece in split_randomly(data, rng)]
        if observe(text, cut) != whole:
            raise PropertyFailed(f"{text}, seed {seed}: another split gives other rows")


def snapshots_resume_anywhere(text: str, seeds: Iterable[int], other: str = "") -> None:
    """An observer restored from a snapshot, at any byte, reports the same as one that ran on."""
    for seed in seeds:
        simulation = Simulation(text, seed, acceptor_protocol=other or None)
        simulation.run(60)
        rng = Random(seed)
        pieces = [
            (side, piece, at)
            for side, data, at in simulation.record
            for piece in split_randomly(data, rng)
        ]
        whole = observe(text, pieces)
        observer = new_middle_observer(text)
        rows: list[Row] = []
        violations: list[str] = []
        gone: list[str] = []
        for side, data, at in pieces:
            observer.feed(side, data, at)
            if rng.random() < 0.05:
                rows += take_rows(observer)
                violations += [str(v) for v in observer.take_violations()]
                gone += [repr(s.save()[:8]) for s in observer.take_removed_streams()]
                saved = observer.snapshot()
                observer = new_middle_observer(text)
                observer.restore(saved)
        if final_report(observer, rows, violations, gone) != whole:
            raise PropertyFailed(f"{text}, seed {seed}: a restored observer reports something else")


def noise_never_raises_or_stalls_decoding(text: str, seeds: Iterable[int], other: str = "") -> None:
    """Any bytes are decoded or decoding stops; the memory for undecoded bytes is bounded."""
    for seed in seeds:
        rng = Random(seed)
        observer = new_middle_observer(text)
        simulation = Simulation(text, seed, acceptor_protocol=other or None)
        simulation.run(30)
        raw = bytearray(b"".join(data for _, data, _ in simulation.record)[:4000])
        for _ in range(rng.randrange(1, 6)):
            if raw:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        stream = rng.choice([bytes(raw), rng.randbytes(600), bytes(raw) + rng.randbytes(99)])
        for piece in split_randomly(stream, rng):
            observer.feed(rng.randrange(2), piece, 0)
        filler = rng.randbytes(65536)
        for side in (0, 1):
            direction = observer.connection.direction(side)
            for _ in range(40):
                before = decoding_progress(direction)
                observer.feed(side, filler, 0)
                if direction.decoding_stopped:
                    break
                if direction.buffered_bytes() > 4 * (1 << 20):
                    raise PropertyFailed(f"{text}, seed {seed}: undecoded bytes accumulate")
            else:
                if before == decoding_progress(direction) and observer.protocol.handshake_done:
                    raise PropertyFailed(f"{text}, seed {seed}: decoding stalls on noise")
        observer.finish(1, True, True)
        if not observer.accounts_for_all_bytes():
            raise PropertyFailed(f"{text}, seed {seed}: bytes are not accounted for")


def a_rejected_frame_changes_nothing(text: str, seeds: Iterable[int], other: str = "") -> None:
    """After LocalProtocolError the endpoint's state is unchanged."""
    for seed in seeds:
        simulation = Simulation(text, seed, acceptor_protocol=other or None)
        rng = Random(seed)
        for _ in range(rng.randrange(20, 100)):
            simulation.step(acting=True)
        end = simulation.ends[rng.randrange(2)]
        for _ in range(10):
            frame = simulation.drivers[end.side].random_frame()
            if frame is None:
                break
            end.protocol.causality.snapshot_seen(end.side)
            before = repr(end.protocol.save())
            try:
                end.send_frame(frame)
            except LocalProtocolError:
                if repr(end.protocol.save()) != before:
                    raise PropertyFailed(
                        f"{text}, seed {seed}: rejected {frame}, but changed state"
                    ) from None


def a_wrong_vantage_reports_false_violations(text: str, seeds: Iterable[int]) -> bool:
    """Return whether a middle observer with the dialer's vantage reports false violations.

    It takes everything that passed it for read by the dialer; the simulation must expose that.
    """
    for seed in seeds:
        simulation = Simulation(text, seed, middle_vantage=Vantage.DIALER)
        simulation.run()
        if any("middle" in line for line in simulation.findings()):
            return True
    return False


# Private helpers


def decoding_progress(d: Direction) -> tuple[int, ...]:
    """Return figures of which one must change while bytes arrive, or decoding stalls."""
    return d.frames, d.frame_bytes_seen, d.undecoded_bytes, d.offset, int(d.decoding_stopped)


def new_middle_observer(text: str) -> Observer:
    return Observer(create(text, vantage=Vantage.MIDDLE))


def join_adjacent(record: list[tuple[int, bytes, int]]) -> list[tuple[int, bytes]]:
    """Join adjacent chunks of one side."""
    runs: list[tuple[int, bytes]] = []
    for side, data, _ in record:
        if runs and runs[-1][0] == side:
            runs[-1] = (side, runs[-1][1] + data)
        else:
            runs.append((side, data))
    return runs


def split_randomly(data: bytes, rng: Random) -> list[bytes]:
    pieces: list[bytes] = []
    pos = 0
    while pos < len(data):
        size = rng.choice([1, 1, 2, 3, 20, 1000, 50_000])
        pieces.append(data[pos : pos + size])
        pos += size
    return pieces


def take_rows(observer: Observer) -> list[Row]:
    """Remove and return the observer's rows as tuples."""
    rows: list[Row] = []
    assert observer.rows is not None  # `new_middle_observer` makes observers with rows
    for batch in observer.rows.take():
        rows += [row_of(batch, i) for i in range(batch.used)]
    return rows


def row_of(b: FrameRows, i: int) -> Row:
    stream = (b.stream_id[i], b.incarnation[i]) if b.opener[i] != 255 else (-1, -1)
    return (
        b.sender[i],
        b.frame_index[i],
        b.time[i],
        b.byte_offset[i],
        b.size[i],
        b.kind[i],
        b.opener[i],
        *stream,
        b.amount[i],
        b.payload_bytes[i],
        b.verdict[i],
    )


def observe(text: str, pieces: list[tuple[int, bytes, int]]) -> tuple[object, ...]:
    observer = new_middle_observer(text)
    for side, data, at in pieces:
        observer.feed(side, data, at)
    return final_report(observer, [], [], [])


def final_report(
    observer: Observer, rows: list[Row], violations: list[str], gone: list[str]
) -> tuple[object, ...]:
    """Finish the observer. Return its rows, violations and streams in comparable form."""
    observer.finish(10**15, True, True)
    rows = rows + take_rows(observer)
    violations = violations + [str(v) for v in observer.take_violations()]
    streams = gone + [repr(s.save()[:8]) for s in observer.take_removed_streams()]
    streams += [repr(s.save()) for s in observer.protocol.streams.all()]
    return rows, sorted(violations), streams


PROPERTIES: tuple[Callable[..., None], ...] = (
    honest_peers_have_no_violations,
    violations_are_reported_beside_their_sender,
    any_split_gives_the_same_rows,
    snapshots_resume_anywhere,
    noise_never_raises_or_stalls_decoding,
    a_rejected_frame_changes_nothing,
)


def check_protocol(text: str, runs: int = 100, seed: int = 0, other: str = "") -> None:
    """Check all properties of a protocol implementation.

    Args:
        text: protocol string.
        runs: simulated connections per property.
        seed: seed of the first run; the following runs count up from it.
        other: protocol string of the acceptor, if it differs.

    Raises:
        PropertyFailed: a property does not hold; the message names the seed.
    """
    severities = [rule.severity for rule in create(text).rules]
    if Severity.ERROR not in severities:
        raise PropertyFailed(f"{text} has no rule of severity error")
    for check in PROPERTIES:
        check(text, range(seed, seed + runs), other)
    if text.partition(":")[0] == "mplex":
        honest_peers_may_reuse_ids(text, range(seed, seed + runs))
