"""One target under atheris: `python -m tests.fuzz.one TARGET [libFuzzer's options]`."""

from __future__ import annotations

import sys

import atheris

DECODERS = ["polymux.core", "polymux.protocols", "polymux.capture", "polymux.analysis"]

with atheris.instrument_imports(include=DECODERS):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
