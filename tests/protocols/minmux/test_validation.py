"""What an observer of Minmux reports: rules, messages, time without credit, late packets."""

from pathlib import Path

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.rules import Reaction, Severity
from polymux.core.side import Vantage
from polymux.protocols.minmux import rules as minmux_rules
from polymux.protocols.minmux.item_codecs import Fixed
from polymux.protocols.minmux.packets import give_credit, oops, stop_read
from polymux.protocols.minmux.profile import Profile, byte_profile
from polymux.protocols.minmux.protocol import Minmux
from polymux.protocols.registry import create

VECTORS = Path(__file__).parent.parent.parent / "vectors" / "minmux"


def observe(
    *steps: tuple[int, str], text: str = "minmux", limits: Limits | None = None
) -> Observer:
    observer = Observer(create(text, limits))
    for i, (side, data) in enumerate(steps):
        observer.feed(side, bytes.fromhex(data), i * 1000)
    return observer


def reported(observer: Observer) -> list[str]:
    return [str(violation) for violation in observer.take_violations()]


def reusable() -> Profile:
    profile = Profile(reuse=True)
    profile.assign(0, Fixed(1))
    return profile


def test_each_bit_stands_for_the_rule_it_is_named_after() -> None:
    bits = {
        name: value
        for name, value in vars(minmux_rules).items()
        if name.isupper() and isinstance(value, int)
    }
    assert len(bits) == len(minmux_rules.RULES)
    for i, rule in enumerate(minmux_rules.RULES):
        name = rule.name.removeprefix("minmux.").replace("-", "_").upper()
        assert bits[name] == 2**i


def test_every_error_ends_a_live_session() -> None:
    for rule in minmux_rules.RULES:
        assert (rule.severity is Severity.ERROR) == (rule.reaction is Reaction.SESSION)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([(0, "0002"), (1, "0004 6161616161")], "Write of 5: there was credit for 3"),
        ([(1, "0000 61")], "there was credit for 0"),
        ([(0, "0002"), (1, "8005")], "ForgoCredit of 6: there was credit for 3"),
        ([(0, "00fffffffffffffffffe 0004")], "GiveCredit of 5 on top of 18446744073709551615"),
        ([(0, "0002"), (1, "4001 0001 6161")], "Write of 2: 1 more were announced"),
        ([(0, "0004"), (1, "4000 0000 61")], "Write of 1: the stream was finished"),
        ([(0, "4002 4003")], "StopRead of 3: 2 more were announced"),
        ([(0, "4002 0003")], "GiveCredit of 4: 2 more were announced"),
        ([(0, "4002 c003")], "PromiseRead of 4: 2 more were announced"),
        ([(0, "00ffffffffffffffffff")], "an amount of 2^64 (byte 0)"),
        ([(0, "3fffffffffffffffffff00")], "a stream id past 2^64-1 (byte 0)"),
        ([(0, "40f800")], "StopRead of 0"),
    ],
)
def test_a_violation_says_what_was_wrong(steps: list[tuple[int, str]], words: str) -> None:
    found = reported(observe(*steps))
    assert len(found) == 1
    assert words in found[0]


def test_a_stream_that_the_profile_does_not_know_is_named() -> None:
    text = f"minmux:profile={VECTORS}/named.toml"
    observer = observe((0, "3fff7fffffffffffffc1 00"), (1, "0400"), text=text)
    found = reported(observer)
    assert "stream 9223372036854775808, which the profile does not assign" in found[0]
    assert "stream 4 is not in the profile, so its items have no known size" in found[1]
    assert observer.connection.acceptor.decoding_stopped
    assert "stream 4" in observer.connection.acceptor.stop_reason
    assert not observer.connection.dialer.decoding_stopped


def test_time_without_credit_is_measured() -> None:
    observer = observe((1, "c000"), (0, "0001"), (1, "0001 6161"), (0, "0000"), (1, "0000 61"))
    observer.feed(1, b"\x40\x00", 10_000)
    half = observer.protocol.streams.all()[0].acceptor
    # from the promise at 0 to the credit at 1000, from 2000 to 3000, from 4000 to the end at 10000
    assert half.blocked_ns == 1000 + 1000 + 6000


def test_a_reader_is_never_blocked() -> None:
    observer = observe((0, "c000"), (0, "4005"))
    assert observer.protocol.streams.all()[0].dialer.blocked_since == -1


