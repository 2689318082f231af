"""Frames written out: header forms, masks, and what the writers refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from polymux.core.errors import LocalProtocolError
from polymux.core.websocket.frames import (
    INCOMPLETE,
    MASK_BLOCK_BYTES,
    NO_STATUS,
    WebSocketFrameHeader,
    binary_frame,
    close_frame,
    encode_frame,
    is_valid_close_code,
    mask_blocks,
    mask_words,
    masked,
    ping_frame,
    pong_frame,
    write_binary,
)

KEY = b"\x01\x02\x03\x04"
keys = st.binary(min_size=4, max_size=4)
sizes = st.one_of(
    st.integers(0, 40),
    st.integers(MASK_BLOCK_BYTES - 9, MASK_BLOCK_BYTES + 9),
    st.just(3 * MASK_BLOCK_BYTES + 5),
)


def plainly_masked(data: bytes, key: bytes, phase: int) -> bytes:
    return bytes(byte ^ key[(place + phase) % 4] for place, byte in enumerate(data))


@given(sizes, st.binary(min_size=1, max_size=50), keys, st.integers(0, 3), st.integers(0, 9))
def test_all_ways_to_mask_agree_with_the_definition(
    size: int, seed: bytes, key: bytes, phase: int, start: int
) -> None:
    data = (seed * (start + size + 1))[: start + size + 3]
    expected = plainly_masked(data[start : start + size], key, phase)
    assert masked(data, start, start + size, key, phase) == expected
    for way in (mask_words, mask_blocks):
        out = BytesWriter()
        out.write(b"before")
        way(out, data, start, start + size, key, phase)
        assert out.getvalue() == b"before" + expected


@given(st.binary(max_size=100), keys, st.integers(0, 100))
def test_a_mask_goes_on_over_parts_and_undoes_itself(data: bytes, key: bytes, cut: int) -> None:
    cut = min(cut, len(data))
    first = masked(data, 0, cut, key)
    second = masked(data, cut, len(data), key, cut % 4)
    assert masked(first + second, 0, len(data), key) == data


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, "8200"),
        (125, "827d"),
        (126, "827e007e"),
        (65535, "827effff"),
        (65536, "827f0000000000010000"),
    ],
)
def test_a_length_is_written_in_its_shortest_form(size: int, head: str) -> None:
    payload = b"\xaa" * size
    assert binary_frame(payload) == bytes.fromhex(head) + payload


def test_a_masked_frame_carries_its_key_and_the_mask_bit() -> None:
    assert binary_frame(b"Hello", bytes.fromhex("37fa213d")).hex() == "828537fa213d7f9f4d5158"
    assert binary_frame(bytes(126), KEY)[:8].hex() == "82fe007e01020304"
    assert binary_frame(b"", KEY).hex() == "828001020304"


def test_frames_are_appended_to_a_writer() -> None:
    out = BytesWriter()
    write_binary(out, b"a")
    write_binary(out, b"b" * 200, KEY)
    assert out.getvalue() == binary_frame(b"a") + binary_frame(b"b" * 200, KEY)


def test_a_frame_without_its_final_bit() -> None:
    assert encode_frame(2, b"a", final=False).hex() == "020161"
    assert encode_frame(0, b"b", final=True).hex() == "800162"


def test_pings_pongs_and_closes() -> None:
    assert ping_frame().hex() == "8900"
    assert ping_frame(b"ab").hex() == "89026162"
    assert pong_frame(b"ab", KEY).hex() == "8a82010203046060"
    assert close_frame().hex() == "880203e8"
    assert close_frame(1001, "ok").hex() == "880403e96f6b"
    assert close_frame(NO_STATUS).hex() == "8800"
    assert close_frame(NO_STATUS, key=KEY).hex() == "888001020304"


@given(st.text(max_size=200))
def test_a_reason_of_any_length_fits_and_stays_utf8(reason: str) -> None:
    data = close_frame(1000, reason)
    text = data[4:].decode("utf-8")
    assert len(data) <= 127
    whole = reason.encode("utf-8", "replace")
    assert whole.startswith(data[4:])
    if len(whole) <= 123:
        assert text.encode() == whole
    else:
        assert len(data) > 127 - 4  # no more is cut than one character


@pytest.mark.parametrize("code", [0, 999, 1004, 1006, 1015, 2999, 5000, 65536])
def test_a_close_code_that_may_not_be_sent_is_refused(code: int) -> None:
    assert not is_valid_close_code(code)
    with pytest.raises(LocalProtocolError, match=f"{code} must not be sent in a close frame"):
        close_frame(code)


def test_a_long_ping_is_refused() -> None:
    assert len(ping_frame(bytes(125))) == 127
    with pytest.raises(LocalProtocolError, match="at most 125 bytes, not 126"):
        ping_frame(bytes(126))
    with pytest.raises(LocalProtocolError, match="at most 125 bytes"):
        pong_frame(bytes(126))


@pytest.mark.parametrize("key", [b"", b"abc", b"abcde"])
def test_a_key_of_another_length_is_refused_before_anything_is_written(key: bytes) -> None:
    out = BytesWriter()
    with pytest.raises(LocalProtocolError, match="4 bytes"):
        write_binary(out, b"payload", key)
    assert len(out) == 0


@given(st.integers(0, 255), st.integers(0, 70000), st.one_of(st.none(), keys))
def test_a_header_is_read_as_it_was_written_and_never_early(
    first: int, size: int, key: bytes | None
) -> None:
    whole = encode_frame(first & 15, bytes(size), key, first >= 128)
    data = whole[: len(whole) - size]
    head = WebSocketFrameHeader()
    for end in range(len(data)):
        assert head.read(data, 0, end) == INCOMPLETE
    assert head.read(b"..." + data, 3, 3 + len(data)) == len(data)
    assert (head.first_byte & 0x8F, head.payload_size, head.masking_key) == (
        first & 0x8F,
        size,
        key,
    )
    assert head.length_is_minimal
