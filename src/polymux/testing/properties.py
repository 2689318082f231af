"""The properties every protocol of polymux has. Each takes a protocol string and seeds."""

from collections.abc import Callable, Iterable
from random import Random

from polymux.core.direction import Direction
from polymux.core.errors import LocalProtocolError
from polymux.core.frames import Batch
from polymux.core.observer import Observer
from polymux.core.rules import Severity, broken
from polymux.core.side import Vantage
from polymux.protocols.registry import create
from polymux.testing.simulator import Broken, World

Row = tuple[int, ...]


def honest_peers_are_never_convicted(text: str, seeds: Iterable[int], other: str = "") -> None:
    """From none of five places; and once all is delivered the five agree."""
    for seed in seeds:
        world = World(text, seed, other=other or None)
        world.run()
        said = world.findings()
        if said:
            raise Broken(f"{text}, seed {seed}: honest peers are convicted: {said[:3]}")
        views = world.portraits()
        for view in views[1:]:
            if view != views[0]:
                odd = [key for key in {**views[0], **view} if view.get(key) != views[0].get(key)]
                raise Broken(f"{text}, seed {seed}: the places disagree about {odd[:3]}: "
                             f"{[[v.get(key) for v in views] for key in odd[:1]]}")  # fmt: skip


def honest_peers_may_use_ids_again(text: str, seeds: Iterable[int]) -> None:
    """mplex: an id may be used again as soon as its opener believes its stream over, as npm does.

    Frames that cross such an opening may be about either use; so the places agree on what was sent
    on an id, and not always on which use had it.
    """
    again = 0
    for seed in seeds:
        world = World(text, seed, reuses=True)
        world.run()
        said = world.findings()
        if said:
            raise Broken(f"{text}, seed {seed}: honest peers are convicted: {said[:3]}")
        again += sum(stream.incarnation > 1 for stream in world.middle.protocol.streams.all())
    if again == 0:
        raise Broken(f"{text}: no id was used again")


def liars_are_convicted_beside_them(text: str, seeds: Iterable[int], other: str = "") -> None:
    """A frame that the liar's own endpoint would refuse is reported by the watcher next to it."""
    caught = 0
    for seed in seeds:
        world = World(text, seed, other=other or None)
        rng = Random(seed)
        for _ in range(rng.randrange(20, 120)):
            world.step(acting=True)
        side = rng.randrange(2)
        end, watcher = world.ends[side], world.beside[side]
        while end.pending():
            world.write(side)
        frame = world.drivers[side].lie()
        if frame is None or not end.protocol.handshaken:
            continue
        verdict = end.conversation.utter(side, frame, len(frame.payload))
        rules = {r.name for r in broken(end.protocol.rules, verdict & end.protocol.errors)}
        if not rules:
            continue
        caught += 1
        watcher.take_violations()
        end.put(frame, force=True)
        watcher.feed(side, end.data_to_send(1 << 30), world.now)
        found = {v.rule.name for v in watcher.take_violations()}
        if not rules & found:
            raise Broken(f"{text}, seed {seed}: {frame} breaks {rules}, the watcher says {found}")
    if caught == 0:
        raise Broken(f"{text}: no lie was told, so none was caught")


def any_split_gives_the_same_rows(text: str, seeds: Iterable[int], other: str = "") -> None:
    """Rows, findings and streams do not depend on how the octets were cut."""
    for seed in seeds:
        world = World(text, seed, other=other or None)
        world.run(60)
        runs = joined(world.record)
        whole = witness(text, [(side, data, 0) for side, data in runs])
        rng = Random(seed)
        cut = [(side, piece, 0) for side, data in runs for piece in shred(data, rng)]
        if witness(text, cut) != whole:
            raise Broken(f"{text}, seed {seed}: another split gives other rows")


def snapshots_resume_anywhere(text: str, seeds: Iterable[int], other: str = "") -> None:
    """An observer taken apart and put together again in mid-frame goes on as if never stopped."""
    for seed in seeds:
        world = World(text, seed, other=other or None)
        world.run(60)
        rng = Random(seed)
        pieces = [
            (side, piece, at) for side, data, at in world.record for piece in shred(data, rng)
        ]
        whole = witness(text, pieces)
        observer = watcher_of(text)
        rows: list[Row] = []
        said: list[str] = []
        gone: list[str] = []
        for side, data, at in pieces:
            observer.feed(side, data, at)
            if rng.random() < 0.05:
                rows += taken(observer)
                said += [str(v) for v in observer.take_violations()]
                gone += [repr(s.save()[:8]) for s in observer.take_gone()]
                saved = observer.snapshot()
                observer = watcher_of(text)
                observer.restore(saved)
        if verdict_of(observer, rows, said, gone) != whole:
            raise Broken(f"{text}, seed {seed}: a resumed observer sees something else")


