"""The protocol a session is decoded as: named by the caller or the capture, or detected.

`select_protocol` is the entry. Of a named protocol only the variant is chosen; `detect` finds a
protocol from the first bytes of both sides, with evidence.

The problem. Most of these protocols have no magic number, some can decode almost any bytes (to
Minmux, random data is a sequence of packets), and a session that breaks rules must still be
recognised. Comparing byte patterns is therefore not enough.

The idea. Every protocol is tried with its real implementation on a sample of up to 64 KiB, in every
variant that its options allow. The score is the percentage of frames that violate no rule; where
decoding stopped, it is multiplied by the share of the bytes that were decoded. A candidate is
credible if

- it has a marker (bytes that only this protocol begins with, such as a magic number or a
  handshake), at least one valid frame and a score of MIN_SCORE_WITH_MARKER; or
- it has the protocol's minimum number of valid frames and a score of MIN_SCORE; or
- the start of the connection was not captured, and at least MIN_FRAMES_WITHOUT_START frames score
  MIN_SCORE_WITHOUT_START (rules that a missing start explains are excused); and
- in each case, the protocol's own proof holds, if it needs one (Minmux: content was sent within
  granted credit, and no rule was violated at all).

Candidates with a marker come first, then the highest score, then the order of `SIGNATURES`. A
sample that looks like TLS, SSH or HTTP is that protocol unless a marker or a WebSocket upgrade says
otherwise.

Cost. Wrong protocols produce thousands of tiny invalid frames. A trial therefore starts with the
first 4 KiB, stops early when nearly all frames are invalid, and continues on the full sample only
if more than half of the frames were valid, or if these bytes say nothing: no frame has begun, and
none is excluded (the heads of a WebSocket upgrade can be longer). Protocols that need a proof are
tried last, and not at all if another candidate is perfect.

Invariants. Nothing here raises about the bytes it reads. A named protocol is never replaced:
`find_mismatch` only reports what the bytes look like instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from polymux.analysis.detection.other_protocols import (
    detect_other_protocol,
    websocket_upgrade_status,
)
from polymux.analysis.detection.sample import (
    SHORT_SAMPLE_BYTES,
    SessionSample,
    Trial,
    multistream_size,
    preamble_size,
    try_protocol,
)
from polymux.analysis.detection.signatures import (
    MIN_FRAMES_WITHOUT_START,
    MIN_SCORE,
    SIGNATURES,
    Candidate,
    Signature,
    describe_evidence,
    is_credible,
    is_perfect,
)
from polymux.analysis.detection.verdict import Detection
from polymux.analysis.options import AUTO, AnalysisOptions, check_protocol_string, protocol_string
from polymux.capture import TcpSession
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.token_exchange import PREFIX as TOKEN_PREFIX
from polymux.core.token_exchange import token_exchange_size
from polymux.core.websocket.handshake import IS_UPGRADE, NEED_MORE, NOT_UPGRADE
from polymux.protocols.registry import PROTOCOLS, BadProtocolString, parse_protocol

MAX_REMEMBERED_BYTES = 2048  # of a sample whose result is kept for the next one that is equal
MAX_REMEMBERED_SAMPLES = 256
INCONCLUSIVE_BYTES = 64  # fewer bytes without a complete frame refute no protocol

MISMATCH_PREFIX = "the bytes look like "
"""How the note of a session begins whose bytes contradict the protocol that was named."""


def select_protocol(
    session: TcpSession,
    options: AnalysisOptions,
    sample: SessionSample,
) -> Detection:
    """Select the protocol of a session.

    The options decide; with `auto`, the protocol noted in the capture; without a note, what the
    first bytes show.

    Args:
        session: the session, its packets scanned.
        options: the caller's options.
        sample: the session's first bytes.
    """
    if any(sample.head(side).startswith(TOKEN_PREFIX) for side in (DIALER, ACCEPTOR)):
        token = token_bytes(sample)
        found = _select(session, options, sample.skipping(token))
        if token == (0, 0):
            return found
        skip = (token[0] + found.skip_bytes[0], token[1] + found.skip_bytes[1])
        evidence = f"{found.evidence}; a token exchange before it"
        return replace(found, evidence=evidence, skip_bytes=skip)
    return _select(session, options, sample)


def token_bytes(sample: SessionSample) -> tuple[int, int]:
    """How many bytes of each side belong to the exchange of a shared token."""
    return (
        token_exchange_size(sample.head(DIALER), DIALER),
        token_exchange_size(sample.head(ACCEPTOR), ACCEPTOR),
    )


def _select(session: TcpSession, options: AnalysisOptions, sample: SessionSample) -> Detection:
    text, source = options.protocol_for(session), "given"
    if text == AUTO and session.protocol_hint:
        text, source = session.protocol_hint, "noted in the capture"
        try:
            check_protocol_string(text)
        except BadProtocolString as problem:
            found = detect(sample)
            note = f"{found.evidence}; the capture notes a protocol that cannot be used: {problem}"
            return replace(found, evidence=note)
    if len(sample.pieces) == 1 and sample.size <= MAX_REMEMBERED_BYTES:
        same = sample.at_time(0)
        if text == AUTO:
            return _remembered_detection(same)
        return _remembered_named_protocol(text, source, same)
    if text == AUTO:
        return detect(sample)
    return _named_protocol(text, source, sample)


@lru_cache(MAX_REMEMBERED_SAMPLES)
def _remembered_detection(sample: SessionSample) -> Detection:
    """Like `detect`, for samples of one packet: scans and floods repeat the same one."""
    return detect(sample)


@lru_cache(MAX_REMEMBERED_SAMPLES)
def _remembered_named_protocol(text: str, source: str, sample: SessionSample) -> Detection:
    return _named_protocol(text, source, sample)


def _named_protocol(text: str, source: str, sample: SessionSample) -> Detection:
    """The variant of a named protocol that fits best, and whether the bytes contradict it."""
    choice = parse_protocol(text)
    preamble = choice.options.get("preamble", "")
    skip = (0, 0)
    if preamble:
        skip = (preamble_size(preamble, sample.head(0)), preamble_size(preamble, sample.head(1)))
    rest = sample.skipping(skip)
    variant, variant_evidence = select_variant(choice.name, choice.options, rest)
    evidence = f"{source}: {text}" + (f"; {variant_evidence}" if variant_evidence else "")
    mismatch, other = "", find_mismatch(variant, choice.options, rest)
    if other:
        named_by = "the option says" if source == "given" else "the capture notes"
        mismatch = (
            f"{MISMATCH_PREFIX}{other}, but {named_by} {text}: it is read as {text}, and its "
            "violations are reported as possible"
        )
    return Detection(variant, evidence, 100, skip, mismatch=mismatch)


def detect(sample: SessionSample) -> Detection:
    """Detect the protocol of a sample."""
    if not sample.size:
        return Detection(None, "no bytes were captured")
    if not _can_be_credible(sample, SIGNATURES):
        # Captures of scans and floods have millions of such sessions.
        other = detect_other_protocol(sample.head(0), sample.head(1))
        text = other or "too few bytes to recognise a protocol without the start of the connection"
        return Detection(None, text, other_protocol=other)
    skip = (multistream_size(sample.head(0)), multistream_size(sample.head(1)))
    rest = sample.skipping(skip)
    found = _rank_candidates(rest, SIGNATURES)
    scores = tuple((each.trial.protocol, each.score) for each in found)
    other = detect_other_protocol(rest.head(0), rest.head(1))
    best = next((each for each in found if is_credible(each, sample.from_start)), None)
    if best is not None and other and not best.marker and not best.trial.websocket_path:
        best = None  # TLS, SSH and HTTP take precedence over a chance fit
    if best is None:
        closest = ", ".join(f"{text} {score}" for text, score in scores[:3])
        text = other or f"no protocol fits; the closest: {closest}"
        return Detection(None, text, 0, skip, scores, other_protocol=other)
    text = f"seen: {describe_evidence(best, skip)}"
    protocol = best.trial.protocol
    if skip != (0, 0):
        protocol = best.signature.negotiated(protocol)
    return Detection(protocol, text, best.score, skip, scores, bool(best.marker))


def _can_be_credible(sample: SessionSample, signatures: Iterable[Signature]) -> bool:
    """Whether a trial could be credible for one of these protocols, by the size of the sample.

    Without the start of the connection and without a marker, many frames are needed.
    """
    return sample.from_start or any(
        sample.size >= MIN_FRAMES_WITHOUT_START * each.min_frame_bytes
        or (each.marker is not None and each.marker(sample))
        for each in signatures
    )


def select_variant(name: str, options: dict[str, str], sample: SessionSample) -> tuple[str, str]:
    """The variant of a named protocol that fits best, and its evidence.

    The evidence is "" if the options name the variant, or the protocol has only one.
    """
    signature = next((each for each in SIGNATURES if each.name == name), None)
    if signature is None or not signature.variant_option or signature.variant_option in options:
        return protocol_string(name, options), ""
    best = _rank_candidates(sample, (signature,), options)[0]
    if best.trial.valid_frames == 0:
        return protocol_string(name, options), f"no {signature.variant_option} fits"
    return (
        best.trial.protocol,
        f"{signature.variant_option} found: {describe_evidence(best, (0, 0))}",
    )


def find_mismatch(variant: str, options: dict[str, str], sample: SessionSample) -> str:
    """What the sample is instead of the named protocol; "" if it may be the named one.

    Only another protocol that fits better, or whose marker is present, contradicts the named one.

    Args:
        variant: protocol string that the session is read as.
        options: the options that the caller gave.
        sample: the session's first bytes.
    """
    if not sample.size:
        return ""
    if not _can_be_credible(sample, SIGNATURES) and not detect_other_protocol(
        sample.head(0), sample.head(1)
    ):
        return ""
    name = variant.partition(":")[0]
    signature = next((each for each in SIGNATURES if each.name == name), None)
    excused = _excused_rules(signature, sample) if signature else ()
    short = sample.first(SHORT_SAMPLE_BYTES)
    own = try_protocol(variant, short, excused)
    if _is_certain(own, signature, sample):
        return ""
    if short.size < sample.size:
        own = try_protocol(variant, sample, excused)
    unread = not own.frame_count and not own.decode_error  # the first frame may be incomplete
    found = detect(sample)
    if found.protocol is None:
        upgrade = (
            websocket_upgrade_status(sample.head(0), sample.head(1))
            if name == "omnistreams"
            else NOT_UPGRADE
        )
        if upgrade == NEED_MORE or (upgrade == IS_UPGRADE and unread):
            return ""
        return found.other_protocol if int(100 * own.fit) < MIN_SCORE else ""
    better = found.score > int(100 * own.fit) and not (unread and sample.size < INCONCLUSIVE_BYTES)
    if not found.has_marker and not better:
        return ""
    other = found.protocol.partition(":")[0]
    if other == name and found.skip_bytes != (0, 0):
        return f"{name} behind multistream-select, {name}:preamble=multistream"
    if other == name and not (
        signature and signature.variant_option in options and found.protocol != variant
    ):
        return ""
    return f"{found.protocol} ({found.evidence.removeprefix('seen: ')})"


def _is_certain(trial: Trial, signature: Signature | None, sample: SessionSample) -> bool:
    """Whether a trial proves the named protocol.

    Every frame must be valid; where that says little, the protocol's proof must hold and no other
    protocol's marker be present.
    """
    if signature is None or trial.fit < 1:
        return False
    if signature.proof is None:
        return True
    others = (
        each.marker for each in SIGNATURES if each is not signature and each.marker is not None
    )
    return signature.proof(trial) and not any(mark(sample) for mark in others)


def _rank_candidates(
    sample: SessionSample, signatures: Iterable[Signature], options: dict[str, str] | None = None
) -> list[Candidate]:
    """All variants with their trials, best first.

    Protocols that need a proof are not tried if another candidate is perfect.
    """
    without_proof = [signature for signature in signatures if signature.proof is None]
    found = _try_signatures(sample, without_proof, options, brief=True)
    if not any(is_credible(each, sample.from_start) and is_perfect(each) for each in found):
        if any(each.trial.stopped_early for each in found):
            found = _try_signatures(sample, without_proof, options)
        need_proof = [signature for signature in signatures if signature.proof is not None]
        found += _try_signatures(sample, need_proof, options, others=found)
    # The sort is stable: ties keep the order of SIGNATURES, the most specific protocol first.
    return sorted(found, key=lambda each: (-bool(each.marker), -each.score))


def _try_signatures(
    sample: SessionSample,
    signatures: Iterable[Signature],
    options: dict[str, str] | None,
    *,
    others: Sequence[Candidate] = (),
    brief: bool = False,
) -> list[Candidate]:
    """Try each variant on a short sample, and those that fit on the full one.

    A protocol that needs a proof stays at the short sample if one of `others` is credible.
    `brief`: trials without a marker stop early.
    """
    short = sample.first(SHORT_SAMPLE_BYTES)
    found: list[Candidate] = []
    for signature in signatures:
        if signature.name in PROTOCOLS and (
            options is not None or _can_be_credible(sample, (signature,))
        ):
            mark = signature.marker(sample) if signature.marker else ""
            found += [
                _make_candidate(
                    signature,
                    mark,
                    try_protocol(
                        text, short, _excused_rules(signature, sample), brief and not mark
                    ),
                )
                for text in signature.variants(options or {})
            ]
    if short.size < sample.size:
        credible = any(is_credible(other, sample.from_start) for other in others)
        for number, each in enumerate(found):
            is_open = each.trial.fit > 0.5 or (sample.from_start and each.trial.is_undecided)
            if not is_open or (each.signature.proof is not None and credible):
                continue
            trial = try_protocol(
                each.trial.protocol, sample, _excused_rules(each.signature, sample)
            )
            found[number] = _make_candidate(each.signature, each.marker, trial)
    return found


def _excused_rules(signature: Signature, sample: SessionSample) -> tuple[str, ...]:
    return () if sample.from_start else signature.excused_rules


def _make_candidate(signature: Signature, marker: str, trial: Trial) -> Candidate:
    return Candidate(signature, trial, marker, int(100 * trial.fit))
