"""What a trial looks for among the rows of a protocol that may not be the right one: thousands."""

from mypy_extensions import i64

from ...core.frames import VIOLATION_ROW, Batch


def largest_payloads(batch: Batch) -> tuple[int, int]:
    """Octets of content in the largest frame of each side."""
    first: i64 = 0
    second: i64 = 0
    for i in range(batch.used):
        size = batch.payload[i]
        if batch.sender[i] == 0:
            if size > first:
                first = size
        elif size > second:
            second = size
    return first, second


def broken_rows(batch: Batch) -> list[tuple[int, int, int]]:
    """Sender, ordinal and size of the frames that broke a rule."""
    found: list[tuple[int, int, int]] = []
    for i in range(batch.used):
        if batch.verdict[i] == VIOLATION_ROW:
            found.append((int(batch.sender[i]), int(batch.ordinal[i]), int(batch.size[i])))
    return found
