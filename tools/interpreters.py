"""Find the supported Python interpreters on this machine."""

import os
import shutil
import subprocess
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13")


def find_python(version: str) -> str | None:
    """The path of a Python of this version: from the variable PYTHONS, PATH, or pyenv."""
    named = os.environ.get("PYTHONS", "").split()
    for candidate in [*named, f"python{version}", "python3", *_pyenv(version)]:
        path = shutil.which(candidate)
        if path is not None and _version(path) == version:
            return path
    return None


def supported_pythons() -> dict[str, str]:
    """Version and path of every supported Python that was found."""
    return {version: path for version in SUPPORTED if (path := find_python(version)) is not None}


def _pyenv(version: str) -> list[str]:
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return []
    root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
    kept = Path(root, "versions").glob(f"{version}.*/bin/python")
    return sorted(map(str, kept), reverse=True)


def _version(path: str) -> str:
    """The version an interpreter reports; empty if it does not start, as a pyenv shim may not."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([path, "-c", code], capture_output=True, text=True).stdout.strip()
