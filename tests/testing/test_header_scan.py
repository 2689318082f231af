"""A `Connection` finds the same frames as a scan of the headers alone."""

from random import Random

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polymux.protocols.registry import create
from polymux.testing.header_scan import HeaderScan
from polymux.testing.properties import new_middle_observer, split_randomly, take_rows
from polymux.testing.simulator import Simulation

Found = tuple[int, int, int, int]  # offset, size with payload, kind, payload size


def chained(text: str, sender: int, data: bytes, rng: Random) -> list[Found]:
    """Scan in windows, each from where the previous scan ended, as a capture is read."""
    protocol = create(text)
    found: list[Found] = []
    pos = 0
    while pos < len(data):
        window = data[pos : pos + rng.choice((30, 200, 5000))]
        chain = HeaderScan(rng.choice((1, 3, 1000)))
        after = pos + chain.read(protocol, sender, window, 0, pos)
        for i in range(chain.used):
            end = chain.payload_offset[i] + chain.payload_size[i]
            found.append(
                (
                    chain.header_offset[i],
                    end - chain.header_offset[i],
                    chain.kind[i],
                    chain.payload_size[i],
                )
            )
            assert chain.payload_offset[i] - chain.header_offset[i] == chain.header_size[i]
        if after == pos:  # the window ends inside a header, and so does the direction
            break
        pos = after
    return found


@pytest.mark.parametrize("text", ["mplex", "nerdbank:version=3"])
def test_the_loop_finds_what_the_chain_of_headers_finds(text: str) -> None:
    for seed in range(20):
        world = Simulation(text, seed)
        world.run(80)
        rng = Random(seed)
        observer = new_middle_observer(text)
        whole = [b"", b""]
        for side, data, at in world.record:
            whole[side] += data
            for piece in split_randomly(data, rng):
                observer.feed(side, piece, at)
        rows = take_rows(observer)
        for side in (0, 1):
            seen = [(row[3], row[4], row[5], row[10]) for row in rows if row[0] == side]
            assert seen == chained(text, side, whole[side], rng)
            assert seen


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=30), st.integers(0, 10))
def test_views_of_the_payloads_are_the_payloads(payloads: list[bytes], cut: int) -> None:
    data = b"".join(b"\x0a" + bytes([len(payload)]) + payload for payload in payloads)
    data = data[: len(data) - cut]
    chain = HeaderScan(100)
    chain.read(create("mplex"), 0, data, 0, 1000)
    assume(chain.used > 0)
    views = chain.payload_views(data, 1000)
    buffers = [None, pa.py_buffer(views), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.binary_view(), chain.used, buffers)
    column.validate(full=True)
    expected = [
        data[chain.payload_offset[i] - 1000 :][: chain.payload_size[i]] for i in range(chain.used)
    ]
    assert column.cast(pa.binary()).to_pylist() == expected
    assert cut or expected == payloads