def noise_never_raises_and_never_wedges(text: str, seeds: Iterable[int], other: str = "") -> None:
    """Any octets are decoded or given up; memory for what is undecoded stays bounded."""
    for seed in seeds:
        rng = Random(seed)
        observer = watcher_of(text)
        world = World(text, seed, other=other or None)
        world.run(30)
        octets = bytearray(b"".join(data for _, data, _ in world.record)[:4000])
        for _ in range(rng.randrange(1, 6)):
            if octets:
                octets[rng.randrange(len(octets))] = rng.randrange(256)
        stream = rng.choice([bytes(octets), rng.randbytes(600), bytes(octets) + rng.randbytes(99)])
        for piece in shred(stream, rng):
            observer.feed(rng.randrange(2), piece, 0)
        filler = rng.randbytes(65536)
        for side in (0, 1):
            direction = observer.conversation.direction(side)
            for _ in range(40):
                before = progress(direction)
                observer.feed(side, filler, 0)
                if direction.lost:
                    break
                if direction.waiting() > 4 * (1 << 20):
                    raise Broken(f"{text}, seed {seed}: octets pile up undecoded")
            else:
                if before == progress(direction) and observer.protocol.handshaken:
                    raise Broken(f"{text}, seed {seed}: wedged on noise")
        observer.finish(1, True, True)
        if not observer.balanced():
            raise Broken(f"{text}, seed {seed}: octets are not conserved")


def a_refused_put_changes_nothing(text: str, seeds: Iterable[int], other: str = "") -> None:
    """After LocalProtocolError the endpoint's state is what it was, to the last number."""
    for seed in seeds:
        world = World(text, seed, other=other or None)
        rng = Random(seed)
        for _ in range(rng.randrange(20, 100)):
            world.step(acting=True)
        end = world.ends[rng.randrange(2)]
        for _ in range(10):
            frame = world.drivers[end.side].lie()
            if frame is None:
                break
            end.protocol.sight.freeze(end.side)
            before = repr(end.protocol.save())
            try:
                end.put(frame)
            except LocalProtocolError:
                if repr(end.protocol.save()) != before:
                    raise Broken(f"{text}, seed {seed}: refused {frame}, yet changed") from None


def a_pretender_in_the_middle_is_wrong(text: str, seeds: Iterable[int]) -> bool:
    """Does the naive rule (what passed was read) convict honest peers? It should be found out."""
    for seed in seeds:
        world = World(text, seed, middle=Vantage.DIALER)
        world.run()
        if any("middle" in line for line in world.findings()):
            return True
    return False


# --- helpers


def progress(d: Direction) -> tuple[int, ...]:
    """What must change while octets come in, or the decoder is wedged."""
    return d.frames, d.done, d.undecoded, d.offset, int(d.lost)


def watcher_of(text: str) -> Observer:
    return Observer(create(text, vantage=Vantage.MIDDLE))


def joined(record: list[tuple[int, bytes, int]]) -> list[tuple[int, bytes]]:
    """Neighbouring octets of one side put together."""
    runs: list[tuple[int, bytes]] = []
    for side, data, _ in record:
        if runs and runs[-1][0] == side:
            runs[-1] = (side, runs[-1][1] + data)
        else:
            runs.append((side, data))
    return runs


def shred(data: bytes, rng: Random) -> list[bytes]:
    pieces: list[bytes] = []
    pos = 0
    while pos < len(data):
        size = rng.choice([1, 1, 2, 3, 20, 1000, 50_000])
        pieces.append(data[pos : pos + size])
        pos += size
    return pieces


def taken(observer: Observer) -> list[Row]:
    """The observer's rows so far, as tuples."""
    rows: list[Row] = []
    assert observer.rows is not None
    for batch in observer.rows.take():
        rows += [row_of(batch, i) for i in range(batch.used)]
    return rows


def row_of(b: Batch, i: int) -> Row:
    stream = (b.number[i], b.incarnation[i]) if b.opener[i] != 255 else (-1, -1)
    return (b.sender[i], b.ordinal[i], b.at[i], b.offset[i], b.size[i], b.kind[i], b.opener[i],
            *stream, b.amount[i], b.payload[i], b.verdict[i])  # fmt: skip


def witness(text: str, pieces: list[tuple[int, bytes, int]]) -> tuple[object, ...]:
    observer = watcher_of(text)
    for side, data, at in pieces:
        observer.feed(side, data, at)
    return verdict_of(observer, [], [], [])


def verdict_of(
    observer: Observer, rows: list[Row], said: list[str], gone: list[str]
) -> tuple[object, ...]:
    """Everything an observer has to say at the end, comparable."""
    observer.finish(10**15, True, True)
    rows = rows + taken(observer)
    said = said + [str(v) for v in observer.take_violations()]
    streams = gone + [repr(s.save()[:8]) for s in observer.take_gone()]
    streams += [repr(s.save()) for s in observer.protocol.streams.all()]
    return rows, sorted(said), streams


CHECKS: tuple[Callable[..., None], ...] = (
    honest_peers_are_never_convicted,
    liars_are_convicted_beside_them,
    any_split_gives_the_same_rows,
    snapshots_resume_anywhere,
    noise_never_raises_and_never_wedges,
    a_refused_put_changes_nothing,
)


def check_protocol(text: str, runs: int = 100, seed: int = 0, other: str = "") -> None:
    """All properties, `runs` seeded runs each. `other`: what the acceptor speaks, if it differs."""
    severities = [rule.severity for rule in create(text).rules]
    if Severity.ERROR not in severities:
        raise Broken(f"{text} has no rule of severity error")
    for check in CHECKS:
        check(text, range(seed, seed + runs), other)
    if text.partition(":")[0] == "mplex":
        honest_peers_may_use_ids_again(text, range(seed, seed + runs))
