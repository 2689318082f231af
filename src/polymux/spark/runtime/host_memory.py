"""How much memory is left on this machine, and sizes written the way Java writes them."""

import os
import re
from pathlib import Path

from polymux.core.errors import PolymuxError

MIB = 1 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of a size such as `512m`, `1g` or `1536mb`; the unit must be named, as in Spark."""
    found = re.fullmatch(r"(\d{1,12})([kmgt])b?", text.strip().lower())
    if found is None:
        raise PolymuxError(f"memory {text!r} is not a size; write for example 512m or 2g")
    return int(found[1]) * _UNITS[found[2]]


def available_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes a new process can still have, or None where the system does not say.

    On Linux: memory and swap that are free or can be freed, and not more than the control groups
    this process lives in leave it. Elsewhere: all memory the machine has, an upper bound.
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
    """What each control group around this process leaves it; both versions of the interface."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used = cgroups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit, used = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # A parent's limit binds as well. In a container the path may not exist below our own
        # mount; its parents up to the mount do, and hold the limit.
        for place in [group, *group.parents]:
            if not place.is_relative_to(root):
                break
            room = _cgroup_free_memory(place, limit, used)
            if room is not None:
                rooms.append(room)
    return rooms


def _cgroup_free_memory(group: Path, limit: str, used: str) -> int | None:
    try:
        most = (group / limit).read_text().strip()
        now = int((group / used).read_text())
        stat = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if not most.isdigit():  # "max": no limit here
        return None
    # Pages of files that nobody uses count as used but are given back when asked for.
    reclaimable = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.M)
    return max(0, int(most) - now + (int(reclaimable[1]) if reclaimable else 0))
