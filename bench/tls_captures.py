"""Opening TLS: the layer against `cryptography`; `ls` against that, and tshark with the key log.

`ls` also reads the file, orders the packets, and decodes and validates what is inside. How much of
its time is not TLS shows in the line against `ls` of the same bytes without TLS.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trustme
from bench.alternating_runs import required_time
from bench.byte_traffic import content, mixed_sizes
from bench.capture_writer import ACK, FIN, PCAP_HEADER, SYN, client_packet, record, server_packet
from bench.harness import Floor, Line, Times, measure_alternating, time_call
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from polymux.analysis.tls.key_log import KeyLog, read_key_logs
from polymux.analysis.tls.key_schedule import traffic_keys
from polymux.analysis.tls.layer import TlsLayer
from polymux.analysis.tls.secret_table import CLIENT_TRAFFIC
from polymux.analysis.tls.suites import SUITES
from polymux.capture import StreamBatch
from polymux.capture.tcp.reassembly import PAYLOAD, TcpEvents

OPENED_BYTES = 64 << 20
LISTED_BYTES = 500_000_000  # so that the start of the process is a small part of the time
SEGMENT = 1448
BATCH_SEGMENTS = 180  # about 256 KiB
KEY_LOG_LINES = 1_000_000
SLOW = 3  # rounds for other programs
MEMORY_LIMIT_MIB = 200


@dataclass
class EncryptedTalk:
    """Flights of a TLS 1.3 session as (side, bytes), its key log, and the client's data."""

    flights: list[tuple[int, bytes]]
    key_log: bytes
    sent: int


def encrypted_talk(data: bytes, record_bytes: int) -> EncryptedTalk:
    """The client sends `data` in records of this size, with AES-256-GCM."""
    authority = trustme.CA()
    client, server = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
    )
    authority.configure_trust(client)
    authority.issue_cert("bench").configure_cert(server)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        client.keylog_filename = path
        incoming, outgoing = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
        ends = (
            client.wrap_bio(incoming[0], outgoing[0], server_hostname="bench"),
            server.wrap_bio(incoming[1], outgoing[1], server_side=True),
        )
        flights: list[tuple[int, bytes]] = []
        for side in (0, 1, 0, 1):
            with suppress(ssl.SSLWantReadError):
                ends[side].do_handshake()
            sent = outgoing[side].read()
            flights.append((side, sent))
            incoming[1 - side].write(sent)
        for start in range(0, len(data), record_bytes):
            ends[0].write(data[start : start + record_bytes])
        flights.append((0, outgoing[0].read()))
        return EncryptedTalk(flights, Path(path).read_bytes(), len(data))


def key_log_line(path: Path) -> Line:
    """Reading a key log, in a new process."""
    with path.open("w") as file:
        for _ in range(KEY_LOG_LINES):
            file.write(f"CLIENT_TRAFFIC_SECRET_0 {os.urandom(32).hex()} {os.urandom(48).hex()}\n")
    code = (
        "import sys, polymux.analysis.tls.key_log as k; print(len(k.read_key_logs(sys.argv[1:])))"
    )
    command = [sys.executable, "-c", code, str(path)]
    times = measure_alternating({"polymux": lambda: read_key_logs([str(path)])}, SLOW)
    note = f"{peak_mib(command):.0f} MiB of memory, at most {MEMORY_LIMIT_MIB}"
    floors = [required_time("within 2 s", 2.0)]
    name = f"key log, {KEY_LOG_LINES:,} lines"
    return Line(name, times["polymux"], KEY_LOG_LINES, "ns/line", floors, clock="wall", note=note)


def opening_line(record_bytes: int, target: float | None) -> Line:
    """Reassembled bytes to opened bytes, in batches as the analysis reads them."""
    talk = encrypted_talk(os.urandom(1 << 20) * (OPENED_BYTES >> 20), record_bytes)
    keys = KeyLog().merged([talk.key_log])
    batches = batches_of(talk)

    def ours() -> None:
        layer = TlsLayer(keys)
        opened = sum(len(layer.open(batch).data) for batch in batches)
        assert opened == talk.sent, (opened, layer.failure)

    floor = opening_alone(talk, keys)
    times = measure_alternating({"polymux": ours, "cryptography": floor})
    floors = [Floor("cryptography, the same records", times["cryptography"], target)]
    name = f"TLS opened, AES-256-GCM, records of {record_bytes:,} B"
    return Line(name, times["polymux"], talk.sent, "MB/s", floors, scale=1e6)


def opening_alone(talk: EncryptedTalk, keys: KeyLog) -> Callable[[], None]:
    """`cryptography` opening the records of the last flight, which are cut already."""
    sealed = sealed_records(talk, keys)

    def open_all() -> None:
        decrypt = AESGCM(sealed.key).decrypt
        for nonce, body, header in sealed.records:
            decrypt(nonce, body, header)

    return open_all


