"""The properties every protocol of polymux has. Each takes a protocol string and seeds."""

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
    """From none of five places; and once all is delivered the five agree."""
    for seed in seeds:
        world = Simulation(text, seed, acceptor_protocol=other or None)
        world.run()
        said = world.findings()
        if said:
            raise PropertyFailed(f"{text}, seed {seed}: honest peers are convicted: {said[:3]}")
        views = world.stream_summaries()
        for view in views[1:]:
            if view != views[0]:
                odd = [key for key in {**views[0], **view} if view.get(key) != views[0].get(key)]
                raise PropertyFailed(f"{text}, seed {seed}: the places disagree about {odd[:3]}: "
                             f"{[[v.get(key) for v in views] for key in odd[:1]]}")  # fmt: skip


def honest_peers_may_reuse_ids(text: str, seeds: Iterable[int]) -> None:
    """mplex: an id may be used again as soon as its opener believes its stream over, as npm does.

    Frames that cross such an opening may be about either use; so the places agree on what was sent
    on an id, and not always on which use had it.
    """
    again = 0
    for seed in seeds:
        world = Simulation(text, seed, reuse_ids=True)
        world.run()
        said = world.findings()
        if said:
            raise PropertyFailed(f"{text}, seed {seed}: honest peers are convicted: {said[:3]}")
        again += sum(
            stream.incarnation > 1 for stream in world.middle_observer.protocol.streams.all()
        )
    if again == 0:
        raise PropertyFailed(f"{text}: no id was used again")


def violations_are_reported_beside_their_sender(
    text: str, seeds: Iterable[int], other: str = ""
) -> None:
    """A frame that the liar's own endpoint would refuse is reported by the watcher next to it."""
    caught = 0
    for seed in seeds:
        world = Simulation(text, seed, acceptor_protocol=other or None)
        rng = Random(seed)
        for _ in range(rng.randrange(20, 120)):
            world.step(acting=True)
        side = rng.randrange(2)
        end, watcher = world.ends[side], world.side_observers[side]
        while end.pending():
            world.flush(side)
        frame = world.drivers[side].random_frame()
        if frame is None or not end.protocol.handshake_done:
            continue
        verdict = end.connection.validate_outgoing(side, frame, len(frame.payload))
        rules = {
            r.name for r in rules_in_mask(end.protocol.rules, verdict & end.protocol.error_mask)
        }
        if not rules:
            continue
        caught += 1
        watcher.take_violations()
        end.send_frame(frame, force=True)
        watcher.feed(side, end.data_to_send(1 << 30), world.now)
        found = {v.rule.name for v in watcher.take_violations()}
        if not rules & found:
            raise PropertyFailed(
                f"{text}, seed {seed}: {frame} breaks {rules}, the watcher says {found}"
            )
    if caught == 0:
        raise PropertyFailed(f"{text}: no lie was told, so none was caught")


def any_split_gives_the_same_rows(text: str, seeds: Iterable[int], other: str = "") -> None:
    """Rows, findings and streams do not depend on how the bytes were cut."""
    for seed in seeds:
        world = Simulation(text, seed, acceptor_protocol=other or None)
        world.run(60)
        runs = join_adjacent(world.record)
        whole = observe(text, [(side, data, 0) for side, data in runs])
        rng = Random(seed)
        cut = [(side, piece, 0) for side, data in runs for piece in split_randomly(data, rng)]
        if observe(text, cut) != whole:
            raise PropertyFailed(f"{text}, seed {seed}: another split gives other rows")


