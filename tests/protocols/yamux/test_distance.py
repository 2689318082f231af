"""A window that grows through a link with a round trip of 80 ms, on a clock of its own."""

from collections import deque

from polymux.core.endpoint import Endpoint
from polymux.core.events import Credit, Data, Opened
from polymux.core.limits import Limits
from polymux.protocols.registry import create

ONE_WAY_MS = 40
ROUND_TRIP_MS = 2 * ONE_WAY_MS
LARGEST = 2 * 1024 * 1024


def received_each_millisecond(milliseconds: int) -> list[int]:
    """Bytes that arrive on one stream while its sender has always something to send."""
    limits = Limits(receive_window=262144, max_receive_window=LARGEST)
    near, far = (Endpoint(create("yamux", limits, vantage=side), side) for side in (0, 1))
    links: list[deque[tuple[int, bytes]]] = [deque(), deque()]
    stream = near.open()
    arrived = [0] * milliseconds
    for now in range(milliseconds):
        for side, end in ((0, near), (1, far)):
            link = links[1 - side]
            while link and link[0][0] <= now:
                for event in end.receive(link.popleft()[1], now / 1000):
                    assert event.stream is not None or side == 0 or not isinstance(event, Data)
                    if isinstance(event, Opened) and event.stream is not None:
                        end.accept(event.stream)
                    elif isinstance(event, Data) and event.stream is not None:
                        arrived[now] += len(event.data)
                        end.read(event.stream, len(event.data))
                    elif isinstance(event, Credit):
                        end.resume(stream)
            end.now = now * 1_000_000
            buffers = stream.buffers
            assert buffers is not None
            if side == 0 and buffers.queued_bytes < LARGEST:
                near.send(stream, bytes(LARGEST))
            data = end.data_to_send(1 << 30)
            if data:
                links[side].append((now + ONE_WAY_MS, data))
    return arrived


def test_after_ten_round_trips_it_carries_what_the_largest_window_allows() -> None:
    arrived = received_each_millisecond(16 * ROUND_TRIP_MS)
    first = next(at for at, size in enumerate(arrived) if size)
    grown = arrived[first + 10 * ROUND_TRIP_MS : first + 15 * ROUND_TRIP_MS]
    assert sum(grown) >= 0.9 * 5 * LARGEST
    assert sum(arrived[first : first + ROUND_TRIP_MS]) <= 262144
