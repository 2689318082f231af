# mypyc: compiled
"""What detection knows of each protocol: variants, markers, minimum frames and hints.

A signature says which variants to try, which first bytes occur only in this protocol (the marker),
how many valid frames are needed without a marker, and what a trial tells about the peers'
implementations (hints).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from polymux.analysis.detection.sample import SessionSample, Trial
from polymux.analysis.options import protocol_string
from polymux.analysis.schema.tables import SIDES
from polymux.core.websocket.handshake import IS_UPGRADE, detect_upgrade
from polymux.protocols.registry import BadProtocolString, create, parse_protocol

MIN_SCORE: Final = 75  # percent: a session with some violations is still detected
MIN_SCORE_WITH_MARKER: Final = 50  # with a marker in the first bytes
MIN_SCORE_WITHOUT_START: Final = 97  # without the start, most bytes fit many protocols
MIN_FRAMES_WITHOUT_START: Final = 16

Hints = Callable[[Trial], list[str]]
Marker = Callable[[SessionSample], str]


@dataclass(frozen=True, slots=True)
class Signature:
    """How to detect one protocol.

    Attributes:
        name: name of the protocol.
        min_frames: valid frames needed without a marker.
        variant_option, variant_values: option of the protocol string whose values are tried.
        marker: describes the unambiguous first bytes of a sample; "" if there are none.
        hints: describes the implementations of the peers.
        excused_rules: rules whose violation a missing start explains.
        negotiated_option: option and value that hold where multistream-select comes first.
        proof: must hold in addition where valid frames alone say little.
        min_frame_bytes: bytes of the smallest frame.
    """

    name: str
    min_frames: int
    variant_option: str = ""
    variant_values: tuple[str, ...] = ()
    marker: Marker | None = None
    hints: Hints | None = None
    excused_rules: tuple[str, ...] = ()
    negotiated_option: tuple[str, str] | None = None
    proof: Callable[[Trial], bool] | None = None
    min_frame_bytes: int = 2

    def negotiated(self, protocol: str) -> str:
        """The protocol string of a session that multistream-select came before."""
        if self.negotiated_option is None:
            return protocol
        key, value = self.negotiated_option
        return protocol_string(self.name, {**parse_protocol(protocol).options, key: value})

    def variants(self, options: dict[str, str]) -> list[str]:
        """The protocol strings to try, given the options that the caller named.

        A variant that does not have one of these options is left out: seeded channels, for
        instance, exist in Nerdbank version 3 only.
        """
        if not self.variant_option or self.variant_option in options:
            return [protocol_string(self.name, options)]
        texts = [
            protocol_string(self.name, {**options, self.variant_option: value})
            for value in self.variant_values
        ]
        return [text for text in texts if not options or _is_valid(text)]


class Candidate:
    """A protocol that was tried. `marker` describes its unambiguous first bytes, "" if absent;
    `score` is the percentage of valid frames."""

    def __init__(self, signature: Signature, trial: Trial, marker: str, score: int) -> None:
        self.signature = signature
        self.trial = trial
        self.marker = marker
        self.score = score


def is_perfect(candidate: Candidate) -> bool:
    """Whether protocols that need a proof are not tried beside this one."""
    return bool(candidate.marker) or candidate.score == 100


def is_credible(candidate: Candidate, from_start: bool) -> bool:
    """Whether a candidate may be the verdict: see `detector`."""
    valid = candidate.trial.valid_frames
    signature = candidate.signature
    if signature.proof is not None and not signature.proof(candidate.trial):
        return False
    if candidate.marker:
        return valid >= 1 and candidate.score >= MIN_SCORE_WITH_MARKER
    if not from_start:
        return (
            valid >= max(MIN_FRAMES_WITHOUT_START, signature.min_frames)
            and candidate.score >= MIN_SCORE_WITHOUT_START
        )
    return valid >= signature.min_frames and candidate.score >= MIN_SCORE


def describe_evidence(best: Candidate, skip_bytes: tuple[int, int]) -> str:
    """Say why the best candidate is the verdict."""
    trial = best.trial
    parts = [best.marker] if best.marker else []
    if skip_bytes != (0, 0):
        parts.append("multistream-select before it")
    parts.append(f"{trial.valid_frames} of the first {trial.frame_count} frames fit")
    if trial.violations_by_rule:
        rule, count = trial.violations_by_rule.most_common(1)[0]
        parts.append(f"{count} broke {rule}")
    if best.signature.hints is not None:
        parts += best.signature.hints(trial)
    return "; ".join(parts)


def _is_valid(protocol: str) -> bool:
    try:
        create(protocol)
    except BadProtocolString:
        return False
    return True


def _heads(sample: SessionSample) -> Sequence[bytes]:
    return [head for head in (sample.head(0), sample.head(1)) if head]


def _nerdbank_marker(sample: SessionSample) -> str:
    heads = _heads(sample)
    if any(head.startswith(b"\x2f\xdf\x1d\x50") for head in heads):
        return "the magic of version 1"
    if any(head.startswith((b"\x92\x92\x02", b"\x92\x93\x02")) for head in heads):
        return "the handshake of version 2"
    return ""


def _streamux_marker(sample: SessionSample) -> str:
    heads = _heads(sample)
    good = [
        head for head in heads
        if len(head) >= 4 and head[0] == 1 and head[1] and head[2] and head[1] + head[2] in (14, 30)
    ]  # fmt: skip
    if len(heads) == 2 and len(good) == 2:
        return f"initiators {good[0][:4].hex(' ')} and {good[1][:4].hex(' ')}"
    return ""


def _omnistreams_marker(sample: SessionSample) -> str:
    if not sample.head(0).startswith(b"GET "):
        return ""
    upgrade = detect_upgrade(sample.head(0), sample.head(1))
    if upgrade.outcome == IS_UPGRADE and upgrade.path.rstrip("/").endswith("/omnistreams"):
        return "a WebSocket upgrade for /omnistreams"
    return ""


def _yamux_marker(sample: SessionSample) -> str:
    """The first stream is opened, or the session is pinged, in a header of 12 bytes."""
    found = ""
    for head in _heads(sample):
        if head[0] != 0 or head[1:2] > b"\x03":
            return ""
        kind, stream = head[1:4].hex(), head[4:8].hex()
        if kind in ("000001", "010001") and stream in ("00000001", "00000002"):
            found = f"stream {int(stream)} is opened first"
        elif kind == "020001" and stream == "00000000" and not found:
            found = "the session begins with a ping"
    return found


def _yamux_hints(trial: Trial) -> list[str]:
    return [trial.dialect_evidence] if trial.dialect_evidence else []


def _mplex_hints(trial: Trial) -> list[str]:
    hints = []
    for side, name in enumerate(SIDES):
        streams = [s for s in trial.streams if s.opener == side and s.name is not None]
        if not streams:
            continue
        names = [s.name for s in streams]
        reused = any(s.incarnation > 1 for s in streams)
        if all(s.name == b"i%d" % s.stream_id for s in streams):
            hints.append(f"the {name} names streams as js-libp2p does")
        elif (
            all(s.name == b"%d" % s.stream_id for s in streams)
            and trial.largest_payloads[side] <= 4076
        ):
            hints.append(f"the {name} names and cuts as go or py-libp2p do")
        elif reused or any(s.reset_by == side and s.error for s in streams):
            hints.append(f"the {name} reuses ids or resets with a text as npm multiplex does")
        elif not any(names) and 0 < trial.largest_payloads[side] <= 8192:
            hints.append(f"the {name} may be rust-libp2p: no names, frames up to 8192 bytes")
    return hints


def _nerdbank_hints(trial: Trial) -> list[str]:
    hints = []
    for side, name in enumerate(SIDES):
        windows = {s.half(1 - side).window for s in trial.streams}
        if 102400 in windows:
            hints.append(f"the {name} has the window of npm or of .NET up to 2.13")
        elif 1024000 in windows:
            hints.append(f"the {name} has the window of .NET from 2.14 or of Rust")
    return hints


def _omnistreams_hints(trial: Trial) -> list[str]:
    hints = [f"WebSocket, path {trial.websocket_path!r}"] if trial.websocket_path else []
    if "numbering=legacy" in trial.protocol:
        hints.append("the numbering of npm omnistreams")
    return hints


def _minmux_proof(trial: Trial) -> bool:
    """Almost any bytes decode as packets, but items need credit that the other side granted, and
    correct peers violate no rule. Where grants may not have been seen, nothing is proven."""
    return not trial.violations_by_rule and any(
        not s.unseen and s.dialer.content_bytes + s.acceptor.content_bytes > 0
        for s in trial.streams
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature("nerdbank", 2, "version", ("1", "2", "3"), _nerdbank_marker, _nerdbank_hints,
           ("nerdbank.unknown-channel", "nerdbank.accepted-unknown-offer")),
    Signature("streamux", 4, marker=_streamux_marker),
    Signature("omnistreams", 3, "numbering", ("spec", "legacy"), _omnistreams_marker,
           _omnistreams_hints, ("omnistreams.data-on-unknown-id", "omnistreams.end-on-unknown-id")),
    Signature("yamux", 2, marker=_yamux_marker, hints=_yamux_hints,
           excused_rules=("yamux.unknown-stream", "yamux.pong-unrequested",
                          "yamux.window-exceeded"),
           negotiated_option=("dialect", "libp2p"), min_frame_bytes=12),
    Signature("mplex", 2, hints=_mplex_hints, excused_rules=("mplex.unknown-stream",)),
    Signature("minmux", 16, proof=_minmux_proof),
)  # fmt: skip
