"""The header fast paths decode the same as the slow paths, for any bytes."""

from hypothesis import example, given
from hypothesis import strategies as st

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.protocol import Protocol
from polymux.protocols.mplex.protocol import Mplex
from polymux.protocols.streamux.protocol import Streamux

varints = st.integers(0, 2**40).map(
    lambda n: bytes(
        [*(n >> shift & 127 | 128 for shift in range(0, max(0, n.bit_length() - 1) // 7 * 7, 7)),
         n >> max(0, n.bit_length() - 1) // 7 * 7]
    )
)  # fmt: skip
mplex_headers = st.tuples(varints, varints, st.binary(max_size=4)).map(b"".join)


def fields(head: FrameHeader) -> tuple[int, ...]:
    return (
        head.kind,
        head.key,
        head.stream_id,
        head.opener,
        head.payload_size,
        head.trailer_size,
        head.credit_cost,
        head.parts_left,
        head.amount,
        head.text_size,
        head.format_violations,
    )


@given(st.one_of(mplex_headers, st.binary(max_size=12)), st.integers(0, 1))
@example(b"\x80\x01\x05hello", 0)
@example(b"\x80\x00\x05hello", 0)
@example(b"\x0a\x80\x00\x00", 1)
@example(b"\xff\x7f\xff\x7f", 1)
def test_mplex_headers_are_read_the_same_both_ways(data: bytes, sender: int) -> None:
    implementation = Mplex(Limits(), 2)
    short, general = FrameHeader(), FrameHeader()
    at = implementation.decode_header(sender, data, 0, len(data), short)
    assert at == implementation.decode_header_slow(sender, data, 0, len(data), general)
    if at > 0:
        assert fields(short) == fields(general)


layouts = st.sampled_from([(16, 14), (17, 13), (1, 29), (29, 1), (10, 4)])


@given(layouts, layouts, st.binary(max_size=8), st.integers(0, 1))
@example((16, 14), (16, 14), b"\x01\x40\x01\xc0abcd", 1)
@example((17, 13), (16, 14), b"\x01\x40\x01\x40abcd", 0)
def test_streamux_headers_are_read_the_same_both_ways(
    ours: tuple[int, int], theirs: tuple[int, int], data: bytes, sender: int
) -> None:
    implementation = Streamux(Limits(), 2)
    observer = Observer(implementation)
    observer.feed(0, bytes([1, *ours, 0]), 0)
    observer.feed(1, bytes([1, *theirs, 0]), 0)
    short, general = FrameHeader(), FrameHeader()
    at = implementation.decode_header(sender, data, 0, len(data), short)
    assert at == implementation.decode_header_slow(sender, data, 0, len(data), general)
    if at > 0:
        assert fields(short) == fields(general)


mplex_frames = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 6))  # side, id, flag


@given(st.lists(mplex_frames, max_size=12), st.integers(0, 3))
@example([(0, 1, 0), (0, 1, 2), (1, 1, 3)], 2)  # the other half is closed
@example([(0, 1, 0), (1, 1, 5), (0, 1, 0)], 2)  # the second use of its id
def test_mplex_content_is_judged_and_applied_the_same_both_ways(
    history: list[tuple[int, int, int]], vantage: int
) -> None:
    observer = Observer(Mplex(Limits(), vantage))
    for side, number, flag in history:
        observer.feed(side, bytes([number << 3 | flag, 0]), 0)
    saved = observer.protocol.save()
    for side, number, flag in ((s, n, f) for s in (0, 1) for n in (0, 1, 2) for f in (1, 2)):
        ways = []
        for way in (Mplex.validate_and_apply_content, Protocol.validate_and_apply_content):
            implementation = Mplex(Limits(), vantage)
            implementation.load(saved)
            implementation.causality.snapshot_seen(side)
            head = FrameHeader()
            implementation.decode_header(side, bytes([number << 3 | flag, 3]) + b"abc", 0, 5, head)
            stream = implementation.streams.find(head.key)
            if stream is not None:
                passed = way(implementation, side, head, stream, 7)
                if passed:
                    assert implementation.frame_stream is stream
                ways.append((passed, implementation.content_counts, implementation.save()))
        assert ways[:1] == ways[1:]
