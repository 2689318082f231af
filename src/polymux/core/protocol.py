# mypyc: compiled
"""What a protocol is: a wire, a law, bookkeeping and verbs; one instance a conversation.

A subclass knows two sides and never "us". `header` is the only parser and `put` the only writer.
`judge` is pure: the set of rules a frame breaks. `apply` is bookkeeping and never fails, whatever
`judge` said. State is plain data, saved and restored with the conversation.
"""

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.frames import CONTROL, Frame, Head, Kind
from polymux.core.limits import Limits
from polymux.core.rules import Duty, Reaction, Rule, Severity, mask, octets_text, reaction_mask
from polymux.core.side import Sight
from polymux.core.streams import ABORTED, OPEN, Stream, Table, load_stream

NO_STREAM: Final[i64] = 255  # `head.opener` of a frame that belongs to no stream
NO_ID: Final[i64] = -1


class Protocol:
    """One direction-free rule book and its wire."""

    def __init__(
        self,
        name: str,
        rules: tuple[Rule, ...],
        kinds: dict[int, Kind],
        limits: Limits,
        vantage: i64,
    ) -> None:
        self.name = name
        self.rules = rules
        self.kinds = kinds
        self.limits = limits
        self.sight: Sight = Sight(vantage)
        self.streams: Table = Table(limits.remembered)
        self.duties: dict[tuple[int, int, int], Duty] = {}  # by side, kind and key
        self.lapsed: list[tuple[Duty, str]] = []  # duties given up just now, and on which stream
        self.effects: vec[i64] = vec[i64]([CONTROL] * 256)
        for number, kind in kinds.items():
            self.effects[number] = kind.effect
        self.errors: i64 = mask(rules, (Severity.ERROR,))
        self.findings: i64 = mask(rules, (Severity.ERROR, Severity.WARNING))
        self.fatal: i64 = reaction_mask(rules, Reaction.SESSION)
        self.faults: i64 = reaction_mask(rules, Reaction.STREAM)
        # What the generic machine must know of a protocol:
        self.credit: bool = False  # do halves have ledgers?
        self.two_way: bool = True  # do both sides send content on a stream?
        self.messages: bool = False  # is content handed on in whole messages?
        self.texts: bool = False  # is all but content nothing but text, of which a part will do?
        self.alike: bool = False  # without leave to spend, is content judged as that before it?
        self.max_frame: i64 = limits.frame  # octets of content accepted in a frame
        self.send_frame: i64 = limits.frame  # octets of content we put in a frame at most
        self.max_control: i64 = limits.control  # octets of any other frame accepted
        self.max_name: i64 = limits.name
        self.window: int = limits.window  # what we announce, in the protocol's unit
        self.too_long: i64 = 0  # the rule for a frame over its limit
        self.truncated: i64 = 0  # the rule for an end inside a frame
        self.mutual: i64 = 0  # rules that take the other side's frames to judge by
        self.sequel: i64 = 0  # rules that take the sender's earlier frames
        self.handshaken: bool = True  # is everything known that must be known before frames?
        # What `apply` is told and reports about the frame at hand:
        self.said: bytes = b""  # the name or text in it
        self.touched: Stream | None = None  # the stream it belongs to
        self.counted: bool = False  # does its content count?
        self.displaced: Stream | None = None  # a live stream that lost its id to this opening
        self.midway: bool = False  # has a frame of the other side begun to pass?
        self.unlocked: bool = False  # can octets of the other direction that were held be read now?
        self.reason: str = ""  # why the next frame cannot be found, where `header` or `part` is BAD

    def forget(self) -> None:
        """Before `apply`: nothing is known of the frame at hand."""
        self.touched = None
        self.displaced = None
        self.counted = False

    # --- wire

    def header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        """Fill `head`; return where the payload starts, or SHORT, BAD, HOLD."""
        raise NotImplementedError

    def body(self, sender: i64, data: bytes, start: i64, end: i64, head: Head) -> None:
        """Read the payload of a whole frame that is not content: amount, text, flaws."""
        return

    def part(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        """Octets of the next part of a content frame that is sized as it comes, or SHORT, BAD."""
        return 0

    def put(self, out: BytesWriter, sender: i64, head: Head, text: bytes) -> None:
        """Write a frame: its header and, unless it is content, the payload made from `text`."""
        raise NotImplementedError

    def address(self, sender: i64, head: Head) -> None:
        """Set `number` and `opener` of a head from its kind and key, as the wire would say them.

        Where the wire cannot say the key as given, the key becomes what the wire will say.
        """
        raise NotImplementedError

    def unreadable(self, side: i64) -> str:
        """Why no further frame of this side can be found, or "". Asked after `unlocked`."""
        return ""

    # --- law and bookkeeping

    def judge(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        """Pure: the rules this frame breaks, or CROSSED, or 0."""
        raise NotImplementedError

    def seen_alone(self, head: Head, verdict: i64) -> i64:
        """What is left of a verdict where frames of the other side were not seen."""
        return verdict & ~self.mutual

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        """Bookkeeping. Sets `touched` and, for content, `counted`."""
        raise NotImplementedError

    def ordinary(self, sender: i64, head: Head, stream: Stream, at: i64) -> bool:
        """Judge content and, if it breaks nothing, apply it: both in one, for speed."""
        if self.judge(sender, head, stream) != 0:
            return False
        self.forget()
        self.apply(sender, head, stream, at)
        return True

    def meant(self, sender: i64, head: Head, stream: Stream) -> Stream:
        """The use of an id that a frame is about; `stream` is the newest of several."""
        return stream

    def may_be_meant(self, stream: Stream) -> bool:
        """May a frame yet come that is about this stream, whose id is used again?"""
        return False

    def finish(self, ended: bool) -> list[Duty]:
        """The connection is over: what is still owed, as duties with the rule to report."""
        return [
            duty for duty in self.duties.values() if self.tells(duty, self.streams.find(duty.key))
        ]

    def tells(self, duty: Duty, stream: Stream | None) -> bool:
        """Is this duty to be reported if it is never paid?"""
        return duty.rule != 0

    def is_over(self, stream: Stream) -> bool:
        """Is nothing more expected on this stream?"""
        return stream.dialer.state != OPEN and stream.acceptor.state != OPEN

    def explain(self, rule: i64, sender: i64, head: Head, stream: Stream | None) -> str:
        """What was wrong with this frame, in the user's terms. Called before `apply`."""
        text = self.kind_name(head.kind)
        if head.size > 0:
            text += f" of {octets_text(head.size)}"
        if head.amount >= 0:
            text += f", amount {head.amount}"
        return text

    def ending(self, stream: Stream) -> str:
        """How a stream ended, in the words of the streams table."""
        dialer, acceptor = stream.dialer.state, stream.acceptor.state
        if stream.ending:
            return stream.ending
        if dialer == ABORTED or acceptor == ABORTED:
            return "reset"
        if dialer != OPEN and acceptor != OPEN:
            return "clean"
        if dialer != OPEN or acceptor != OPEN:
            return "half-closed"
        return "open"

    def kind_name(self, kind: i64) -> str:
        known = self.kinds.get(kind)
        return known.name if known is not None else f"Code{kind}"

    def version(self) -> str:
        return ""

    def dialect(self) -> str:
        return ""

    def owe(self, side: i64, kind: i64, key: i64, rule: i64, at: i64) -> None:
        """Note that `side` owes a frame of this kind, for what the other side has just sent."""
        if (side, kind, key) not in self.duties:
            since = self.sight.sent(1 - side)
            self.duties[(side, kind, key)] = Duty(side, kind, key, rule, since, at)

    def settle(self, side: i64, kind: i64, key: i64) -> None:
        """Strike out a duty that has been paid."""
        if (side, kind, key) in self.duties:
            del self.duties[(side, kind, key)]

    def lapse(self, key: i64, stream: Stream | None) -> None:
        """The stream is forgotten: what pays its duties would not be recognised any more."""
        for side in (0, 1):
            for kind in self.kinds:
                duty = self.duties.pop((side, kind, key), None)
                if duty is not None:
                    self.give_up(duty, stream)

    def give_up(self, duty: Duty, stream: Stream | None) -> None:
        if self.tells(duty, stream):
            self.lapsed.append((duty, stream.label() if stream is not None else ""))

    # --- verbs: what an endpoint sends to do a thing

    def hello(self, side: i64, nonce: bytes) -> Frame | None:
        """The first frame a side must send, if there is one."""
        return None

    def allocate(self, side: i64) -> i64:
        """The key of a stream this side may open now, or NO_ID."""
        raise NotImplementedError

    def opening(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        """The frame that opens a stream; None where its first content does (see `prepare`)."""
        return None

    def prepare(self, side: i64, key: i64) -> Stream:
        """A stream that its first content will open."""
        raise NotImplementedError

    def accepting(self, side: i64, stream: Stream, window: int) -> Frame | None:
        """Accept a stream the peer opened; None where opening is all it takes."""
        return None

    def content_head(self, side: i64, stream: Stream, head: Head, final: bool) -> None:
        """Fill kind, units and amount of a content frame of `head.size` octets.

        `final`: this side ends its half with it, if the protocol ends halves that way.
        """
        raise NotImplementedError

    def cut(self, side: i64, stream: Stream, rest: i64, quantum: i64, last: bool) -> i64:
        """How much of a queued piece may go in this side's next frame; -1: nothing now.

        `rest`: octets left of the piece. `last`: no piece follows it and the end is not queued,
        so that more may or may not come.
        """
        return rest if rest < quantum else quantum

    def refuse(self, side: i64, stream: Stream, data: bytes) -> str:
        """Why this content could never leave, for the caller who would send it; "": it can."""
        return ""

    def refuse_end(self, side: i64, stream: Stream) -> str:
        """Why this side cannot end its half with what is queued now, or "": it can."""
        return ""

    def ending_frame(self, side: i64, stream: Stream) -> Frame | None:
        """End this side's half; None where the last content frame does it."""
        raise NotImplementedError

    def aborting(self, side: i64, stream: Stream, text: bytes) -> Frame | None:
        raise NotImplementedError

    def refusing(self, side: i64, stream: Stream) -> Frame | None:
        """Say that this side will read no more, where the protocol can say so."""
        return None

    def granting(self, side: i64, stream: Stream, amount: int) -> Frame | None:
        """Give the peer leave for `amount` more; None where the protocol has no leave."""
        return None

    def paying(self, duty: Duty) -> Frame | None:
        """The frame that pays a duty, or None to wait."""
        return Frame(duty.kind, duty.key)

    def silences(self, duty: Duty) -> bool:
        """Does paying this duty mean that what is queued on its stream will not be sent?"""
        return True

    def hesitates(self, duty: Duty) -> bool:
        """Does its answer depend on whether what came before it was read?"""
        return False

    # --- saved state

    def save(self) -> dict[str, object]:
        return {
            "sight": self.sight.save(),
            "streams": [stream.save() for stream in self.streams.all()],
            "closed": self.streams.save_closed(),
            "forgot": self.streams.forgot,
            "duties": [duty.save() for duty in self.duties.values()],
            "handshaken": self.handshaken,
        }

    def load(self, saved: dict[str, object]) -> None:
        sight, streams, duties = saved["sight"], saved["streams"], saved["duties"]
        closed = saved["closed"]
        assert isinstance(sight, list)
        assert isinstance(streams, list)
        assert isinstance(closed, list)
        assert isinstance(duties, list)
        self.sight.load(sight)
        self.streams.forgot = bool(saved["forgot"])
        self.handshaken = bool(saved["handshaken"])
        for entry in streams:
            self.streams.put(load_stream(entry))
        self.streams.load_closed(closed)
        for d in duties:
            self.duties[(d[0], d[1], d[2])] = Duty(d[0], d[1], d[2], d[3], d[4], d[5])

    def relink(self, gone: list[Stream]) -> None:
        """After `load`: these are the streams that have left the table and are not yet taken."""
        return
