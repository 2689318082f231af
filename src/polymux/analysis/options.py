"""What the caller asks of an analysis, and which protocol a session is read as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polymux.analysis.detection.detector import Detection, detect, find_mismatch, select_variant
from polymux.analysis.detection.other_protocols import preamble_bytes, preamble_size
from polymux.analysis.detection.sample import (
    FULL_SAMPLE_BYTES,
    SHORT_SAMPLE_BYTES,
    SessionSample,
    take_sample,
    try_protocol,
)
from polymux.analysis.detection.signatures import SIGNATURES
from polymux.analysis.schema.tables import TABLES
from polymux.capture import TcpSession
from polymux.protocols.registry import BadProtocolString, create, parse_protocol

AUTO = "auto"
MISMATCH_PREFIX = (
    "the bytes look like "  # how the note of a session begins whose protocol was named wrongly
)
DEFAULT_TABLES = frozenset(TABLES) - {"captures", "content"}
_ALIGNMENT_SEARCH_BYTES = (
    1 << 20
)  # bytes in which the first frame is looked for, where the start is missing
_MAX_ALIGNMENTS = 256  # places tried
_MIN_ALIGNED_FRAMES = 3  # frames that must follow one another
_MIN_ALIGNED_FIT = 0.95  # and the share of them that must fit


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """`protocol` is `auto` or a protocol string for every session; `ports` names the protocol
    behind a port and is the more exact word. `tables` are the tables somebody wants. `stream`
    names the only stream whose content is wanted (`d1`).

    Plain data, checked when made: BadProtocolString says what is wrong.
    """

    protocol: str = AUTO
    ports: Mapping[int, str] = field(default_factory=dict)
    tables: frozenset[str] = DEFAULT_TABLES
    content_stream: str = ""

    def __post_init__(self) -> None:
        for text in (self.protocol, *self.ports.values()):
            if text != AUTO:
                check_protocol_string(text)

    def with_content(self) -> AnalysisOptions:
        """The same, with the content table."""
        return AnalysisOptions(
            self.protocol, self.ports, self.tables | {"content"}, self.content_stream
        )

    def protocol_for(self, session: TcpSession) -> str:
        """What the caller said about this session: a protocol string, or `auto`."""
        for end in (session.acceptor, session.dialer):
            text = self.ports.get(int(end.rpartition(":")[2]))
            if text is not None:
                return text
        return self.protocol


def check_protocol_string(text: str) -> None:
    """Raise BadProtocolString if this protocol string cannot be used."""
    create(text)
    try:
        preamble_bytes(parse_protocol(text).options.get("preamble", ""))
    except ValueError as problem:
        raise BadProtocolString(f"{text!r}: {problem}") from None


def parse_ports(pairs: Iterable[str]) -> dict[int, str]:
    """`9000=mplex` and plain `9000` to the plan's ports; ValueError says what is wrong."""
    ports: dict[int, str] = {}
    for pair in pairs:
        number, equals, text = pair.partition("=")
        if not number.isdecimal() or not 0 < int(number) < 65536 or (equals and not text):
            raise ValueError(f"port {pair!r}: write 9000=mplex, or 9000 to have it guessed")
        ports[int(number)] = text or AUTO
    return ports


def select_protocol(
    session: TcpSession,
    options: AnalysisOptions,
    sample: SessionSample,
    alignment_sample: SessionSample | None = None,
) -> Detection:
    """The protocol to read a session as: what was said, else what the capture notes, else what its
    first bytes, the sample, show.

    Where the beginning was not captured, the first frame is looked for in `searched`; None reads
    the session once more for it, which a session on a pipe cannot do.
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
    choice = parse_protocol(text)
    preamble = choice.options.get("preamble", "")
    skip = (0, 0)
    if preamble:
        skip = (preamble_size(preamble, sample.head(0)), preamble_size(preamble, sample.head(1)))
    rest = sample.skipping(skip)
    settled, found_out = select_variant(choice.name, choice.options, rest)
    evidence = f"{source}: {text}" + (f"; {found_out}" if found_out else "")
    doubt, other = "", find_mismatch(settled, choice.options, rest)
    if other:
        said = "the option says" if source == "given" else "the capture notes"
        doubt = f"{MISMATCH_PREFIX}{other}, but {said} {text}: it is read as {text}, and what is found is "
        doubt += "only possible"
    return _with_alignment(
        Detection(settled, evidence, 100, skip, mismatch=doubt), session, alignment_sample
    )


def _with_alignment(
    detection: Detection, session: TcpSession, alignment_sample: SessionSample | None
) -> Detection:
    """Where the beginning was not captured: skip to the first place where a frame may begin."""
    if session.saw_syn or detection.protocol is None or detection.skip_bytes != (0, 0):
        return detection
    sample = (
        alignment_sample
        if alignment_sample is not None
        else take_sample(session, _ALIGNMENT_SEARCH_BYTES)
    )
    skip = tuple(_find_alignment(detection.protocol, sample.only(side), side) for side in (0, 1))
    return replace(detection, skip_bytes=(skip[0], skip[1]))


def _find_alignment(protocol: str, sample: SessionSample, side: int) -> int:
    """The offset at which the frames of one side begin to make sense; 0 if nowhere.

    Only where a packet begins can be tried: senders write whole frames, most of the time.
    """
    scorer = next((each for each in SIGNATURES if each.name == parse_protocol(protocol).name), None)
    excused = scorer.excused_rules if scorer is not None else ()
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
