"""Install polymux into empty environments with build isolation, and try what was installed.

    python -m tools.installs matrix             every ordinary way, on every supported Python found
    python -m tools.installs packages WHEEL     this wheel, and an sdist, where there is no compiler

Prints a line for each; the exit code is 1 if any failed. The README's first program, `polymux ls`
and `polymux doctor` run in each environment. In the matrix, `pip install .` compiles as it does for
users; the other ways compile without optimization, because what is tried there is the way.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.environments import NO_COMPILER, Environment, Failed, checkout, sdist
from tools.interpreters import SUPPORTED, find, found
from tools.wheels import repaired

AT_ONCE = 2
INSTALL_SECONDS = 10.0  # for a wheel, once everything is downloaded
QUICKLY = {"POLYMUX_COMPILE": "require", "POLYMUX_OPT": "0"}
TOO_OLD = "3.10"

Install = Callable[[Environment, Path], None]


@dataclass(frozen=True)
class Way:
    """A way to install from a checkout, and how the core must run afterwards."""

    text: str
    install: Install
    variables: dict[str, str]
    core: str = "compiled"


@dataclass(frozen=True)
class Outcome:
    """What became of one way on one Python."""

    python: str
    text: str
    ok: bool
    core: str
    seconds: float
    problem: str = ""


def from_checkout(*arguments: str) -> Install:
    def install(environment: Environment, source: Path) -> None:
        environment.pip("install", *arguments, cwd=source)

    return install


def from_wheel(environment: Environment, source: Path) -> None:
    made = source.parent / "wheels"
    environment.pip("wheel", ".", "-w", str(made), cwd=source)
    environment.pip("install", "--no-index", "--find-links", str(made), "polymux")


def from_sdist(environment: Environment, source: Path) -> None:
    environment.pip("install", str(sdist(environment.python, source, source.parent / "sdist")))


WAYS = (
    Way("pip install .", from_checkout("."), {}),
    Way("pip install '.[all]'", from_checkout(".[all]"), QUICKLY),
    Way("pip install -e .", from_checkout("-e", "."), QUICKLY),
    Way("pip wheel .", from_wheel, QUICKLY),
    Way("sdist, then pip install", from_sdist, QUICKLY),
    Way("without a compiler", from_checkout("."), NO_COMPILER, "interpreted"),
    Way("POLYMUX_COMPILE=no", from_checkout("."), {"POLYMUX_COMPILE": "no"}, "interpreted"),
    Way("POLYMUX_COMPILE=no, -e", from_checkout("-e", "."), {"POLYMUX_COMPILE": "no"},
        "interpreted"),
)  # fmt: skip


def attempt(way: Way, version: str, python: str) -> Outcome:
    """Install in this way and try the result; the seconds are those of installing."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        seconds = 0.0
        try:
            source = checkout(folder / "checkout")
            environment = Environment(folder / "environment", python, way.variables).make()
            began = time.monotonic()
            way.install(environment, source)
            seconds = time.monotonic() - began
            core = environment.try_all()
            if compiled := list((source / "src").rglob("*.so")):
                raise Failed(f"src holds compiled files: {compiled[0].name}")
        except Failed as failure:
            return Outcome(version, way.text, False, "", seconds, str(failure))
    return Outcome(version, way.text, core == way.core, core, seconds)


def refusal(version: str, python: str) -> Outcome:
    """A Python that is too old is refused by its version, and nothing is built."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = Environment(folder / "environment", python).make()
        source = checkout(folder / "checkout")
        began = time.monotonic()
        try:
            environment.pip("install", ".", cwd=source)
            problem = "it was installed"
        except Failed as failure:
            problem = str(failure)
        seconds = time.monotonic() - began
        refused = "requires a different Python" in problem and not (source / "build").exists()
    text = "pip install . is refused"
    return Outcome(version, text, refused, "", seconds, "" if refused else problem)


def matrix() -> list[Outcome]:
    pythons = found()
    missing = [version for version in SUPPORTED if version not in pythons]
    outcomes = [Outcome(each, "", False, "", 0, "not found: PYTHONS=...") for each in missing]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = [
            pool.submit(attempt, way, version, python)
            for version, python in pythons.items()
            for way in WAYS
        ]
        if too_old := find(TOO_OLD):
            started.append(pool.submit(refusal, TOO_OLD, too_old))
        for each in started:
            outcomes.append(shown(each.result()))
    return outcomes


def packages(wheel: Path) -> list[Outcome]:
    """Where there is no compiler a wheel runs compiled, an sdist interpreted."""
    python, version = sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}"
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        good = repaired(wheel, python, folder)
        from_source = Way("sdist, without a compiler", from_sdist, NO_COMPILER, "interpreted")
        return [
            shown(downloaded(good, version, python, folder)),  # alone, for its time counts
            shown(attempt(from_source, version, python)),
        ]


def downloaded(wheel: Path, version: str, python: str, folder: Path) -> Outcome:
    """Download what a wheel needs, install it from there, and see how long that took."""
    environment = Environment(folder / "environment", python, NO_COMPILER).make()
    store, text = str(folder / "downloads"), "wheel, without a compiler"
    try:
        environment.pip("download", "-d", store, str(wheel))
        began = time.monotonic()
        environment.pip("install", "--no-index", "--find-links", store, "polymux")
        seconds = time.monotonic() - began
        core = environment.try_all()
    except Failed as failure:
        return Outcome(version, text, False, "", 0, str(failure))
    slow = f"took more than {INSTALL_SECONDS:.0f} s" if seconds > INSTALL_SECONDS else ""
    return Outcome(version, text, core == "compiled" and not slow, core, seconds, slow)


def shown(outcome: Outcome) -> Outcome:
    mark = "ok" if outcome.ok else "FAILED"
    print(
        f"{mark:<7}{outcome.python:<6}{outcome.text:<28}{outcome.core:<12}"
        f"{outcome.seconds:6.0f} s  {outcome.problem}",
        flush=True,
    )
    return outcome


def main(arguments: list[str]) -> int:
    match arguments:
        case ["matrix"]:
            outcomes = matrix()
        case ["packages", wheel]:
            outcomes = packages(Path(wheel))
        case _:
            print(__doc__)
            return 2
    failed = [outcome for outcome in outcomes if not outcome.ok]
    print(f"{len(outcomes)} tried, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
