"""JSON metadata, and byte streams as messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.protocols.omnistreams.payloads import (
    decode_json,
    encode_json,
    rechunk,
    request_counts,
    split_into_chunks,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(JSON)
def test_json_comes_back_as_it_went(value: object) -> None:
    assert decode_json(encode_json(value)) == value


def test_json_is_compact_utf8() -> None:
    assert encode_json({"name": "Grüße", "id": 7}) == '{"name":"Grüße","id":7}'.encode()


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"x", {"x": object()}, "\ud800"])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON cannot represent this"):
        encode_json(value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"NaN", b"[" * 100_000, b"1" * 10_000])
def test_what_a_peer_sends_instead_of_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"{len(data)} bytes are not JSON"):
        decode_json(data)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_chunks_join_to_what_was_cut(data: bytes, size: int) -> None:
    cut = split_into_chunks(data, size)
    assert b"".join(cut) == data
    assert all(len(chunk) == size for chunk in cut[:-1])
    assert all(0 < len(chunk) <= size for chunk in cut)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 50))
def test_even_chunks_do_not_depend_on_how_the_bytes_came(pieces: list[bytes], size: int) -> None:
    assert list(rechunk(pieces, size)) == split_into_chunks(b"".join(pieces), size)


def test_a_chunk_of_no_bytes_is_refused() -> None:
    for size in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            split_into_chunks(b"x", size)
        with pytest.raises(ValueError, match="at least 1"):
            list(rechunk([b"x"], size))


@given(st.integers(0, 5000))
def test_counts_add_up_and_each_fits_a_byte(amount: int) -> None:
    found = request_counts(amount)
    assert sum(found) == amount
    assert all(0 < count <= 255 for count in found)
    assert len(found) == (amount + 254) // 255


def test_a_negative_amount_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        request_counts(-1)
