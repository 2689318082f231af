"""mplex: reuse of ids, as npm `multiplex` does it, while frames cross in flight."""

from __future__ import annotations

import os
from random import Random

import pytest
from tests.protocols.mplex.npm_peers import NEW, Conversation, Passing
from tests.protocols.mplex.npm_readings import determined, of_receiver, placed, readings

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PeerViolation
from polymux.core.events import Aborted, Opened
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.streams import StreamState
from polymux.protocols.registry import create

RUNS = int(os.environ.get("POLYMUX_REUSE_RUNS", "2500" if "POLYMUX_SOAK" in os.environ else "300"))
MIDDLE, UNORDERED = 2, 3


def observed(pieces: list[tuple[int, bytes]], vantage: int = MIDDLE) -> Observer:
    observer = Observer(create("mplex", vantage=vantage))
    for side, data in pieces:
        observer.feed(side, data, 0)
    observer.finish(1, True, True)
    return observer


def violations(observer: Observer) -> list[str]:
    return [
        str(violation)
        for violation in observer.take_violations()
        if violation.rule.severity is not Severity.NOTE
    ]


def by_key(log: list[Passing]) -> dict[tuple[int, int], list[Passing]]:
    found: dict[tuple[int, int], list[Passing]] = {}
    for passing in log:
        found.setdefault(passing.frame.key, []).append(passing)
    return found


def streams_of(observer: Observer) -> dict[tuple[int, int, int], StreamState]:
    streams = [*observer.take_removed_streams(), *observer.protocol.streams.all()]
    return {(s.opener, s.stream_id, s.incarnation): s for s in streams}


@pytest.mark.parametrize(("zombies", "lags"), [(False, False), (True, False), (True, True)])
def test_peers_that_use_ids_again_are_never_accused(zombies: bool, lags: bool) -> None:
    again = 0
    for seed in range(RUNS):
        conversation = Conversation(seed, zombies=zombies, lags=lags)
        assert violations(observed(conversation.pieces)) == [], f"seed {seed}"
        again += sum(
            passing.frame.kind == NEW and passing.frame.use > 1 for passing in conversation.log
        )
    assert again > RUNS


def test_an_observer_at_a_peer_reports_neither() -> None:
    for seed in range(RUNS // 2):
        conversation = Conversation(seed)
        for side in (0, 1):
            assert violations(observed(conversation.beside[side], side)) == [], (
                f"seed {seed}, side {side}"
            )


def test_the_order_of_the_directions_need_not_be_known() -> None:
    for seed in range(RUNS // 2):
        conversation = Conversation(seed, zombies=seed % 2 == 1)
        rng = Random(seed)
        lag = [rng.randrange(20), rng.randrange(20)]
        moved = sorted(
            range(len(conversation.pieces)), key=lambda i: i + lag[conversation.pieces[i][0]]
        )
        observer = observed([conversation.pieces[i] for i in moved], UNORDERED)
        assert violations(observer) == [], f"seed {seed}"


def test_each_use_ends_as_the_wire_says() -> None:
    checked = 0
    for seed in range(RUNS):
        conversation = Conversation(seed)
        observer = observed(conversation.pieces)
        streams = streams_of(observer)
        for (opener, number), log in by_key(conversation.log).items():
            for use, expected in determined(log).items():
                stream = streams[opener, number, use]
                seen = observer.protocol.ending(stream), stream.reset_by
                where = f"seed {seed}, {stream.label()}: {[p.frame for p in log]}"
                assert seen == expected, where
                checked += use > 1
    assert checked > RUNS // 4


def test_frames_belong_to_the_use_that_their_sender_can_have_known() -> None:
    checked = 0
    for seed in range(RUNS):
        conversation = Conversation(seed)
        observer = observed(conversation.pieces)
        rows: dict[tuple[int, int], int] = {}
        assert observer.rows is not None
        for batch in observer.rows.take():
            for i in range(batch.used):
                rows[int(batch.sender[i]), int(batch.frame_index[i])] = int(batch.incarnation[i])
        sums = dict.fromkeys(by_key(conversation.log), 0)
        for log in by_key(conversation.log).values():
            for key, use in placed(log).items():
                assert rows[key] == use, f"seed {seed}, frame {key}: {[p.frame for p in log]}"
                checked += use > 1
        for stream in streams_of(observer).values():
            sums[stream.opener, stream.stream_id] += int(
                stream.dialer.content_bytes + stream.acceptor.content_bytes
            )
        for key, log in by_key(conversation.log).items():
            assert sums[key] == sum(len(p.frame.payload) for p in log if p.frame.kind == "message")
    assert checked > RUNS // 4


def message(number: int, data: bytes) -> bytes:
    return bytes([number * 8 + 1, len(data)]) + data


def test_a_live_side_lets_a_misled_peer_reuse_the_id() -> None:
    end = Endpoint(create("mplex", vantage=1), 1)
    (opened,) = end.receive(bytes.fromhex("0000"), 0.0)
    assert opened.stream is not None
    end.end(opened.stream)
    assert end.data_to_send() == bytes.fromhex("0300")  # crosses the peer's reset
    events = end.receive(bytes.fromhex("0600 0000"), 0.0)
    second = events[-1].stream
    assert second is not None
    end.send(second, b"for the second")
    # The peer took our close for one of the second stream: closed on both sides, so it is free.
    events = end.receive(bytes.fromhex("0400 0000"), 0.0)
    assert [type(event) for event in events if event.stream is second][-1] is Aborted
    (third,) = (event.stream for event in events if isinstance(event, Opened))
    assert third is not None
    assert third.label() == "d0.3"
    end.send(third, b"third")
    assert end.data_to_send() == message(0, b"third")


def test_a_live_side_refuses_an_id_that_its_opener_knows_is_taken() -> None:
    end = Endpoint(create("mplex", vantage=1), 1)
    with pytest.raises(PeerViolation, match="id-reused"):
        end.receive(bytes.fromhex("0000 0000"), 0.0)


def closed_before(log: list[Passing], use: int) -> bool:
    """Return whether an earlier use, ended without a reset of its opener, may be meant."""
    resets = {
        p.frame.use for p in log if p.frame.kind == "reset" and p.frame.sender == p.frame.opener
    }
    return any(earlier not in resets for earlier in range(1, use))


def test_what_follows_a_sides_own_stop_is_found_unless_another_use_excuses_it() -> None:
    found = excused = 0
    for seed in range(RUNS):
        conversation = Conversation(seed, faulty=True)
        if conversation.violate is None:
            continue
        frame, rule = conversation.violate
        log = by_key(conversation.log)[frame.key]
        (ordinal,) = (p.ordinal for p in log if p.frame is frame)
        until = next(i for i, p in enumerate(log) if p.frame is frame) + 1
        if frame.sender != frame.opener and (
            any(readings(of_receiver(log[:until])))  # it may also belong to another use
            or (rule == "mplex.write-after-reset" and closed_before(log, frame.use))
        ):
            excused += 1
            continue
        observer = observed(conversation.pieces)
        reported = [
            (v.rule.name, int(v.sender), v.frame_index)
            for v in observer.take_violations()
            if v.rule.severity is not Severity.NOTE or v.rule.name == rule
        ]
        assert reported == [(rule, frame.sender, ordinal)], f"seed {seed}: {[p.frame for p in log]}"
        found += 1
    assert found > 4 * excused
