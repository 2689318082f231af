"""`python -m bench [PART...]`: run the named parts and their companions, or all parts."""

import importlib
import sys
import traceback

from bench.harness import Result
from bench.results import OUT, Began, show, write

# A part is a module with `measure()`, which returns results; the first line of its docstring is its
# description.
PARTS = (
    "kernels", "captures", "live", "pairs", "omnistreams", "streamux", "minmux", "pings",
    "fairness", "requests", "growth", "pipeline", "lake", "collect", "tunnel", "chaos", "doors",
    "processes",
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
    """Measure the parts. Each is written when it is done, and one that fails ends no other."""
    unknown = [name for name in arguments if name not in PARTS]
    if unknown:
        print(f"no part {unknown[0]!r}: choose from {', '.join(PARTS)}", file=sys.stderr)
        return 2
    lines: list[Result] = []
    failed = []
    for name in with_companions(arguments) or PARTS:
        try:
            lines += measure_part(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    show(lines)
    if failed:
        print(f"not measured, see above: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measure_part(name: str) -> list[Result]:
    part = importlib.import_module(f"bench.{name}")
    about = (part.__doc__ or "").splitlines()[0]
    print(f"{name}: {about}", flush=True)
    began = Began()
    lines: list[Result] = part.measure()
    for line in lines:
        line.part = name
    print(f"written to {write(lines, OUT, began, about)}", flush=True)
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
