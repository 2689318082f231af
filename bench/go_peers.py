"""Peers in Go from Debian's packages, at both ends: yamux, smux, and HTTP/2 of golang.org/x/net.

Their program is built without any network, once for each library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from bench import harness
from bench.alternating_runs import Act
from bench.third_party import ThirdPartyPair, both_ends, call

from polymux.spark.runtime.user_cache import cache_folder, usable_folder

SOURCES = Path(__file__).parent / "third_party_peers" / "go"
GO_PATH = Path("/usr/share/gocode")  # of Debian's packages
# name, what Debian's package calls it, and what it imports
LIBRARIES = {
    "yamux": ("Go hashicorp/yamux", "github-hashicorp-yamux", "github.com/hashicorp/yamux"),
    "smux": ("Go xtaci/smux", "github-xtaci-smux", "github.com/xtaci/smux"),
    "http2": ("Go HTTP/2", "golang-x-net", "golang.org/x/net/http2"),
}
BUILD_SECONDS = 300.0


def missing(library: str) -> str | None:
    """Why it is not available, or None."""
    _, package, imported = LIBRARIES[library]
    if not harness.EFFORT.third_party:
        return "left out by wish"
    if shutil.which("go") is None:
        return "Go is not installed"
    if not (GO_PATH / "src" / imported).is_dir():
        return f"Debian's golang-{package}-dev is not installed"
    if not usable_folder(cache_folder()):
        return f"{cache_folder()} cannot be written"
    return None


def program(library: str) -> Path:
    """The program, built if its sources are newer. Only if `missing` returns None."""
    built = cache_folder() / f"bench-go-{library}"
    newest = max(source.stat().st_mtime for source in SOURCES.glob("*.go"))
    if not built.exists() or built.stat().st_mtime < newest:
        environ = {**os.environ, "GO111MODULE": "off", "GOPATH": str(GO_PATH)}
        environ.setdefault("GOCACHE", str(cache_folder() / "bench-go-cache"))
        subprocess.run(
            ["go", "build", "-tags", library, "-o", str(built), "."],
            cwd=SOURCES, env=environ, check=True, timeout=BUILD_SECONDS,
        )  # fmt: skip
    return built


class GoPair(ThirdPartyPair):
    """A library connected to itself in another process.

    The accepting end reads what the dialing end sends and answers with a byte; the dialing end then
    closes, since yamux and smux read nothing after their own close.
    """

    async def reads(self, byte_count: int) -> None:
        await call(self.acceptor, "mode", mode="read", byte_count=byte_count)

    def bulk(self, byte_count: int, size: int, streams: int) -> Act:
        each = byte_count // streams // size * size

        async def act() -> float:
            await self.reads(each)
            found = await self.call("bulk", byte_count=each * streams, size=size, streams=streams)
            return float(found)

        return act

    def openings(self, count: int, flight: int) -> Act:
        act_openings = super().openings(count, flight)

        async def act() -> float:
            await self.reads(0)
            return await act_openings()

        return act

    def requests(self, count: int, size: int, flight: int) -> Act:
        act_requests = super().requests(count, size, flight)

        async def act() -> float:
            await call(self.acceptor, "mode", mode="echo")
            return await act_requests()

        return act

    async def pings(self, count: int, load: int) -> list[float]:
        """The protocol's own pings, where it has them."""
        each = load // 65536 * 65536
        await call(self.acceptor, "mode", mode="echo")
        await self.call("open_ping")
        await self.reads(each)
        return await super().pings(count, each)


@contextlib.asynccontextmanager
async def go_pair(library: str) -> AsyncIterator[GoPair]:
    """Start both ends, each a process. Only if `missing` returns None."""
    async with both_ends([str(program(library))]) as (dialer, acceptor):
        yield GoPair(LIBRARIES[library][0], dialer, acceptor)
