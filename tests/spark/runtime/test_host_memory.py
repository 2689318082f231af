"""Sizes as Java writes them, and what the system says is left."""

from pathlib import Path

import pytest

from polymux.core.errors import PolymuxError
from polymux.spark.runtime.host_memory import available_memory, parse_size

MEMINFO = (
    "MemTotal: 8000000 kB\nMemAvailable:  4000000 kB\nSwapFree:  1000 kB\nHugePages_Total: 0\n"
)


def machine(folder: Path, groups: dict[str, str], line: str = "0::/box/inner") -> tuple[Path, Path]:
    """A /proc and a /sys/fs/cgroup with these files."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self" / "cgroup").write_text(f"{line}\n")
    for name, text in groups.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc, cgroups


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512 << 20), ("1g", 1 << 30), ("2GB", 2 << 30), (" 1536mb ", 1536 << 20)],
)
def test_sizes_are_read_as_java_writes_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1", "g", "-1g", "1.5g", "1g 2g", "9" * 20 + "g", "1x"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PolymuxError, match="512m or 2g"):
        parse_size(text)


def test_this_machine_says_how_much_is_left() -> None:
    free = available_memory()
    assert free is not None
    assert free > 1 << 20


def test_without_a_limit_all_of_the_machine_is_left(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, {"box/inner/memory.max": "max\n"})
    assert available_memory(proc, cgroups) == 4001000 * 1024


def test_a_limit_further_out_binds_as_well(tmp_path: Path) -> None:
    groups = {
        "box/inner/memory.max": "max\n",
        "box/memory.max": f"{1 << 30}\n",
        "box/memory.current": f"{900 << 20}\n",
        "box/memory.stat": f"anon 5\ninactive_file {100 << 20}\n",
    }
    proc, cgroups = machine(tmp_path, groups)
    assert available_memory(proc, cgroups) == (1024 - 900 + 100) << 20


def test_the_older_interface_is_read_too(tmp_path: Path) -> None:
    groups = {
        "memory/box/memory.limit_in_bytes": f"{512 << 20}\n",
        "memory/box/memory.usage_in_bytes": f"{12 << 20}\n",
        "memory/box/memory.stat": "total_inactive_file 0\n",
    }
    proc, cgroups = machine(tmp_path, groups, "9:cpu,memory:/box")
    assert available_memory(proc, cgroups) == 500 << 20


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    groups = {"memory.max": "10\n", "memory.current": "20\n", "memory.stat": ""}
    proc, cgroups = machine(tmp_path, groups, "0::/")
    assert available_memory(proc, cgroups) == 0
