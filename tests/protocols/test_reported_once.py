"""A fault is reported once per frame, and only about its sender."""

import pytest

from polymux.core.observer import Observer
from polymux.core.side import Vantage
from polymux.protocols.registry import create

Pieces = list[tuple[int, str]]


def watched(text: str, pieces: Pieces, vantage: int = Vantage.MIDDLE, cut: int = 0) -> Observer:
    """Return an observer that was fed these pieces, split into `cut` bytes or unsplit."""
    observer = Observer(create(text, vantage=vantage))
    for at, (side, raw) in enumerate(pieces):
        data = bytes.fromhex(raw)
        for start in range(0, len(data), cut or len(data)):
            observer.feed(side, data[start : start + (cut or len(data))], at)
    return observer


def reported(observer: Observer) -> list[tuple[str, int, int, str]]:
    return [
        (v.rule.name, int(v.sender), v.frame_index, v.stream) for v in observer.take_violations()
    ]


def endings(observer: Observer) -> dict[str, tuple[str, int]]:
    streams = observer.protocol.streams.all()
    return {s.label(): (observer.protocol.ending(s), int(s.reset_by)) for s in streams}


CROSSING: Pieces = [(0, "010a0464"), (1, "010a0464"), (0, "1480 78"), (1, "24c0 6f6b"),
                    (0, "0400"), (1, "0440")]  # fmt: skip


@pytest.mark.parametrize("seen_from", [Vantage.MIDDLE, Vantage.ACCEPTOR])
def test_a_reply_that_crossed_its_cancel_leaves_the_exchange_cancelled(seen_from: Vantage) -> None:
    observer = watched("streamux", CROSSING, seen_from)
    assert endings(observer) == {"d4": ("cancelled", 0)}
    (stream,) = observer.protocol.streams.all()
    assert (stream.dialer.content_bytes, stream.acceptor.content_bytes) == (1, 2)
    assert reported(observer) == []


def test_a_reply_that_was_read_before_the_cancel_ends_the_exchange_cleanly() -> None:
    observer = watched("streamux", CROSSING, Vantage.DIALER)
    assert endings(observer) == {"d4": ("clean", -1)}
    assert reported(observer) == [("streamux.cancel-unknown", 0, 2, "d4")]


def test_a_reply_is_not_read_before_its_last_byte_has_come() -> None:
    pieces: Pieces = [(0, "010a0464"), (1, "010a0464"), (0, "1480 78"), (1, "24c0 6f"),
                      (0, "0400"), (1, "6b"), (1, "0440")]  # fmt: skip
    observer = watched("streamux", pieces, Vantage.DIALER)
    assert endings(observer) == {"d4": ("cancelled", 0)}
    assert reported(observer) == []


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_reply_to_nothing_is_reported_once_a_frame(cut: int) -> None:
    pieces: Pieces = [(0, "010a0464"), (1, "010a0464"), (1, "24406f6b 24c06f6b 05c0")]
    assert reported(watched("streamux", pieces, cut=cut)) == [
        ("streamux.reply-unknown", 1, frame, "") for frame in (1, 2, 3)
    ]


@pytest.mark.parametrize("cut", [0, 1])
def test_credit_given_up_that_is_not_held_is_reported_once_a_frame(cut: int) -> None:
    pieces: Pieces = [(0, "0004"), (1, "8009"), (1, "800a"), (1, "0000 61")]
    assert reported(watched("minmux", pieces, cut=cut)) == [
        ("minmux.forgo-exceeds-credit", 1, 0, "a0"), ("minmux.forgo-exceeds-credit", 1, 1, "a0"),
    ]  # fmt: skip


def test_the_first_content_on_a_seeded_channel_keeps_to_its_window() -> None:
    content = "94 02 00 00 c4 06 616263646566"
    assert reported(watched("nerdbank:seeded=5", [(0, content)])) == [
        ("nerdbank.window-exceeded", 0, 0, "s0")
    ]
    assert reported(watched("nerdbank:seeded=6", [(0, content)])) == []


def test_nothing_can_be_acknowledged_on_a_seeded_channel_before_content() -> None:
    assert reported(watched("nerdbank:seeded=5", [(0, "94 05 00 00 c4 02 91 01")])) == [
        ("nerdbank.acknowledged-too-much", 0, 0, "s0")
    ]


TWICE: Pieces = [
    (0, "94 00 01 01 c4 07 92 a4 6563686f 7f"), (1, "94 01 01 ff c4 02 91 7f"),
    (0, "94 00 01 01 c4 07 92 a4 6563686f 01"), (1, "94 02 01 ff c4 02 6869"), (1, "93 03 01 ff"),
]  # fmt: skip


@pytest.mark.parametrize("seen_from", [Vantage.MIDDLE, Vantage.DIALER])
def test_frames_that_cross_a_second_offer_of_their_channel_are_not_reported(
    seen_from: Vantage,
) -> None:
    assert reported(watched("nerdbank", TWICE, seen_from)) == [("nerdbank.id-reused", 0, 1, "d1.2")]


def test_a_side_that_has_read_the_second_offer_is_blamed_for_what_it_sends_unaccepted() -> None:
    assert ("nerdbank.content-before-acceptance", 1, 1, "d1.2") in reported(
        watched("nerdbank", TWICE, Vantage.ACCEPTOR)
    )


def test_an_answer_to_stray_data_does_not_end_the_next_stream_of_its_id() -> None:
    create, end, request, data, cancel = "01{0}", "03{0}", "05{0}01", "02{0}", "06{0}"
    steps = [(1, create, "05"), (1, end, "05"), (1, create, "06"), (0, request, "06"),
            (1, data, "05"), (1, create, "05"), (0, cancel, "05"), (0, request, "05")]  # fmt: skip
    messages = [(side, message.format(number)) for side, message, number in steps]
    sized = [(side, f"{len(text) // 2:08x}{text}") for side, text in messages]
    observer = watched("omnistreams:carrier=length", sized)
    assert reported(observer) == [("omnistreams.data-on-unknown-id", 1, 3, "a5")]
