"""Install polymux into empty environments with build isolation, and check each installation.

    python -m tools.installs matrix             every usual method, on every supported Python found
    python -m tools.installs packages WHEEL     this wheel, and an sdist, without a compiler

Prints a line for each; the exit code is 1 if any failed. The README's first program, `polymux ls`
and `polymux doctor` run in each environment. In the matrix, `pip install .` compiles as it does for
users; the other methods compile without optimization, to save time.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.environments import NO_COMPILER, CommandFailed, Environment, checkout, sdist
from tools.interpreters import SUPPORTED, find_python, supported_pythons
from tools.wheels import repair_wheel

PARALLEL_INSTALLS = 2
INSTALL_SECONDS = 10.0  # most seconds for a wheel, after everything was downloaded
UNOPTIMIZED = {"POLYMUX_COMPILE": "require", "POLYMUX_OPT": "0"}
TOO_OLD = "3.10"

Install = Callable[[Environment, Path], None]


@dataclass(frozen=True)
class InstallMethod:
    """A method of installing from a checkout, and whether the core must be compiled afterwards."""

    text: str
    install: Install
    variables: dict[str, str]
    core: str = "compiled"


@dataclass(frozen=True)
class InstallResult:
    """The result of one method on one Python."""

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


INSTALL_METHODS = (
    InstallMethod("pip install .", from_checkout("."), {}),
    InstallMethod("pip install '.[all]'", from_checkout(".[all]"), UNOPTIMIZED),
    InstallMethod("pip install -e .", from_checkout("-e", "."), UNOPTIMIZED),
    InstallMethod("pip wheel .", from_wheel, UNOPTIMIZED),
    InstallMethod("sdist, then pip install", from_sdist, UNOPTIMIZED),
    InstallMethod("without a compiler", from_checkout("."), NO_COMPILER, "interpreted"),
    InstallMethod(
        "POLYMUX_COMPILE=no", from_checkout("."), {"POLYMUX_COMPILE": "no"}, "interpreted"
    ),
    InstallMethod(
        "POLYMUX_COMPILE=no, -e", from_checkout("-e", "."), {"POLYMUX_COMPILE": "no"}, "interpreted"
    ),
)


def try_install(method: InstallMethod, version: str, python: str) -> InstallResult:
    """Install with this method and check the installation; `seconds` covers installing only."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        seconds = 0.0
        try:
            source = checkout(folder / "checkout")
            environment = Environment(folder / "environment", python, method.variables).make()
            began = time.monotonic()
            method.install(environment, source)
            seconds = time.monotonic() - began
            core = environment.check_installation()
            if compiled := list((source / "src").rglob("*.so")):
                raise CommandFailed(f"src holds compiled files: {compiled[0].name}")
        except CommandFailed as failure:
            return InstallResult(version, method.text, False, "", seconds, str(failure))
    return InstallResult(version, method.text, core == method.core, core, seconds)


def check_refusal(version: str, python: str) -> InstallResult:
    """Check that pip rejects a Python that is too old, before anything is built."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = Environment(folder / "environment", python).make()
        source = checkout(folder / "checkout")
        began = time.monotonic()
        try:
            environment.pip("install", ".", cwd=source)
            problem = "it was installed"
        except CommandFailed as failure:
            problem = str(failure)
        seconds = time.monotonic() - began
        refused = "requires a different Python" in problem and not (source / "build").exists()
    text = "pip install . is refused"
    return InstallResult(version, text, refused, "", seconds, "" if refused else problem)


def matrix() -> list[InstallResult]:
    pythons = supported_pythons()
    missing = [version for version in SUPPORTED if version not in pythons]
    results = [
        InstallResult(version, "", False, "", 0, "not found: PYTHONS=...") for version in missing
    ]
    with ThreadPoolExecutor(PARALLEL_INSTALLS) as pool:
        started = [
            pool.submit(try_install, method, version, python)
            for version, python in pythons.items()
            for method in INSTALL_METHODS
        ]
        if too_old := find_python(TOO_OLD):
            started.append(pool.submit(check_refusal, TOO_OLD, too_old))
        for future in started:
            results.append(print_result(future.result()))
    return results


def packages(wheel: Path) -> list[InstallResult]:
    """Without a compiler: a wheel must run compiled, an sdist interpreted."""
    python, version = sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}"
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        good = repair_wheel(wheel, python, folder)
        from_source = InstallMethod(
            "sdist, without a compiler", from_sdist, NO_COMPILER, "interpreted"
        )
        return [
            # Not in parallel with the other: its time counts.
            print_result(install_offline(good, version, python, folder)),
            print_result(try_install(from_source, version, python)),
        ]


def install_offline(wheel: Path, version: str, python: str, folder: Path) -> InstallResult:
    """Download what a wheel needs, install it offline, and measure how long that takes."""
    environment = Environment(folder / "environment", python, NO_COMPILER).make()
    store, text = str(folder / "downloads"), "wheel, without a compiler"
    try:
        environment.pip("download", "-d", store, str(wheel))
        began = time.monotonic()
        environment.pip("install", "--no-index", "--find-links", store, "polymux")
        seconds = time.monotonic() - began
        core = environment.check_installation()
    except CommandFailed as failure:
        return InstallResult(version, text, False, "", 0, str(failure))
    slow = f"took more than {INSTALL_SECONDS:.0f} s" if seconds > INSTALL_SECONDS else ""
    return InstallResult(version, text, core == "compiled" and not slow, core, seconds, slow)


def print_result(result: InstallResult) -> InstallResult:
    mark = "ok" if result.ok else "FAILED"
    print(
        f"{mark:<7}{result.python:<6}{result.text:<28}{result.core:<12}"
        f"{result.seconds:6.0f} s  {result.problem}",
        flush=True,
    )
    return result


def main(arguments: list[str]) -> int:
    match arguments:
        case ["matrix"]:
            results = matrix()
        case ["packages", wheel]:
            results = packages(Path(wheel))
        case _:
            print(__doc__)
            return 2
    failed = [result for result in results if not result.ok]
    print(f"{len(results)} tried, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
