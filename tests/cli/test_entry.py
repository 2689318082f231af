"""How the command is started and asked for help, completed, and what the demo asks for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from polymux.cli import COMMANDS

Run = Callable[..., Ran]
START = "import sys; {before}; sys.argv = ['polymux', *sys.argv[1:]]\n" + (
    "from polymux.cli import main; main()"
)

ROOT = Path(__file__).parents[2]

# Python runs this first: it interrupts the process when a certain module is about to be imported.
INTERRUPTING = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""


def script() -> list[str]:
    """What the installed command does, by what the project says of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["polymux"].partition(":")
    return ["-c", f"import sys; from {module} import {function}; sys.exit({function}())"]


def interrupted_at(
    name: str, start: list[str], folder: Path, before: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Start the command, which is interrupted as it imports the module `name`."""
    (folder / "sitecustomize.py").write_text(INTERRUPTING)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *start, "rules", "mplex.bad-flag"],
        env={**os.environ, "PYTHONPATH": path, "INTERRUPTED_AT": name},
        capture_output=True, text=True, timeout=60, preexec_fn=before,
    )  # fmt: skip


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    done = subprocess.run(
        [sys.executable, "-c", START.format(before="pass")],
        capture_output=True, text=True, timeout=60,
        env={
            **os.environ,
            "_POLYMUX_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "polymux", "rules", "mplex.bad-flag"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mplex.bad-flag" in done.stdout


IMPORTED = ["polymux", "polymux.core.errors", "polymux.cli", "click", "polymux.cli.commands.rules"]


@pytest.mark.parametrize("name", IMPORTED)
def test_an_interrupt_while_the_command_is_imported_is_one_line_and_130(
    name: str, tmp_path: Path
) -> None:
    done = interrupted_at(name, script(), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "polymux: interrupted\n")


@pytest.mark.parametrize("name", ["polymux.cli", "click", "polymux.cli.commands.rules"])
def test_an_interrupt_while_the_module_is_imported_is_one_line_and_130(
    name: str, tmp_path: Path
) -> None:
    done = interrupted_at(name, ["-m", "polymux"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "polymux: interrupted\n")


def test_a_command_that_ignores_interrupts_goes_on_when_one_comes_early(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = interrupted_at("polymux.cli", script(), tmp_path, ignore)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mplex.bad-flag" in done.stdout


def test_listing_a_capture_imports_neither_arrow_nor_asyncio_nor_a_terminal(
    capture: Callable[..., str],
) -> None:
    """Each would take as long as everything else that the command does with a small capture."""
    at_end = "import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    done = subprocess.run(
        [sys.executable, "-c", START.format(before=at_end), "ls", capture()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout
    imported = set(done.stderr.splitlines()[-1].split())
    assert "polymux.analysis.session.analyzer" in imported
    assert not imported & {"pyarrow", "numpy", "asyncio", "rich", "cryptography", "polymux.aio"}


def test_importing_the_library_sets_no_signal_handler() -> None:
    code = (
        "import signal\n"
        "def handlers(): return {n: signal.getsignal(n) for n in signal.valid_signals()}\n"
        "before = handlers()\n"
        "import polymux, polymux.cli, _polymux_entry\n"
        "assert handlers() == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_shown(run: Run, flag: str) -> None:
    ran = run(flag)
    assert ran.code == 0
    assert version("polymux") in ran.out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_short_and_long_help(run: Run, command: str) -> None:
    before = [command] if command else []
    short, long = run(*before, "-h"), run(*before, "--help")
    assert short.code == long.code == 0
    assert short.out == long.out
    assert re.search(r"-h, --help +Show this message", short.out)


def test_analyse_is_analyze(run: Run) -> None:
    _, other = run("analyse", "-h").out.split("\n", 1)
    _, usual = run("analyze", "-h").out.split("\n", 1)
    assert other == usual


def test_commands_and_protocols_and_rules_complete() -> None:
    assert completed("polymux", "che") == ["check"]
    assert completed("polymux", "ls", "--protocol", "") == [
        "auto", "mplex", "nerdbank", "omnistreams", "streamux", "minmux", "yamux",
    ]  # fmt: skip
    assert completed("polymux", "connect", "--protocol", "m") == ["mplex", "minmux"]
    assert "mplex" in completed("polymux", "rules", "")
    assert completed("polymux", "rules", "mplex.bad-f") == ["mplex.bad-flag"]


@pytest.mark.parametrize("command", ["ls", "check", "frames", "follow", "analyze", "decode",
                                     "connect", "serve", "record", "collect"])  # fmt: skip
def test_every_protocol_option_completes(command: str) -> None:
    assert completed("polymux", command, "--protocol", "nerd") == ["nerdbank"]


def test_the_demo_asks_for_all_it_lacks_before_it_starts(tmp_path: Path) -> None:
    lacks = (
        "import importlib.util as u; real = u.find_spec; "
        "u.find_spec = lambda name, *rest: "
        "None if name in ('websockets', 'pyspark') else real(name, *rest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", START.format(before=lacks), "demo"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "polymux: the demo needs an optional part: pip install 'polymux[spark,websocket]'"
    ]
    assert not list(tmp_path.iterdir())


def test_follow_without_pyarrow_is_one_line_that_says_what_to_install(
    capture: Callable[..., str],
) -> None:
    lacks = START.format(before="sys.modules['pyarrow'] = None")
    done = subprocess.run(
        [sys.executable, "-c", lacks, "follow", capture(), "--stream", "d1"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("needs an optional part: pip install 'polymux[captures]'")
