"""Select the protocol a session is decoded as: by the options, the capture, or its first bytes."""

from __future__ import annotations

from dataclasses import replace

from polymux.analysis.detection.detector import Detection, detect, find_mismatch, select_variant
from polymux.analysis.detection.other_protocols import preamble_size
from polymux.analysis.detection.sample import (
    FULL_SAMPLE_BYTES,
    SHORT_SAMPLE_BYTES,
    SessionSample,
    take_sample,
    try_protocol,
)
from polymux.analysis.detection.signatures import SIGNATURES
from polymux.analysis.options import AUTO, AnalysisOptions, check_protocol_string
from polymux.capture import TcpSession
from polymux.protocols.registry import BadProtocolString, parse_protocol

MISMATCH_PREFIX = "the bytes look like "
"""How the note of a session begins whose bytes contradict the protocol that was named."""

# Alignment: where the start of a connection was not captured, the first frame is searched for.
_ALIGNMENT_SEARCH_BYTES = 1 << 20  # bytes searched
_MAX_ALIGNMENTS = 256  # offsets tried
_MIN_ALIGNED_FRAMES = 3  # valid frames that must follow
_MIN_ALIGNED_FIT = 0.95  # share of the frames that must be valid


def select_protocol(
    session: TcpSession,
    options: AnalysisOptions,
    sample: SessionSample,
    alignment_sample: SessionSample | None = None,
) -> Detection:
    """Select the protocol of a session.

    The options decide; with `auto`, the protocol noted in the capture; without a note, what the
    first bytes show.

    Args:
        session: the session, its packets scanned.
        options: the caller's options.
        sample: the session's first bytes.
        alignment_sample: the bytes in which the first frame is searched for where the start of
            the connection was not captured. None reads them from the session again, which is
            impossible for a session that is read from a pipe.
    """
    text, source = options.protocol_for(session), "given"
    if text == AUTO and session.protocol_hint:
        text, source = session.protocol_hint, "noted in the capture"
        try:
            check_protocol_string(text)
        except BadProtocolString as problem:
            found = detect(sample)
            note = f"{found.evidence}; the capture notes a protocol that cannot be used: {problem}"
            return replace(found, evidence=note)
    if text == AUTO:
        found = detect(sample)
        if found.protocol is None:
            return found
        return _with_alignment(found, session, alignment_sample)
    return _with_alignment(_named_protocol(text, source, sample), session, alignment_sample)


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


def _with_alignment(
    detection: Detection, session: TcpSession, alignment_sample: SessionSample | None
) -> Detection:
    """Where the start was not captured: skip to the first offset at which a frame may begin."""
    if session.saw_syn or detection.protocol is None or detection.skip_bytes != (0, 0):
        return detection
    sample = alignment_sample
    if sample is None:
        sample = take_sample(session, _ALIGNMENT_SEARCH_BYTES)
    skip = tuple(_find_alignment(detection.protocol, sample.only(side), side) for side in (0, 1))
    return replace(detection, skip_bytes=(skip[0], skip[1]))


def _find_alignment(protocol: str, sample: SessionSample, side: int) -> int:
    """The offset at which the frames of one side begin to decode; 0 if none was found.

    Only offsets at which a packet begins are tried: most senders write whole frames.
    """
    name = parse_protocol(protocol).name
    signature = next((signature for signature in SIGNATURES if signature.name == name), None)
    excused = signature.excused_rules if signature is not None else ()
    for number, boundary in enumerate(sample.boundaries(side)):
        if number >= _MAX_ALIGNMENTS:
            break
        rest = sample.skipping((boundary, boundary))
        if try_protocol(protocol, rest.first(SHORT_SAMPLE_BYTES), excused).fit < _MIN_ALIGNED_FIT:
            continue
        trial = try_protocol(protocol, rest.first(FULL_SAMPLE_BYTES), excused)
        if trial.fit >= _MIN_ALIGNED_FIT and trial.valid_frames >= _MIN_ALIGNED_FRAMES:
            return boundary
    return 0
