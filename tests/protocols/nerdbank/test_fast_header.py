"""The fast path for Nerdbank v3 content headers decodes the same as the slow path."""

from hypothesis import example, given
from hypothesis import strategies as st

from polymux.core.frames import FrameHeader
from polymux.protocols.nerdbank.codec import decode_content_header_v3, decode_header_v2_v3

LIMIT = 65536

numbers = st.one_of(
    st.integers(0, 127).map(lambda n: bytes([n])),
    st.integers(0, 255).map(lambda n: bytes([0xCC, n])),
    st.integers(0, 65535).map(lambda n: b"\xcd" + n.to_bytes(2, "big")),
    st.integers(0, 2**32 - 1).map(lambda n: b"\xce" + n.to_bytes(4, "big")),
)
sizes = st.one_of(
    st.integers(0, 255).map(lambda n: bytes([0xC4, n])),
    st.integers(0, 65535).map(lambda n: b"\xc5" + n.to_bytes(2, "big")),
    st.just(b"\xc0"),
)
shapes = st.sampled_from([b"\x94\x02", b"\x94\x03", b"\x93\x02", b"\x95\x02", b"\x94\x02"])
sources = st.sampled_from([b"\x01", b"\xff", b"\x00", b"\x02", b"\xd0\xff"])
headers = st.tuples(shapes, numbers, sources, sizes).map(b"".join)


def fields(head: FrameHeader) -> tuple[int, ...]:
    return (
        head.kind,
        head.stream_id,
        head.opener,
        head.payload_size,
        head.trailer_size,
        head.format_violations,
    )


@given(st.one_of(headers, st.binary(max_size=12)), st.integers(0, 12), st.integers(0, 1))
@example(b"\x94\x02\xcd\xff\xff\xff\xc5\x50\x00", 0, 1)
@example(b"\x94\x02\x05\x01\xc4\x05hello", 0, 0)
def test_both_ways_read_the_same_header(start: bytes, more: int, sender: int) -> None:
    data = start + bytes(more)
    short, general = FrameHeader(), FrameHeader()
    at = decode_content_header_v3(data, 0, len(data), sender, short)
    expected = decode_header_v2_v3(data, 0, len(data), 3, LIMIT, sender, general)
    if at > 0:
        assert at == expected
        assert fields(short) == fields(general)
        assert short.credit_cost == short.payload_size
        assert short.key == short.stream_id * 4 + short.opener


def test_usual_content_takes_the_short_way() -> None:
    for header in (b"\x94\x02\x07\x01\xc4\x09", b"\x94\x02\xcc\x80\xff\xc5\x01\x00"):
        head = FrameHeader()
        assert decode_content_header_v3(header + bytes(9), 0, len(header) + 9, 0, head) == len(
            header
        )


def test_content_beyond_the_usual_size_does_not() -> None:
    data = b"\x94\x02\x07\x01\xc5\x50\x01" + bytes(9)
    assert decode_content_header_v3(data, 0, len(data), 0, FrameHeader()) == 0
