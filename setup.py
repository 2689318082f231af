"""Compile the hot modules with mypyc where a compiler is found; the same files run interpreted.

POLYMUX_COMPILE=no       never compile
POLYMUX_COMPILE=require  fail if compiling fails
"""

import os
import sys
from glob import glob

from setuptools import setup
from setuptools.command.build_ext import build_ext

COMPILED = sorted(
    path
    for pattern in (
        "src/polymux/core/*.py",
        "src/polymux/protocols/*.py",
        "src/polymux/aio/hot/*.py",
        "src/polymux/capture/hot/*.py",
        "src/polymux/analysis/hot/*.py",
        "src/polymux/testing/hot/*.py",
    )
    for path in glob(pattern)
    if not path.endswith("__init__.py")
)


class OptionalBuild(build_ext):
    """Compile when that is possible; otherwise say so and install the plain files."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as failure:
            if os.environ.get("POLYMUX_COMPILE") == "require":
                raise
            print(f"polymux: running interpreted, the core could not be compiled: {failure}")
            self.extensions = []


def extensions() -> list[object]:
    if os.environ.get("POLYMUX_COMPILE") == "no" or not COMPILED:
        return []
    try:
        from mypyc.build import mypycify

        made = mypycify(["--strict", *COMPILED], opt_level="3", debug_level="0")
        for each in made:  # functions that are not exported can be inlined into one another
            each.extra_compile_args = [*each.extra_compile_args, "-fvisibility=hidden"]
        return made
    except Exception as failure:
        if os.environ.get("POLYMUX_COMPILE") == "require":
            raise
        print(f"polymux: running interpreted, mypyc is not usable: {failure}", file=sys.stderr)
        return []


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
