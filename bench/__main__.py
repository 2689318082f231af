"""`python -m bench [PART...]`: run the named parts and their companions, or all parts."""

import importlib
import importlib.util
import sys
from pathlib import Path

from bench.harness import Result
from bench.results import show, write

# A part is a module with `measure()`, which returns results; the first line of its docstring is its
# description.
PARTS = (
    "kernels", "captures", "live", "pairs", "omnistreams", "streamux", "minmux", "pings",
    "fairness", "pipeline", "lake", "streaming", "collect", "tunnel", "chaos", "doors",
)  # fmt: skip
# Companions: sessions beside raw sockets, beside their peers, and pings and fairness under load.
RUN_WITH = {
    "live": ("live", "pairs", "pings", "fairness"),
    "pairs": ("pairs", "pings", "fairness"),
}


def with_companions(names: list[str]) -> list[str]:
    """The named parts and their companions, each once."""
    return list(dict.fromkeys(part for name in names for part in RUN_WITH.get(name, (name,))))


def main(arguments: list[str]) -> int:
    present = [name for name in PARTS if importlib.util.find_spec(f"bench.{name}") is not None]
    unknown = [name for name in arguments if name not in present]
    if unknown:
        print(f"no part {unknown[0]!r}: choose from {', '.join(present)}", file=sys.stderr)
        return 2
    lines: list[Result] = []
    for name in with_companions(arguments) or present:
        part = importlib.import_module(f"bench.{name}")
        print(f"{name}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
        found: list[Result] = part.measure()
        for line in found:
            line.part = name
        lines += found
    show(lines)
    print(f"written to {write(lines, Path(__file__).parent / 'out')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
