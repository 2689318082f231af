"""Truncated, damaged and hostile captures on the command line: a clear line, the right code."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
import zstandard
from tests.capture import capture_builder as build
from tests.capture.hostile_files import CORPUS
from tests.record.record_process import POLYMUX, polymux

from polymux.capture import PcapngWriter, TcpConnectionWriter, hint_comment

MEMORY = 256 << 20


@pytest.fixture
def recording(tmp_path: Path) -> tuple[Path, list[int]]:
    """A recorded mplex session and the offsets at which its packets end."""
    path = tmp_path / "talk.pcapng"
    ends = []
    with PcapngWriter(str(path)) as writer:
        comment = hint_comment("mplex", "middle")
        scribe = TcpConnectionWriter(
            writer, ("192.0.2.1", 4000), ("192.0.2.2", 9000), 10**18, comment=comment
        )
        scribe.data(0, b"\0\1a", 10**18)  # a stream named "a"
        for n in range(20):
            scribe.data(0, b"\2\5" + b"hello", 10**18 + n * 10**6)
            ends.append(writer.size)
        scribe.close(10**18 + 10**9)
    return path, ends


async def test_a_torn_tail_is_exit_code_3_with_its_offset_and_what_came_before(
    recording: tuple[Path, list[int]],
) -> None:
    path, ends = recording
    whole = path.read_bytes()
    for cut in (1, 50, 59):  # bytes kept of the block behind the tenth message
        path.write_bytes(whole[: ends[9] + cut])
        code, out, said = await polymux("ls", str(path), "--json")
        assert code == 3
        assert said == (f"{path}: truncated at byte {ends[9]}: the file ends inside a block\n")
        assert '"bytes_dialer": 73' in out  # three of the opening, ten messages of seven


async def test_a_flipped_bit_is_reported_or_harmless_and_never_a_crash(
    recording: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, _ = recording
    whole = path.read_bytes()
    chance = random.Random(3)
    names = []
    for n in range(60):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        names.append(tmp_path / f"flipped-{n}.pcapng")
        names[-1].write_bytes(flipped)
    path.unlink()
    code, out, said = await polymux("ls", str(tmp_path), "--json")
    assert code == 3
    assert out.count('"table": "sessions"') >= 1
    for line in said.splitlines():
        assert re.match(r".*flipped-\d+\.pcapng: \w+ at byte \d+: |session [0-9a-f]+: ", line)


async def test_the_whole_hostile_corpus_is_one_clear_line_each(tmp_path: Path) -> None:
    for lie in CORPUS:
        (tmp_path / lie.name).write_bytes(lie.data)
    code, _, said = await polymux("ls", str(tmp_path), "--json")
    assert code == 3
    assert "Traceback" not in said
    lines = {line.partition(":")[0].rpartition("/")[2].partition(" ")[0]: line
             for line in said.splitlines()}  # fmt: skip
    for lie in CORPUS:
        if lie.status == "whole":
            assert lie.name not in lines
            continue
        line = lines.pop(lie.name)
        assert lie.status in line
        assert lie.word in line
        if lie.offset is not None:
            assert f"at byte {lie.offset}" in line
    assert not lines, "nothing else is said"


def many_interfaces() -> bytes:
    return build.section() + build.interface() * 200_000


def largest_blocks() -> bytes:
    block = build.block(0xBAD, bytes((16 << 20) - 12))
    return build.section() + build.interface() + block + block


def many_flows() -> bytes:
    ends = [build.End(f"10.{n >> 14}.{n >> 7 & 127}.{n & 127}", 1000) for n in range(4_000)]
    packets = [build.Packet(n, build.frame(end, build.BOB, 1)) for n, end in enumerate(ends)]
    return build.pcap(packets)


def bomb() -> bytes:
    """300 kB that decompress to more than 1 GiB of unknown blocks."""
    packer = zstandard.ZstdCompressor().compressobj()
    block = build.block(0xBAD, bytes(8 << 20))
    head = packer.compress(build.section() + build.interface())
    return head + b"".join(packer.compress(block) for _ in range(150)) + packer.flush()


WORST = {
    "many-interfaces": (many_interfaces, "limit max_interfaces="),
    "largest-blocks": (largest_blocks, ""),
    "many-flows": (many_flows, ""),
    "bomb": (bomb, "limit max_compression_ratio=200"),
    "captured-4g": (lambda: {lie.name: lie.data for lie in CORPUS}["captured-4g"], "block"),
}


@pytest.mark.parametrize("name", WORST)
async def test_the_worst_files_stay_within_256_mib(tmp_path: Path, name: str) -> None:
    make, word = WORST[name]
    path = tmp_path / name
    path.write_bytes(make())
    process = await asyncio.create_subprocess_exec(
        *POLYMUX, "ls", str(path), "--json",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    watching = asyncio.create_task(peak(process))
    _, said = await asyncio.wait_for(process.communicate(), 90)
    most = await watching
    assert 0 < most < MEMORY
    assert b"Traceback" not in said
    assert word in said.decode()
    assert process.returncode in (0, 3)


async def peak(process: asyncio.subprocess.Process) -> int:
    """The most memory it ever had in use."""
    most = 0
    watched = psutil.Process(process.pid)
    while process.returncode is None:
        try:
            most = max(most, int(watched.memory_info().rss))
        except psutil.Error:
            break
        await asyncio.sleep(0.005)
    return most
