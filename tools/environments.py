"""Empty virtual environments: create them, install into them, check the installation."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
NO_COMPILER = {"CC": "/nowhere/cc"}

# Writes a small capture: the dialer sends on one stream, the acceptor answers.
CAPTURE = """
import sys
from polymux.capture import PcapngWriter, TcpConnectionWriter
began = 1_700_000_000_000_000_000
with PcapngWriter(sys.argv[1]) as writer:
    connection = TcpConnectionWriter(writer, ("192.0.2.1", 40000), ("198.51.100.2", 9000), began)
    connection.data(0, bytes.fromhex("0804676f6f640a0568656c6c6f0c00"), began + 1_000_000)
    connection.data(1, bytes.fromhex("09026f6b0b00"), began + 2_000_000)
    connection.close(began + 3_000_000)
"""


class CommandFailed(Exception):
    """A command failed; the message contains everything it printed."""


@dataclass
class Environment:
    """A virtual environment with only pip, and environment variables for its commands."""

    folder: Path
    python: str
    variables: dict[str, str] = field(default_factory=dict)

    def make(self) -> "Environment":
        run([self.python, "-m", "venv", str(self.folder)])
        return self

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def pip(self, *arguments: str, cwd: Path | None = None) -> str:
        command = [self.program("python"), "-m", "pip", *arguments, "--disable-pip-version-check"]
        return run(command, cwd, self.variables)

    def check_installation(self) -> str:
        """Run the README's first program, `doctor` and `ls`.

        Returns `compiled` or `interpreted`, as `doctor` reports the core. `ls` needs the extra
        `captures`, which is installed only after the rest has worked without it.
        """
        outside = self.folder.parent  # contains no polymux to import
        printed = run([self.program("python"), "-W", "error", "-c", first_program()], outside)
        if printed.strip() != "b'hello'":
            raise CommandFailed(f"the README's first program printed: {printed}")
        doctor = run([self.program("polymux"), "doctor"], outside, {"COLUMNS": "200"})
        core = re.search(r"^ *\S+ +core +(compiled|interpreted)", doctor, re.M)
        if core is None:
            raise CommandFailed(f"doctor does not say how the core runs:\n{doctor}")
        self.pip("install", "polymux[captures]")
        capture = self.folder / "small.pcapng"
        run([self.program("python"), "-c", CAPTURE, str(capture)], outside)
        listed = run([self.program("polymux"), "ls", str(capture)], outside)
        if "mplex" not in listed:
            raise CommandFailed(f"polymux ls does not show the session:\n{listed}")
        return core[1]


def run(
    command: list[str], cwd: Path | None = None, variables: dict[str, str] | None = None
) -> str:
    """Run a command. Return what it printed; raise CommandFailed if its exit code is not 0."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "POLYMUX_"))}
    done = subprocess.run(
        command, cwd=cwd, env={**inherited, **(variables or {})}, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def checkout(folder: Path) -> Path:
    """Copy the files that git tracks or would add; a build writes into its own copy."""
    listed = run(["git", "ls-files", "-co", "--exclude-standard", "-z"], ROOT)
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def sdist(python: str, source: Path, folder: Path) -> Path:
    """Build an sdist of `source` with build isolation."""
    builder = Environment(folder / "builder", python).make()
    builder.pip("install", "build")
    run([builder.program("python"), "-m", "build", "--sdist", "-o", str(folder), str(source)])
    return next(folder.glob("polymux-*.tar.gz"))


def first_program() -> str:
    """The first Python example of the README."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert found is not None  # the README has one
    return found[1]
