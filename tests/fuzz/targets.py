"""What is fuzzed: each target takes any bytes and must neither crash, hang nor wedge.

A target returns, or raises AssertionError for a property that does not hold; any other exception is
a crash. The first bytes of an input choose how the rest is cut.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.attacks import raw_frames as words
from tests.attacks.families.common import opening

from polymux.analysis.detection.detector import detect
from polymux.analysis.detection.sample import SessionSample
from polymux.analysis.tls.key_log import KeyLog
from polymux.analysis.tls.layer import TlsLayer
from polymux.capture import CaptureLimits, StreamBatch, read_sessions
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, TcpEvents
from polymux.core.endpoint import Endpoint
from polymux.core.errors import CaptureError, LimitExceeded, PeerViolation
from polymux.core.events import Opened
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.websocket.decoder import Decoder
from polymux.protocols.registry import create

Target = Callable[[bytes], None]

TIGHT = {
    "max_frame_bytes": 1024,
    "max_control_bytes": 1024,
    "max_metadata_bytes": 1024,
    "max_prehandshake_bytes": 1024,
    "max_name_bytes": 512,
}
HOWEVER_MANY = 1_000_000_000
OPENINGS = 80  # honest ones behind each input; what was begun before must have ended by then
PROTOCOLS = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
             "omnistreams:carrier=length", "streamux", "minmux", "yamux"]  # fmt: skip
TLS_VECTORS = Path(__file__).parents[1] / "vectors" / "tls" / "conversations.json"
TLS_KEYS: list[str] = [
    line for vector in json.loads(TLS_VECTORS.read_text()) for line in vector["keys"]
]
HELLOS = {"nerdbank:version=1": words.HELLO[1], "nerdbank:version=2": words.HELLO[2],
          "streamux": words.INITIATOR}  # fmt: skip


def pieces(data: bytes, cut: int) -> Iterator[bytes]:
    """The input in one piece, in two, or byte by byte."""
    if cut % 4 == 0:
        yield data
    elif cut % 4 == 1:
        place = cut * 7 % (len(data) + 1)
        yield data[:place]
        yield data[place:]
    else:
        step = 1 + cut % 13
        for start in range(0, len(data), step):
            yield data[start : start + step]


def decoder(protocol: str) -> Target:
    """A live endpoint. After any input it must still accept an opening, or have failed."""
    name = "omnistreams" if protocol.startswith("omnistreams") else protocol
    behind = b"".join(opening(name, n) for n in range(1000, 1000 + OPENINGS))
    limits = dict.fromkeys(
        ("open_reset_burst", "unknown_stream_burst", "empty_frame_burst"), HOWEVER_MANY
    )

    def target(data: bytes) -> None:
        if not data:
            return
        protocol_limits = Limits(**TIGHT, **limits)
        endpoint = Endpoint(create(protocol, protocol_limits, vantage=1), 1, direct=True)
        endpoint.start(bytes(16))
        hello = HELLOS.get(protocol, b"") if data[0] < 200 else b""
        try:
            for piece in pieces(hello + data[1:], data[0]):
                endpoint.receive(piece, 1.0)
                endpoint.data_to_send()
            finish_frame(endpoint)
            for _ in range(3):  # a header cut short swallows some of what follows
                before = endpoint.connection.direction(0).frames
                events = endpoint.receive(behind, 2.0)
                endpoint.data_to_send()
                if any(isinstance(event, Opened) for event in events):
                    return
                finish_frame(endpoint)
                went_on = endpoint.connection.direction(0).frames > before
                assert went_on, "wedged: it neither failed nor went on"
        except (PeerViolation, LimitExceeded):
            return

    return target


def finish_frame(endpoint: Endpoint) -> None:
    """Send the missing bytes of the current frame, by its header, up to a limit."""
    d = endpoint.connection.direction(0)
    for _ in range(8):
        lacking = d.part_bytes_left if d.in_payload else max(0, d.bytes_needed - d.buffered_bytes())
        if not lacking or d.decoding_stopped:
            return
        assert lacking <= 70_000, f"it waits for {lacking} bytes"
        endpoint.receive(bytes(lacking), 1.5)
        endpoint.data_to_send()


def observer(data: bytes) -> None:
    """An observer accounts for every byte, also across a snapshot and a gap."""
    if len(data) < 3:
        return
    text = [*PROTOCOLS, "omnistreams:carrier=websocket", "omnistreams"][data[0] % 10]
    watching = Observer(create(text, Limits(**TIGHT)))
    side, at = data[1] & 1, 0
    for piece in pieces(data[3:], data[1] >> 1):
        at += 1000
        watching.feed(side, piece, at)
        assert watching.accounts_for_all_bytes(), "bytes are not conserved"
        side ^= data[2] & 1
    if data[2] & 2:
        watching.take_violations()
        assert watching.rows is not None
        watching.rows.take()
        saved = watching.snapshot()
        watching = Observer(create(text, Limits(**TIGHT)))
        watching.restore(saved)
    if data[2] & 4:
        watching.gap(side, data[2] * 5, at)
        watching.feed(side, data[3:], at + 1)
    watching.finish(at + 2, bool(data[2] & 8), bool(data[2] & 16))
    assert watching.accounts_for_all_bytes(), "bytes are not conserved at the end"


def websocket(data: bytes) -> None:
    """Both ways of reading frames: every byte is in exactly one count."""
    if len(data) < 2:
        return
    for lenient in (False, True):
        reading = Decoder(data[0] & 1, 1000, lenient)
        fed = 0
        for piece in pieces(data[2:], data[1]):
            reading.feed(piece)
            fed += len(piece)
            if lenient and data[0] & 2 and fed % 3 == 0:
                reading.gap(5)
                fed += 5
            counted = (
                reading.delivered_bytes
                + reading.control_bytes
                + reading.skipped_bytes
                + reading.missing_bytes
            )
            assert counted + reading.pending() == fed, "bytes are not conserved"
        reading.finish()
        assert len(reading.take()) <= len(data) + 20


def captures(data: bytes) -> None:
    """A capture file: read to its end, or rejected with an offset; never more bytes than it has."""
    refused = ""
    handle, path = tempfile.mkstemp(suffix=".pcapng")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        limits = CaptureLimits(max_decompressed_bytes=1 << 22, ratio_check_min_bytes=1 << 16)
        with read_sessions([path], limits=limits) as found:
            for session in found:
                for piece in session.pieces():
                    assert len(piece.data) <= 1 << 22
    except CaptureError as refusal:
        refused = str(refusal)
    finally:
        os.unlink(path)
    assert "\n" not in refused


def guessing(data: bytes) -> None:
    """Detection on any two directions: a protocol with evidence, or none with a reason."""
    if len(data) < 3:
        return
    parts: list[tuple[int, bytes, int]] = []
    side = data[0] & 1
    for at, piece in enumerate(pieces(data[2:], data[1])):
        parts.append((side, piece, at * 1000))
        side ^= data[0] >> 1 & 1
        if at > 50:
            break
    verdict = detect(SessionSample(tuple(parts), bool(data[0] & 4)))
    assert verdict.evidence
    if verdict.protocol is not None:
        create(verdict.protocol)  # what is guessed can be spoken


def tls(data: bytes) -> None:
    """Two directions of TLS, cut and with a gap: no wrong byte is opened, every byte is counted."""
    if len(data) < 5:
        return
    side, options, cut, size = data[0] & 1, data[0] >> 1, data[1], int.from_bytes(data[2:4], "big")
    ends = (data[4 : 4 + size], data[4 + size :])
    first = 5 + int.from_bytes(ends[0][3:5], "big")  # the ClientHello
    order = [(0, ends[0][:first]), (1, ends[1]), (0, ends[0][first:])]
    keys = KeyLog().merged([b"\n".join(line.encode() for line in TLS_KEYS), data[:200]])
    layer = TlsLayer(keys)
    wire, plain = [0, 0], [0, 0]
    parts = [(end, piece) for end, whole in order for piece in pieces(whole, cut) if piece]
    lost = cut * 3 % max(1, len(parts)) if options & 1 else -1
    for number, (end, piece) in enumerate(parts):
        events = TcpEvents(2)
        is_lost = number == lost and (end == side or options & 2)
        events.add(end, GAP if is_lost else PAYLOAD, number, len(piece), 0, 0)
        wire[end] += len(piece)
        count_events(layer.open(StreamBatch(events, b"" if is_lost else piece)), plain)
    count_events(layer.finish(len(parts)), plain)
    for end in (0, 1):
        others = layer.overhead_bytes[end] + layer.undecoded_bytes[end] + layer.missing_bytes[end]
        assert wire[end] == plain[end] + others, "bytes are not conserved"
    assert "\n" not in layer.failure + "".join(layer.notes)


def count_events(batch: StreamBatch, totals: list[int]) -> None:
    """Add the bytes of each side, opened and missing."""
    for n in range(batch.count):
        totals[batch.side[n]] += int(batch.size[n])


TARGETS: dict[str, Target] = {
    **{protocol.replace(":version=", "").partition(":")[0]: decoder(protocol)
       for protocol in PROTOCOLS},
    "observer": observer,
    "websocket": websocket,
    "captures": captures,
    "guess": guessing,
    "tls": tls,
}  # fmt: skip
