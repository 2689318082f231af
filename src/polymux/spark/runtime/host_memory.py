"""Available memory of this machine, and sizes in Java's notation (512m, 2g)."""

import os
import re
from pathlib import Path

from polymux.core.errors import PolymuxError
from polymux.text.units import parse_bytes

MIB = 1 << 20


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `512m`, `1g` or `1536mb`; a unit is required, as in Spark.

    Raises:
        PolymuxError: The text is not a size.
    """
    size = parse_bytes(text)
    if size is None or text.strip().isdigit():
        raise PolymuxError(f"memory {text!r} is not a size; write for example 512m or 2g")
    return size


def available_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the bytes that a new process can allocate, or None if the system does not say.

    On Linux: available memory and free swap, limited by the control groups of this process.
    Elsewhere: the physical memory, an upper bound.
    """
    free = _system_free_memory(proc)
    if free is None:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return None
    return min([free, *_cgroups_free_memory(proc, cgroups)])


def _system_free_memory(proc: Path) -> int | None:
    try:
        text = (proc / "meminfo").read_text()
    except OSError:
        return None
    kibi = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}
    if "MemAvailable" not in kibi:
        return None
    return (kibi["MemAvailable"] + kibi.get("SwapFree", 0)) * 1024


def _cgroups_free_memory(proc: Path, cgroups: Path) -> list[int]:
    """Return the bytes that each control group of this process leaves it (cgroup v1 and v2)."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    free = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used = cgroups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit, used = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # The limits of parent groups apply too. In a container the group itself may not exist below
        # the mount; its parents do, and have the limit.
        for folder in [group, *group.parents]:
            if not folder.is_relative_to(root):
                break
            size = _cgroup_free_memory(folder, limit, used)
            if size is not None:
                free.append(size)
    return free


def _cgroup_free_memory(group: Path, limit: str, used: str) -> int | None:
    try:
        most = (group / limit).read_text().strip()
        now = int((group / used).read_text())
        stat = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if not most.isdigit():  # "max": no limit here
        return None
    # Inactive page cache counts as used, but the kernel reclaims it on demand.
    reclaimable = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.M)
    return max(0, int(most) - now + (int(reclaimable[1]) if reclaimable else 0))