@dataclass
class SealedRecords:
    """Application records ready for a cipher: nonce, ciphertext and header of each."""

    key: bytes
    records: list[tuple[bytes, bytes, bytes]]


def sealed_records(talk: EncryptedTalk, keys: KeyLog) -> SealedRecords:
    """The records of the last flight, cut by hand."""
    match = re.search(rb"CLIENT_TRAFFIC_SECRET_0 (\w+)", talk.key_log)
    assert match is not None
    secret = keys.find(bytes.fromhex(match[1].decode()))[CLIENT_TRAFFIC]
    key, iv = traffic_keys(secret, SUITES[0x1302])
    records: list[tuple[bytes, bytes, bytes]] = []
    data, position = talk.flights[-1][1], 0
    while position < len(data):
        end = position + 5 + int.from_bytes(data[position + 3 : position + 5], "big")
        nonce = (int.from_bytes(iv, "big") ^ len(records)).to_bytes(12, "big")
        records.append((nonce, data[position + 5 : end], data[position : position + 5]))
        position = end
    return SealedRecords(key, records)


def batches_of(talk: EncryptedTalk) -> list[StreamBatch]:
    """Segments as reassembly hands them over."""
    segments = [
        (side, data[start : start + SEGMENT])
        for side, data in talk.flights
        for start in range(0, len(data), SEGMENT)
    ]
    batches = []
    for first in range(0, len(segments), BATCH_SEGMENTS):
        part = segments[first : first + BATCH_SEGMENTS]
        events = TcpEvents(len(part))
        for number, (side, data) in enumerate(part, first):
            events.add(side, PAYLOAD, number * 1000, len(data), 0, 0)
        batches.append(StreamBatch(events, b"".join(data for _, data in part)))
    return batches


def listing_line(folder: Path, run_child: Callable[[list[str], Times], None]) -> Line:
    """`polymux ls --keys` in a new process."""
    made = content("mplex", mixed_sizes(LISTED_BYTES), 100)
    plain = b"".join(data for _, data in made.opening) + made.content
    talk = encrypted_talk(plain, 16384)
    path, bare, keys = folder / "tls.pcap", folder / "plain.pcap", folder / "keys.log"
    keys.write_bytes(talk.key_log)
    size = write_pcap(path, talk)
    write_pcap(bare, EncryptedTalk([(0, plain)], b"", len(plain)))
    start = "from polymux.cli import main; main()"
    listing = [sys.executable, "-c", start, "ls"]
    command = [*listing, str(path), "--keys", str(keys)]
    open_alone = opening_alone(talk, KeyLog().merged([talk.key_log]))
    ours, theirs, alone, without, reading = (Times() for _ in range(5))
    fields = ["-Tfields", "-eframe.number", "-etls.record.content_type"]
    for _ in range(SLOW):
        run_child(command, ours)
        if shutil.which("tshark") is not None:
            run_child(
                ["tshark", "-n", "-r", str(path), "-otls.keylog_file:" + str(keys), *fields], theirs
            )
        time_call(open_alone, alone)
        run_child([*listing, str(bare)], without)
        time_call(path.read_bytes, reading)
    floors = [
        Floor("cryptography, the same records", alone, 0.6),
        Floor("polymux ls, the same bytes without TLS", without),
        Floor("reading the file", reading),
    ]
    if theirs.cpu:
        floors.insert(0, Floor("tshark with the key log", theirs, 2.5))
    name = f"polymux ls, TLS, {size / 1e6:.0f} MB, from cold"
    note = f"{peak_mib(command):.0f} MiB of memory, at most {MEMORY_LIMIT_MIB}"
    return Line(name, ours, size, "MB/s", floors, clock="wall", scale=1e6, note=note)


def peak_mib(command: list[str]) -> float:
    """The peak memory of a command, in MiB."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=-3, check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


def write_pcap(path: Path, talk: EncryptedTalk) -> int:
    """Write the talk as one connection; return the bytes of the file."""
    at = 1_700_000_000_000_000_000
    seqs = [1, 1]
    make = (client_packet, server_packet)
    with path.open("wb") as file:
        size = file.write(PCAP_HEADER)
        size += file.write(record(at, client_packet(0, 0, 0, SYN, b"")))
        size += file.write(record(at + 500, server_packet(0, 0, 1, SYN | ACK)))
        for side, data in talk.flights:
            for start in range(0, len(data), SEGMENT):
                at += 1000
                body = data[start : start + SEGMENT]
                packet = make[side](0, seqs[side] & 0xFFFFFFFF, seqs[1 - side], ACK, body)
                size += file.write(record(at, packet))
                seqs[side] += len(body)
        for side in (0, 1):
            packet = make[side](0, seqs[side], seqs[1 - side], ACK | FIN, b"")
            size += file.write(record(at + 1000 + side, packet))
    return size