def snapshots_resume_anywhere(text: str, seeds: Iterable[int], other: str = "") -> None:
    """An observer taken apart and put together again in mid-frame goes on as if never stopped."""
    for seed in seeds:
        world = Simulation(text, seed, acceptor_protocol=other or None)
        world.run(60)
        rng = Random(seed)
        pieces = [
            (side, piece, at)
            for side, data, at in world.record
            for piece in split_randomly(data, rng)
        ]
        whole = observe(text, pieces)
        observer = new_middle_observer(text)
        rows: list[Row] = []
        said: list[str] = []
        gone: list[str] = []
        for side, data, at in pieces:
            observer.feed(side, data, at)
            if rng.random() < 0.05:
                rows += take_rows(observer)
                said += [str(v) for v in observer.take_violations()]
                gone += [repr(s.save()[:8]) for s in observer.take_removed_streams()]
                saved = observer.snapshot()
                observer = new_middle_observer(text)
                observer.restore(saved)
        if final_report(observer, rows, said, gone) != whole:
            raise PropertyFailed(f"{text}, seed {seed}: a resumed observer sees something else")


def noise_never_raises_or_stalls_decoding(text: str, seeds: Iterable[int], other: str = "") -> None:
    """Any bytes are decoded or given up; memory for what is undecoded stays bounded."""
    for seed in seeds:
        rng = Random(seed)
        observer = new_middle_observer(text)
        world = Simulation(text, seed, acceptor_protocol=other or None)
        world.run(30)
        raw = bytearray(b"".join(data for _, data, _ in world.record)[:4000])
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
                    raise PropertyFailed(f"{text}, seed {seed}: bytes pile up undecoded")
            else:
                if before == decoding_progress(direction) and observer.protocol.handshake_done:
                    raise PropertyFailed(f"{text}, seed {seed}: wedged on noise")
        observer.finish(1, True, True)
        if not observer.accounts_for_all_bytes():
            raise PropertyFailed(f"{text}, seed {seed}: bytes are not conserved")


def a_rejected_frame_changes_nothing(text: str, seeds: Iterable[int], other: str = "") -> None:
    """After LocalProtocolError the endpoint's state is what it was, to the last number."""
    for seed in seeds:
        world = Simulation(text, seed, acceptor_protocol=other or None)
        rng = Random(seed)
        for _ in range(rng.randrange(20, 100)):
            world.step(acting=True)
        end = world.ends[rng.randrange(2)]
        for _ in range(10):
            frame = world.drivers[end.side].random_frame()
            if frame is None:
                break
            end.protocol.causality.snapshot_seen(end.side)
            before = repr(end.protocol.save())
            try:
                end.send_frame(frame)
            except LocalProtocolError:
                if repr(end.protocol.save()) != before:
                    raise PropertyFailed(
                        f"{text}, seed {seed}: refused {frame}, yet changed"
                    ) from None


def a_wrong_vantage_reports_false_violations(text: str, seeds: Iterable[int]) -> bool:
    """Does the naive rule (what passed was read) convict honest peers? It should be found out."""
    for seed in seeds:
        world = Simulation(text, seed, middle_vantage=Vantage.DIALER)
        world.run()
        if any("middle" in line for line in world.findings()):
            return True
    return False


# --- helpers


def decoding_progress(d: Direction) -> tuple[int, ...]:
    """What must change while bytes come in, or the decoder is wedged."""
    return d.frames, d.frame_bytes_seen, d.undecoded_bytes, d.offset, int(d.decoding_stopped)


def new_middle_observer(text: str) -> Observer:
    return Observer(create(text, vantage=Vantage.MIDDLE))


def join_adjacent(record: list[tuple[int, bytes, int]]) -> list[tuple[int, bytes]]:
    """Neighbouring bytes of one side put together."""
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
    """The observer's rows so far, as tuples."""
    rows: list[Row] = []
    assert observer.rows is not None
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
    """Everything an observer has to say at the end, comparable."""
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
    """All properties, `runs` seeded runs each. `other`: what the acceptor speaks, if it differs."""
    severities = [rule.severity for rule in create(text).rules]
    if Severity.ERROR not in severities:
        raise PropertyFailed(f"{text} has no rule of severity error")
    for check in PROPERTIES:
        check(text, range(seed, seed + runs), other)
    if text.partition(":")[0] == "mplex":
        honest_peers_may_reuse_ids(text, range(seed, seed + runs))
