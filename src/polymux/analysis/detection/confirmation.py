# mypyc: compiled
"""Remembered verdicts: what an acceptor spoke before is tried first, and confirmed.

Problem. Most captured connections are short, and most of them go to few acceptors. Trying every
protocol on the first bytes of each costs more than analysing it.

Idea. `expect` says which protocol a session probably speaks. The analysis decodes the session as
that at once, which it would do anyway, and `confirm` compares the result with what `detector` would
find:

- Not one frame violates a rule. So the trial of this protocol would have the highest score.
- No other protocol's marker is present, and no candidate that is preferred at the same score can
  have this score: it breaks a rule in the first bytes (`PrefixRefuter`) or, where these do not
  decide, in the sample.

Then the verdict is that of `select_protocol`, word for word, and nothing has to be tried. In any
other case `confirm` returns None, and the session is detected and decoded as if nothing had been
remembered. What is remembered therefore changes the cost of an analysis and none of its rows.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from polymux.analysis.detection.other_protocols import detect_other_protocol
from polymux.analysis.detection.sample import (
    SessionSample,
    Trial,
    frame_count,
    multistream_size,
    perfect_trial,
)
from polymux.analysis.detection.signatures import (
    SIGNATURES,
    Candidate,
    Signature,
    describe_evidence,
    is_credible,
)
from polymux.analysis.detection.verdict import Detection
from polymux.analysis.options import (
    AUTO,
    AnalysisOptions,
    check_protocol_string,
    protocol_string,
)
from polymux.capture import TcpSession
from polymux.core.frames import FrameRows
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.token_exchange import PREFIX as TOKEN_PREFIX
from polymux.protocols.registry import BadProtocolString, ProtocolSpec, create, parse_protocol

MAX_ENDPOINTS: Final = 4096  # whose verdicts are remembered
MAX_CHOICES: Final = 256  # protocol strings whose parts are remembered
MAX_CHOICE_LENGTH: Final = 200  # of these; a capture can note a longer one
MAX_REFUTERS: Final = 64  # protocol strings whose refuting prefixes are remembered
MAX_PREFIXES: Final = 4096  # refuting prefixes of a protocol and side
PREFIX_BYTES: Final[i64] = 32  # of a sample, that may refute a protocol
STEP_BYTES: Final[i64] = 64  # fed at a time where the prefix does not decide
DEFAULT_CLOSED_STREAMS: Final[i64] = Limits().closed_streams_remembered

GIVEN: Final = "given"
NOTED: Final = "noted in the capture"


class Expectation:
    """What a session is probably read as.

    `text` is `auto` or the protocol string that was named, by the caller or the capture (`source`).
    `protocol` is the variant to try first; "" if none is known.
    """

    def __init__(self, text: str, source: str, acceptor: str) -> None:
        self.text = text
        self.source = source
        self.acceptor = acceptor
        self.protocol = ""
        self.choice: ProtocolSpec | None = None  # of a named protocol


class RememberedVerdicts:
    """The variants that were detected, by what was named and by acceptor."""

    def __init__(self) -> None:
        self.by_acceptor: dict[tuple[str, str], str] = {}
        self.last: dict[str, str] = {}  # of any acceptor

    def find(self, text: str, acceptor: str) -> str:
        """What the acceptor spoke, or else any other; "" if nothing is known."""
        found = self.by_acceptor.get((text, acceptor))
        return found if found is not None else self.last.get(text, "")

    def add(self, text: str, acceptor: str, protocol: str) -> None:
        if len(self.by_acceptor) >= MAX_ENDPOINTS:
            self.by_acceptor.clear()
        if len(self.last) >= MAX_CHOICES:
            self.last.clear()
        self.by_acceptor[text, acceptor] = protocol
        self.last[text] = protocol

    def clear(self) -> None:
        self.by_acceptor.clear()
        self.last.clear()


class PrefixRefuter:
    """Remembers with which bytes no sample of a protocol without violations begins.

    A violation in the first bytes is one whatever follows. So a prefix is tried once, byte by byte,
    and kept up to the byte that broke a rule.
    """

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.lengths: list[int] = []  # of all that are kept
        self.prefixes: tuple[set[bytes], set[bytes]] = (set(), set())  # by the side that sent them

    def refutes(self, side: int, first: bytes) -> bool:
        """Whether the first bytes of a session, sent by `side`, break a rule of the protocol."""
        known = self.prefixes[side]
        for length in self.lengths:
            if first[:length] in known:
                return True
        found = self.find_violation(side, first)
        if found == 0:
            return False
        if len(known) >= MAX_PREFIXES:
            known.clear()
        known.add(first[:found])
        if found not in self.lengths:
            self.lengths.append(int(found))
        return True

    def find_violation(self, side: i64, first: bytes) -> i64:
        """After how many bytes the first rule is broken; 0 if none is."""
        observer = Observer(create(self.protocol), False)
        size: i64 = len(first)
        if size > PREFIX_BYTES:
            size = PREFIX_BYTES
        for n in range(size):
            observer.feed(side, first[n : n + 1], 0)
            if has_failed(observer):
                return n + 1
        return 0


_verdicts: Final = RememberedVerdicts()
_choices: Final[dict[str, ProtocolSpec]] = {}  # protocol strings that can be used
_refuters: Final[dict[str, PrefixRefuter]] = {}
_signatures: Final[dict[str, Signature]] = {each.name: each for each in SIGNATURES}
# Of each signature, by name: its variants, where the caller named no option.
_variants: Final[dict[str, list[str]]] = {each.name: each.variants({}) for each in SIGNATURES}


def forget_verdicts() -> None:
    """Forget what was remembered: the next session is detected."""
    _verdicts.clear()


def expect(
    session: TcpSession, options: AnalysisOptions, sample: SessionSample
) -> Expectation | None:
    """What a session is probably read as; None if its verdict cannot be confirmed.

    Args:
        session: the session, its packets scanned.
        options: the caller's options.
        sample: all bytes of the session.
    """
    for side in (0, 1):
        head = sample.head(side)
        if head.startswith(TOKEN_PREFIX) or multistream_size(head) > 0:
            return None
    expected = Expectation(options.protocol_for(session), GIVEN, session.acceptor)
    hint = session.protocol_hint
    if expected.text == AUTO and hint:
        expected.text, expected.source = hint, NOTED
    text = expected.text
    if text == AUTO:
        expected.protocol = _verdicts.find(text, expected.acceptor)
        return expected
    choice = _usable_choice(text)
    if choice is None or "preamble" in choice.options:
        return None
    signature = _signatures.get(choice.name)
    if signature is None or signature.proof is not None:
        return None
    expected.choice = choice
    if signature.variant_option and signature.variant_option not in choice.options:
        expected.protocol = _verdicts.find(text, expected.acceptor)
    else:
        expected.protocol = protocol_string(choice.name, choice.options)
    return expected


def remember(expected: Expectation, found: Detection) -> None:
    """Remember the verdict of a session for the next one."""
    if found.protocol is None or found.score < 100 or found.skip_bytes != (0, 0) or found.mismatch:
        return
    signature = _signatures.get(found.protocol.partition(":")[0])
    if signature is not None and signature.proof is None:
        _verdicts.add(expected.text, expected.acceptor, found.protocol)


def confirm(
    expected: Expectation, sample: SessionSample, observer: Observer, batches: list[FrameRows]
) -> Detection | None:
    """The verdict of `select_protocol`, if that is the expected protocol; None if it may be not.

    Args:
        expected: from `expect`, with a protocol.
        sample: all bytes of the session, from the start of the connection.
        observer: of the expected protocol, seen from the middle. It has been fed the sample, and
            is not finished. It goes on as if this had not been called.
        batches: the rows of the frames that it has written.
    """
    if observer.connection.next_serial > DEFAULT_CLOSED_STREAMS:
        return None  # a trial would have forgotten some
    trial = perfect_trial(expected.protocol, observer, batches)
    if trial is None or trial.frame_count == 0:
        return None
    signature = _signatures[expected.protocol.partition(":")[0]]
    for each in SIGNATURES:
        mark = each.marker
        if each is not signature and mark is not None and mark(sample):
            return None
    marker = signature.marker(sample) if signature.marker is not None else ""
    best = Candidate(signature, trial, marker, 100)
    if expected.choice is None:
        return _confirm_detected(expected, sample, best)
    return _confirm_named(expected, expected.choice, sample, best)


def _confirm_detected(
    expected: Expectation, sample: SessionSample, best: Candidate
) -> Detection | None:
    """The verdict of `detect`."""
    if not is_credible(best, True):
        return None
    is_recognised = best.marker or best.trial.websocket_path
    if not is_recognised and detect_other_protocol(sample.head(0), sample.head(1)):
        return None
    signature = best.signature
    for each in SIGNATURES:
        if each is signature:
            break
        if best.marker or each.proof is not None:
            continue  # ranked below
        for text in _variants[each.name]:
            if not _is_refuted(text, sample, each.min_frames):
                return None
    min_frames = 1 if best.marker else signature.min_frames
    if not _is_first_variant(_variants[signature.name], best.trial, sample, min_frames):
        return None
    text = f"seen: {describe_evidence(best, (0, 0))}"
    scores = ((expected.protocol, 100),)
    return Detection(expected.protocol, text, 100, (0, 0), scores, bool(best.marker))


def _confirm_named(
    expected: Expectation, choice: ProtocolSpec, sample: SessionSample, best: Candidate
) -> Detection | None:
    """The verdict for a named protocol."""
    signature = best.signature
    evidence = f"{expected.source}: {expected.text}"
    if signature.variant_option and signature.variant_option not in choice.options:
        variants = signature.variants(choice.options) if choice.options else _variants[choice.name]
        if not _is_first_variant(variants, best.trial, sample, 1):
            return None
        described = describe_evidence(best, (0, 0))
        evidence = f"{evidence}; {signature.variant_option} found: {described}"
    return Detection(expected.protocol, evidence, 100)


def _is_first_variant(
    variants: list[str], trial: Trial, sample: SessionSample, min_frames: int
) -> bool:
    """Whether this is one of the variants, and none before it fits as well."""
    for text in variants:
        if text == trial.protocol:
            return True
        if not _is_refuted(text, sample, min_frames):
            return False
    return False


def _is_refuted(protocol: str, sample: SessionSample, min_frames: int) -> bool:
    """Whether a trial of the sample cannot have `min_frames` frames and no violation."""
    refuter = _refuters.get(protocol)
    if refuter is None:
        if len(_refuters) >= MAX_REFUTERS:
            _refuters.clear()
        refuter = _refuters[protocol] = PrefixRefuter(protocol)
    side, first, _ = sample.pieces[0]
    if refuter.refutes(side, first):
        return True
    observer = Observer(create(protocol), False)
    for side, data, timestamp in sample.pieces:
        size: i64 = len(data)
        for start in range(i64(0), size, STEP_BYTES):
            observer.feed(side, data[start : start + STEP_BYTES], timestamp)
            if has_failed(observer):
                return True
    return int(frame_count(observer)) < min_frames


def has_failed(observer: Observer) -> bool:
    """Whether a rule was broken, or decoding stopped before the end of what was fed."""
    c = observer.connection
    for d in (c.dialer, c.acceptor):
        if d.decoding_stopped and d.undecoded_bytes > 0:
            return True
    return any(violation.rule.severity is not Severity.NOTE for violation in c.violations)


def _usable_choice(text: str) -> ProtocolSpec | None:
    """The parts of a protocol string; None if it cannot be used, or is too long to remember."""
    if len(text) > MAX_CHOICE_LENGTH:
        return None
    found = _choices.get(text)
    if found is None:
        try:
            check_protocol_string(text)
        except BadProtocolString:
            return None
        if len(_choices) >= MAX_CHOICES:
            _choices.clear()
        found = _choices[text] = parse_protocol(text)
    return found
