"""Compile the marked modules with mypyc where a compiler is found; the same files run interpreted.

POLYMUX_COMPILE=no       never compile
POLYMUX_COMPILE=require  fail if compiling fails
POLYMUX_OPT=0            compile quickly into slow code; 3, the default, takes minutes

Compiling is tried when a wheel is built, not when metadata is asked for. It needs what
pyproject.toml lists under `build-system` and a C compiler, and none of the optional packages. When
it fails, for any reason, one line says why and the package is built as pure Python. pip hides what
a build prints, so the line is also kept in the package, where `polymux doctor` finds it.

An editable install keeps `src` free of compiled files: they go to `build/__editable__...`, beside
links to the files of `src` (setuptools calls this mode strict).
"""

import os
import shutil
import sys
import sysconfig
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

MARK = "# mypyc: compiled"  # the first line of every module that is compiled


def is_marked(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return file.readline().startswith(MARK)


COMPILED = sorted(str(path) for path in Path("src/polymux").rglob("*.py") if is_marked(path))
REASON = Path("polymux", "interpreted.txt")  # in the package: why it is not compiled

WANTED = os.environ.get("POLYMUX_COMPILE", "")
if WANTED not in ("", "no", "require"):
    sys.exit(f"POLYMUX_COMPILE={WANTED}: it may be `no` or `require`, or not be set")


class CannotCompile(Exception):
    """Why the package is built as pure Python."""


class CompileCore(build_ext):
    """Compile when that is possible; otherwise say why and leave the plain files."""

    def run(self) -> None:
        self.discard()
        try:
            check_wanted()
            self.take(translate(self.build_temp))
            if self.editable_mode:
                self.run_beside_links()
            else:
                super().run()
        except (Exception, SystemExit) as failure:
            if WANTED == "require":
                raise
            self.discard()
            self.distribution.ext_modules = self.extensions = []
            self.explain(" ".join(f"{failure}".split()))

    def take(self, extensions: list[Extension]) -> None:
        """Begin anew with these: a command looks at its extensions when it is finalized."""
        editable = self.editable_mode
        self.distribution.ext_modules = extensions
        self.distribution.reinitialize_command(self)
        self.editable_mode = editable
        self.ensure_finalized()

    def run_beside_links(self) -> None:
        """Compile, and have setuptools link to the files of `src` beside what was compiled."""
        editable = self.distribution.get_command_obj("editable_wheel")
        if editable.mode not in (None, "strict"):
            raise CannotCompile(f"an editable install in mode {editable.mode} runs from src")
        self.inplace = False
        super().run()
        editable.mode = "strict"

    def discard(self) -> None:
        """Remove what this or an earlier build left: an old compiled file would hide its source."""
        built = Path(self.build_lib)
        for path in [*built.rglob("*.so"), *built.rglob("*.pyd"), built / REASON]:
            path.unlink(missing_ok=True)

    def explain(self, reason: str) -> None:
        print(f"polymux: not compiled, it will run interpreted: {reason}", file=sys.stderr)
        if not self.editable_mode:
            note = Path(self.build_lib) / REASON
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{reason}\n")


class Wheel(bdist_wheel):
    """A wheel whose tags say what is in it: a platform's if it was compiled, any otherwise."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        self.skip_build = True  # it was built above
        super().run()


def check_wanted() -> None:
    """Raise if nothing shall be compiled, or nothing can: mypyc would work for no compiler."""
    if WANTED == "no":
        raise CannotCompile("POLYMUX_COMPILE=no")
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler

    compiler = new_compiler()
    customize_compiler(compiler)
    command = getattr(compiler, "compiler_so", None)  # Windows finds its own
    if command and shutil.which(command[0]) is None:
        raise CannotCompile(f"there is no C compiler ({command[0]} was not found)")
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    if not headers.exists():
        raise CannotCompile(f"Python's headers are not installed ({headers} was not found)")


def translate(folder: str) -> list[Extension]:
    """Have mypyc write C for the compiled modules, into `folder`.

    Only errors in these modules count: the others are read for their types, and may import
    packages that are not there.
    """
    if not COMPILED:
        raise CannotCompile("the modules to compile are not there")
    from mypyc.build import mypycify

    said = StringIO()
    try:
        with redirect_stdout(said):
            made = mypycify(
                ["--strict", "--follow-imports=silent", *COMPILED],
                opt_level=os.environ.get("POLYMUX_OPT", "3"),
                debug_level="0",
                target_dir=folder,
            )
    except SystemExit as failure:  # how mypyc reports errors, after it has printed them
        print(said.getvalue(), file=sys.stderr)
        errors = [line for line in said.getvalue().splitlines() if "error:" in line]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        first = errors[0] if errors else f"mypyc ended with {failure}"
        raise CannotCompile(f"{first}{more}") from failure
    for each in made:
        each.extra_compile_args += [
            "-fvisibility=hidden",  # what is not exported can be inlined
            "-Wno-error",  # what a newer compiler warns of is no reason to run interpreted
        ]
    return made


setup(
    ext_modules=[Extension("polymux.core", [])],  # stands for what `translate` makes
    cmdclass={"build_ext": CompileCore, "bdist_wheel": Wheel},
)
