"""Two honest endpoints over links that delay and split: no observer reports a violation.

endpoint | observer ---- near ---- middle observer ---- far ---- observer | endpoint
"""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, PeerViolation, StreamEnded
from polymux.core.events import Credit
from polymux.core.frames import Frame
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.side import Vantage
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.minmux.item_codecs import Fixed, Prefixed
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    GIVE_CREDIT,
    OOPS,
    PROMISE_READ,
    PROMISE_WRITE,
    STOP_READ,
    STOP_WRITE,
    U64_MAX,
    key_of,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, Profile
from polymux.protocols.minmux.protocol import Minmux

Step = tuple[int, int, int, int]
steps = st.lists(
    st.tuples(st.integers(0, 13), st.integers(0, 1), st.integers(0, 3), st.integers(0, 40)),
    max_size=160,
)
IDS = (0, 1, 2**63, U64_MAX)  # two that each side writes


def instance(reuse: bool, last: bool) -> Profile:
    profile = Profile(reuse=reuse)
    for number, items in ((0, Fixed(1)), (1, Prefixed()), (2**63, Fixed(3)), (U64_MAX, Fixed(2))):
        profile.assign(number, items, Fixed(2) if last else None)
    return profile


class Sea:
    """Two endpoints, their links and observers, driven step by step."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.implementations = [Minmux(Limits(), side, profile) for side in (0, 1)]
        self.ends = [
            Endpoint(implementation, side)
            for side, implementation in enumerate(self.implementations)
        ]
        vantages = (Vantage.DIALER, Vantage.ACCEPTOR, Vantage.MIDDLE)
        self.observers = [Observer(Minmux(Limits(), vantage, profile)) for vantage in vantages]
        self.near: list[bytes] = [b"", b""]
        self.far: list[bytes] = [b"", b""]
        self.blame: list[str] = []

    def do(self, step: Step) -> None:
        move, side, pick, size = step
        if move < 2:
            self.flush(side)
        elif move < 4:
            self.drift(side, size)
        elif move < 6:
            self.arrive(side, size)
        else:
            self.act(move - 6, side, IDS[pick], size)

    def flush(self, side: int) -> None:
        data = self.ends[side].data_to_send()
        if data:
            self.observers[side].feed(side, data, 0)
            self.near[side] += data

    def drift(self, side: int, size: int) -> None:
        data, self.near[side] = self.near[side][: size + 1], self.near[side][size + 1 :]
        self.observers[2].feed(side, data, 0)
        self.far[side] += data

    def arrive(self, side: int, size: int) -> None:
        data, self.far[side] = self.far[side][: size + 1], self.far[side][size + 1 :]
        reader = 1 - side
        if data:
            self.flush(reader)  # frames encoded before the read are sent before it
            self.observers[reader].feed(side, data, 0)
            try:
                for event in self.ends[reader].receive(data, 0.0):
                    if isinstance(event, Credit) and event.stream is not None:
                        self.ends[reader].resume(event.stream)
            except PeerViolation as violation:
                self.blame.append(f"end {reader}: {violation}")

    # Legal actions: within announced limits and the credit read so far

    def act(self, what: int, side: int, number: int, size: int) -> None:
        implementation, end = self.implementations[side], self.ends[side]
        stream = implementation.get_stream(side, number)
        try:
            if writer_of(key_of(number)) == side:
                self.write(what, implementation, end, stream, size)
            else:
                self.read(what, implementation, end, stream, size)
        except (LocalProtocolError, StreamEnded):
            pass  # rejected before anything was sent

    def read(
        self, what: int, implementation: Minmux, end: Endpoint, stream: StreamState, size: int
    ) -> None:
        limit = stream.half(end.side).promised_limit
        if what < 3:
            frame = implementation.credit_frame(
                end.side, stream, U64_MAX if size == 40 else size + 1
            )
            if frame is not None:
                end.send_frame(Frame(GIVE_CREDIT, stream.key, b"", frame.amount))
        elif what == 3:
            end.send_frame(Frame(OOPS, stream.key, b"", size))
        elif what == 4:
            if limit < 0 or limit > size:
                end.send_frame(Frame(PROMISE_READ, stream.key, b"", size + 1))
        elif what == 5:  # a repetition, where it is not ambiguous
            if limit > 0 or (limit == 0 and self.may_repeat(stream)):
                end.send_frame(Frame(STOP_READ, stream.key, b"", limit))
        elif limit != 0:
            end.send_frame(
                Frame(STOP_READ, stream.key, b"", size if limit < 0 else min(size, limit))
            )

    def write(
        self, what: int, implementation: Minmux, end: Endpoint, stream: StreamState, size: int
    ) -> None:
        own = stream.half(end.side)
        shape = self.profile.format_of(stream.key)
        assert shape is not None
        limit, queued = own.promised_limit, implementation.queued_items(end.side, stream)
        if what < 3:
            if own.state == OPEN and limit == queued and shape.last_item_size != UNIT_LAST_ITEM:
                end.send(stream, bytes(2))
            else:
                one = b"\x02ab" if shape.item_size < 0 else bytes(shape.item_size)
                end.send(stream, one * (size + 1))
        elif what == 3:
            if (
                implementation.writer_credit(stream) > 0
            ):  # also after its own end, where it is not needed
                end.send_frame(
                    Frame(
                        FORGO_CREDIT,
                        stream.key,
                        b"",
                        min(size + 1, implementation.writer_credit(stream)),
                    )
                )
        elif what == 4:
            if limit < 0 or limit > size:
                end.send_frame(Frame(PROMISE_WRITE, stream.key, b"", size + 1))
        elif what == 5:
            if limit > 0 or (limit == 0 and self.may_repeat(stream)):
                end.send_frame(Frame(STOP_WRITE, stream.key, b"", limit))
        elif limit < 0 or queued < limit:
            amount = queued + size % 4
            end.send_frame(
                Frame(STOP_WRITE, stream.key, b"", amount if limit < 0 else min(amount, limit))
            )

    def may_repeat(self, stream: StreamState) -> bool:
        """Return whether a stop may be repeated: with reuse, it would belong to the next use."""
        return not stream.over and not self.profile.reuse

    def settle(self) -> None:
        """Deliver everything and end all streams."""
        for _ in range(6):
            for side in (0, 1):
                self.flush(side)
                self.drift(side, 1 << 30)
                self.arrive(side, 1 << 30)

    def findings(self) -> list[str]:
        found = list(self.blame)
        for watcher in self.observers:
            found += [
                f"{watcher.protocol.causality.vantage}: {violation}"
                for violation in watcher.take_violations()
                if violation.rule.severity is not Severity.NOTE
            ]
            found += [
                d.stop_reason
                for d in (watcher.connection.dialer, watcher.connection.acceptor)
                if d.decoding_stopped
            ]
            assert watcher.accounts_for_all_bytes()
        return found


def sail(profile: Profile, course: list[Step]) -> Sea:
    sea = Sea(profile)
    for step in course:
        sea.do(step)
    sea.settle()
    assert sea.findings() == []
    return sea


def stream_summary(implementation: Minmux) -> list[tuple[object, ...]]:
    return sorted(
        (
            stream.label(),
            implementation.ending(stream),
            *[
                (
                    half.credit_granted,
                    half.credit_spent,
                    half.promised_limit,
                    half.state,
                    half.content_bytes,
                    half.content_units,
                )
                for half in (stream.dialer, stream.acceptor)
            ],
        )
        for stream in implementation.streams.all()
    )


quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip


@quick
@given(steps)
def test_honest_ends_are_never_blamed_and_all_places_agree_in_the_end(course: list[Step]) -> None:
    sea = sail(instance(reuse=False, last=False), course)
    views = [stream_summary(implementation) for implementation in sea.implementations]
    for watcher in sea.observers:
        assert isinstance(watcher.protocol, Minmux)
        views.append(stream_summary(watcher.protocol))
    assert views == [views[0]] * 5


@quick
@given(steps)
def test_nor_are_they_where_streams_have_last_items(course: list[Step]) -> None:
    sea = sail(instance(reuse=False, last=True), course)
    assert stream_summary(sea.implementations[0]) == stream_summary(sea.implementations[1])


@quick
@given(steps)
@example([(12, 0, 0, 3), (6, 0, 0, 9), (0, 0, 0, 0), (3, 0, 0, 40), (5, 0, 0, 40)])
def test_nor_are_they_where_ids_are_used_again(course: list[Step]) -> None:
    sail(instance(reuse=True, last=False), course)


@quick
@given(steps)
def test_nor_are_they_where_ids_and_last_items_come_together(course: list[Step]) -> None:
    sail(instance(reuse=True, last=True), course)
