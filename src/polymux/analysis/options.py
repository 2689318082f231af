"""What the caller asks of an analysis, and which protocol a session is read as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polymux.analysis.detection.detector import Verdict, contradiction, guess, settle
from polymux.analysis.detection.other_protocols import preamble_octets, preamble_size
from polymux.analysis.detection.sample import GLANCE, LOOK, Sample, attempt, take_sample
from polymux.analysis.detection.signatures import SCORERS
from polymux.analysis.schema.tables import TABLES
from polymux.capture import TcpSession
from polymux.protocols.registry import BadProtocolString, create, parse

AUTO = "auto"
DOUBT = "the bytes look like "  # how the note of a session begins whose protocol was named wrongly
ALWAYS = frozenset(TABLES) - {"captures", "content"}
_SEARCHED = 1 << 20  # octets in which the first frame is looked for, where the start is missing
_ALIGNMENTS = 256  # places tried
_FRAMES = 3  # frames that must follow one another
_SENSE = 0.95  # and the share of them that must fit


@dataclass(frozen=True, slots=True)
class Plan:
    """`protocol` is `auto` or a protocol string for every session; `ports` names the protocol
    behind a port and is the more exact word. `tables` are the tables somebody wants. `stream`
    names the only stream whose content is wanted (`d1`).

    Plain data, checked when made: BadProtocolString says what is wrong.
    """

    protocol: str = AUTO
    ports: Mapping[int, str] = field(default_factory=dict)
    tables: frozenset[str] = ALWAYS
    stream: str = ""

    def __post_init__(self) -> None:
        for text in (self.protocol, *self.ports.values()):
            if text != AUTO:
                check(text)

    def with_content(self) -> Plan:
        """The same, with the content table."""
        return Plan(self.protocol, self.ports, self.tables | {"content"}, self.stream)

    def given(self, session: TcpSession) -> str:
        """What the caller said about this session: a protocol string, or `auto`."""
        for end in (session.acceptor, session.dialer):
            text = self.ports.get(int(end.rpartition(":")[2]))
            if text is not None:
                return text
        return self.protocol


def check(text: str) -> None:
    """Raise BadProtocolString if this protocol string cannot be used."""
    create(text)
    try:
        preamble_octets(parse(text).options.get("preamble", ""))
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


def choose(
    session: TcpSession, plan: Plan, sample: Sample, searched: Sample | None = None
) -> Verdict:
    """The protocol to read a session as: what was said, else what the capture notes, else what its
    first octets, the sample, show.

    Where the beginning was not captured, the first frame is looked for in `searched`; None reads
    the session once more for it, which a session on a pipe cannot do.
    """
    text, source = plan.given(session), "given"
    if text == AUTO and session.protocol_hint:
        text, source = session.protocol_hint, "noted in the capture"
        try:
            check(text)
        except BadProtocolString as problem:
            found = guess(sample)
            note = f"{found.evidence}; the capture notes a protocol that cannot be used: {problem}"
            return replace(found, evidence=note)
    if text == AUTO:
        found = guess(sample)
        if found.protocol is None:
            return found
        return _aligned(found, session, searched)
    choice = parse(text)
    preamble = choice.options.get("preamble", "")
    skip = (0, 0)
    if preamble:
        skip = (preamble_size(preamble, sample.head(0)), preamble_size(preamble, sample.head(1)))
    rest = sample.without(skip)
    settled, found_out = settle(choice.name, choice.options, rest)
    evidence = f"{source}: {text}" + (f"; {found_out}" if found_out else "")
    doubt, other = "", contradiction(settled, choice.options, rest)
    if other:
        said = "the option says" if source == "given" else "the capture notes"
        doubt = f"{DOUBT}{other}, but {said} {text}: it is read as {text}, and what is found is "
        doubt += "only possible"
    return _aligned(Verdict(settled, evidence, 100, skip, doubt=doubt), session, searched)


def _aligned(verdict: Verdict, session: TcpSession, searched: Sample | None) -> Verdict:
    """Where the beginning was not captured: skip to the first place where a frame may begin."""
    if session.saw_syn or verdict.protocol is None or verdict.skip != (0, 0):
        return verdict
    sample = searched if searched is not None else take_sample(session, _SEARCHED)
    skip = tuple(_alignment(verdict.protocol, sample.only(side), side) for side in (0, 1))
    return replace(verdict, skip=(skip[0], skip[1]))


def _alignment(text: str, sample: Sample, side: int) -> int:
    """The offset at which the frames of one side begin to make sense; 0 if nowhere.

    Only where a packet begins can be tried: senders write whole frames, most of the time.
    """
    scorer = next((each for each in SCORERS if each.name == parse(text).name), None)
    excused = scorer.excused if scorer is not None else ()
    for number, boundary in enumerate(sample.boundaries(side)):
        if number >= _ALIGNMENTS:
            break
        rest = sample.without((boundary, boundary))
        if attempt(text, rest.first(GLANCE), excused).share < _SENSE:
            continue
        trial = attempt(text, rest.first(LOOK), excused)
        if trial.share >= _SENSE and trial.fitting >= _FRAMES:
            return boundary
    return 0
