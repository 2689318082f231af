"""Durations, sizes and rates as text, of any magnitude."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.text.units import duration_text, parse_bytes, rate_text, size_text

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 us"),
        (850 * US, "850 us"),
        (8_300 * US, "8.3 ms"),
        (80 * MS, "80 ms"),
        (5 * SECOND, "5 s"),
        (1_250 * MS, "1.3 s"),
        (999_600 * US, "1 s"),
        (119_400 * MS, "119 s"),
        (119_600 * MS, "2 min 0 s"),
        (200 * SECOND, "3 min 20 s"),
        (7_199 * SECOND, "119 min 59 s"),
        (7_500 * SECOND, "2 h 5 min"),
    ],
)
def test_durations_read_naturally(ns: int, text: str) -> None:
    assert duration_text(ns) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (102_400, "100 KiB"),
        (1_572_864, "1.5 MiB"),
        (3 << 30, "3 GiB"),
        (1 << 40, "1 TiB"),
        (1 << 62, "4194304 TiB"),
    ],
)
def test_sizes_read_naturally(count: int, text: str) -> None:
    assert size_text(count) == text


@given(st.integers(0, 10**15))
def test_rates_have_a_unit_that_fits(size: int) -> None:
    number, unit = rate_text(size, SECOND).split()
    assert unit.endswith("bit/s")
    assert float(number) < 1000 or unit == "Gbit/s"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64k", 65536),
        ("64 KiB", 65536),
        (" 2GB ", 2 << 30),
        ("1t", 1 << 40),
        ("12b", 12),
        ("", None),
        ("k", None),
        ("-1", None),
        ("1.5G", None),
        ("1e9", None),
        ("64 kilobytes", None),
        ("9" * 17, None),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, size: int | None) -> None:
    assert parse_bytes(text) == size