def test_a_forgo_on_an_evicted_id_is_not_a_violation() -> None:
    limits = Limits(closed_streams_remembered=1)
    steps = [(0, "0000 4000"), (1, "4000"), (0, "0200 4200"), (1, "4200")]
    observer = observe(*steps, (1, "8000"), limits=limits)
    assert reported(observer) == []
    assert reported(observe(*steps, (1, "8000"))) == []  # not evicted: the credit is still held
    assert reported(observe(*steps, (1, "8001")))


def test_a_late_forgo_excuses_no_more_than_what_was_left_over() -> None:
    """A writer that forgoes credit in each use cannot save it up and write it all at once."""
    implementation = Minmux(Limits(), Vantage.DIALER, reusable())
    reader = Endpoint(implementation, 0)
    reader.send_frame(give_credit(0, 5))
    reader.send_frame(stop_read(0))
    reader.receive(b"\x40\x00", 0.0)  # finished, with 5 left over
    for _ in range(4):
        reader.send_frame(give_credit(0, 5))
        reader.receive(b"\x80\x04", 0.0)  # forgone, perhaps late
    reader.send_frame(give_credit(0, 5))
    with pytest.raises(PeerViolation, match="credit-exceeded"):
        reader.receive(b"\x00\x0a" + bytes(11), 0.0)
    assert implementation.streams.all()[0].acceptor.content_bytes == 0


def test_giving_up_more_than_either_use_had_is_no_accident() -> None:
    implementation = Minmux(Limits(), Vantage.DIALER, reusable())
    reader = Endpoint(implementation, 0)
    reader.send_frame(give_credit(0, 5))
    reader.send_frame(stop_read(0))
    reader.receive(b"\x40\x00", 0.0)
    reader.send_frame(give_credit(0, 2))
    with pytest.raises(PeerViolation, match="forgo-exceeds-credit"):
        reader.receive(b"\x80\x05", 0.0)


def test_credit_past_its_range_is_excused_in_later_uses_only() -> None:
    """The reader may have counted a ForgoCredit that belongs to the previous use."""
    text = f"minmux:profile={VECTORS}/reuse.toml"
    most = "00 fffffffffffffffffe"
    assert "credit-overflow" in reported(observe((0, most), (0, most), text=text))[0]
    later = [(0, "4000"), (1, "4000"), (0, most), (0, most)]
    assert reported(observe(*later, text=text)) == []


def test_uses_survive_a_snapshot() -> None:
    text = f"minmux:profile={VECTORS}/reuse.toml"
    steps = [(0, "0004"), (1, "4000"), (0, "4000 0000"), (1, "8000")]
    observer = observe(*steps, text=text)
    other = Observer(create(text))
    other.restore(observer.snapshot())
    for each in (observer, other):
        each.feed(1, bytes.fromhex("0000 61"), 9)
        assert reported(each) == []
        assert [s.label() for s in each.protocol.streams.all()] == ["a0.2"]
    assert observer.snapshot() == other.snapshot()


def test_an_oops_flood_with_unread_replies_is_ended() -> None:
    implementation = Minmux(Limits(), Vantage.ACCEPTOR, byte_profile())
    writer = Endpoint(implementation, 1)
    storm: list[bytes] = []
    for number in range(0, 4 * Limits().max_queued_replies, 2):
        peer = Endpoint(Minmux(Limits(), Vantage.DIALER, byte_profile()), 0)
        peer.send_frame(give_credit(number, 9))
        peer.send_frame(oops(number, 0))
        storm.append(peer.data_to_send())
    with pytest.raises((LimitExceeded, PeerViolation), match=r"limit|without content"):
        [writer.receive(gust, 0.0) for gust in storm]
    assert len(writer.scheduler.control_queue) <= Limits().max_queued_replies + 1


def test_nothing_is_reserved_for_a_promise() -> None:
    observer = observe((1, "c0 fffffffffffffffffe"), (0, "c0 fffffffffffffffffe"))
    stream = observer.protocol.streams.all()[0]
    assert reported(observer) == []
    assert (
        stream.acceptor.credit_granted,
        stream.acceptor.credit_spent,
        stream.acceptor.promised_limit,
    ) == (0, 0, -1)


PAGE_NAMES = (
    "credit-exceeded", "limit-raised", "credit-past-limit", "write-past-limit",
    "endless-stream-stopped", "forgo-exceeds-credit", "credit-overflow", "varint-noncanonical",
    "varint-overflow", "unassigned-stream", "truncated",
)  # fmt: skip


def test_every_rule_that_was_asked_for_has_its_name() -> None:
    names = {rule.name for rule in minmux_rules.RULES}
    assert {f"minmux.{name}" for name in PAGE_NAMES} <= names
