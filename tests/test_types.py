"""A type checker understands the examples of the README and the public names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_readme import examples

ROOT = Path(__file__).parent.parent

CONFIG = """[mypy]
[mypy-polymux.*]
follow_imports = silent
"""

# Each call, and what a type checker is to call its result.
SHOWN = {
    'await polymux.connect(url, protocol="mplex")': "Session",
    'await polymux.connect(url, protocol="nerdbank")': "NerdbankSession",
    'await polymux.connect(url, protocol="nerdbank:version=2")': "NerdbankSession",
    'await polymux.connect(url, protocol="omnistreams")': "OmnistreamsSession",
    'await polymux.connect(url, protocol="streamux", wait=20)': "StreamuxSession",
    'await polymux.connect(url, protocol="minmux", timeout=3)': "MinmuxSession",
    'await polymux.connect(url, protocol="yamux:dialect=libp2p")': "YamuxSession",
    "await polymux.connect(url, protocol=url)": "Session",
    'await polymux.serve(handle, url, protocol="nerdbank")': "Server",
    "await polymux.serve(handle, url, protocol=url)": "Server",
    '(await polymux.pipe("streamux"))[1]': "StreamuxSession",
    "(await polymux.pipe(url))[0]": "Session",
    "await polymux.nerdbank.connect(url, version=3, timeout=1)": "NerdbankSession",
    "await polymux.mplex.connect(url, ids='counting', max_frame=9)": "Session",
    "await polymux.streamux.connect(url, length_bits=10, id_bits=4)": "StreamuxSession",
    "(await polymux.minmux.pipe(profile=url))[0]": "MinmuxSession",
    "(await polymux.yamux.pipe(dialect='libp2p', window=300000))[0]": "YamuxSession",
    "await (await polymux.connect(url, protocol='mplex')).open('a')": "Stream",
    "await (await polymux.connect(url, protocol='streamux')).open()": "Exchange",
    "await (await polymux.connect(url, protocol='omnistreams')).open()": "MessageSender",
}

# What a type checker is to refuse.
WRONG = [
    "polymux.nerdbank.connect(url, version=4)",
    "polymux.nerdbank.connect(url, versoin=3)",
    "polymux.mplex.connect(url, ids='odd')",
    "polymux.connect(url, protocol='mplex', tiemout=1)",
    "polymux.streamux.serve(handle, url)",
]


def checked(folder: Path, *arguments: str) -> str:
    """What mypy prints about the files in a folder; its cache lasts from one run to the next."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache" / "examples"),
         "--config-file", "mypy.ini", *arguments, "."],
        cwd=folder, capture_output=True, text=True, timeout=110,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mypy.ini").write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize("strict", [[], ["--strict"]], ids=["default", "strict"])
def test_mypy_passes_on_the_examples_of_the_readme(folder: Path, strict: list[str]) -> None:
    blocks = [code for language, code in examples()["README.md"] if language == "python"]
    for number, code in enumerate(blocks, 1):
        (folder / f"example{number}.py").write_text(code)
    assert len(blocks) >= 4
    assert checked(folder, *strict).startswith("Success: no issues")


def test_a_type_checker_knows_what_each_call_gives_and_what_no_call_takes(folder: Path) -> None:
    lines = [
        "import polymux",
        "async def handle(session: polymux.NerdbankSession) -> None: ...",
        "async def calls(url: str) -> None:",
        *[f"    reveal_type({call})" for call in SHOWN],
        *[f"    {call}" for call in WRONG],
    ]
    (folder / "calls.py").write_text("\n".join(lines))
    found = checked(folder, "--strict", "--disable-error-code", "unused-coroutine").splitlines()
    for at, (call, kind) in enumerate(SHOWN.items(), 4):
        revealed = re.compile(
            rf'calls\.py:{at}: note: Revealed type is "polymux\.(?:aio|live)\.[\w.]+\.{kind}"'
        )
        assert any(revealed.fullmatch(line) for line in found), call
    errors = {int(line.split(":")[1]) for line in found if ": error: " in line}
    assert errors == set(range(4 + len(SHOWN), 4 + len(SHOWN) + len(WRONG)))
