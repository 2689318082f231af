# mypyc: compiled
"""Frame kinds and rules of yamux. The n-th rule of `RULES` is bit n of a violation mask.

A kind is `type * 16 + flags`, so that a frame with several flags has a kind of its own.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import ABORTS, ACCEPTS, CONTENT, CONTROL, ENDS, GRANTS, OPENS, FrameKind
from polymux.core.rules import Origin, Reaction, Rule, Severity

SYN: Final[i64] = 1
ACK: Final[i64] = 2
FIN: Final[i64] = 4
RST: Final[i64] = 8
FLAGS: Final[i64] = 15  # all of them

DATA: Final[i64] = 0
WINDOW_UPDATE: Final[i64] = 16
PING: Final[i64] = 33  # type 2 with SYN
PONG: Final[i64] = 34  # type 2 with ACK
SESSION_KINDS: Final[i64] = 32  # kinds from here on belong to no stream
GO_AWAY: Final[i64] = 48

TYPE_NAMES: Final = ("Data", "WindowUpdate", "Ping", "GoAway")
FLAG_NAMES: Final = ((1, "SYN"), (2, "ACK"), (4, "FIN"), (8, "RST"))


def window_update_effect(flags: int) -> i64:
    """The effect of a window update with these flags; an end beside an opening is found later."""
    if flags & 1:
        return OPENS
    if flags & 8:
        return ABORTS
    if flags & 2:
        return ACCEPTS
    return ENDS if flags & 4 else GRANTS


def frame_kinds() -> dict[int, FrameKind]:
    """Every combination of a type and its flags, by number."""
    kinds: dict[int, FrameKind] = {}
    for number in range(64):
        flags = number & 15
        name = "+".join(
            [TYPE_NAMES[number >> 4], *[text for bit, text in FLAG_NAMES if flags & bit]]
        )
        effect: i64 = CONTROL
        if number < 16:
            effect = CONTENT
        elif number < 32:
            effect = window_update_effect(flags)
        kinds[number] = FrameKind(name, effect)
    kinds[33] = FrameKind("Ping", CONTROL)
    kinds[34] = FrameKind("Pong", CONTROL)
    kinds[32] = FrameKind("Ping+none", CONTROL)
    return kinds


KINDS: Final = frame_kinds()

SESSION: Final = Reaction.SESSION
NOTE: Final = Severity.NOTE
WARNING: Final = Severity.WARNING
ADVICE: Final = Origin.ADVICE

RULES: Final = (
    Rule("yamux.bad-version", "The version of every header is 0.", "Version Field",
         reaction=SESSION),
    Rule("yamux.bad-type", "A type is Data, Window Update, Ping or Go Away.", "Type Field",
         reaction=SESSION),
    Rule("yamux.unknown-flag", "Flags other than SYN, ACK, FIN and RST are not defined.",
         "Flag Field", NOTE, origin=ADVICE),
    Rule("yamux.stream-zero", "Stream 0 is the session and carries no data or window.",
         "StreamID Field", reaction=SESSION),
    Rule("yamux.session-frame-on-stream", "Ping and Go Away name stream 0.", "StreamID Field",
         WARNING),
    Rule("yamux.syn-and-ack", "A frame does not open a stream and accept it at once.",
         "Opening a stream"),
    Rule("yamux.id-parity", "The client opens odd ids and the server even ones.",
         "StreamID Field", reaction=SESSION),
    Rule("yamux.id-reused", "A stream that is live must not be opened again.", "Opening a stream",
         reaction=SESSION),
    Rule("yamux.id-recycled", "An id should not be used again after its stream is over.",
         "StreamID Field", NOTE, origin=ADVICE),
    Rule("yamux.ids-descending", "The ids a side opens should increase.", "StreamID Field", NOTE,
         origin=ADVICE),
    Rule("yamux.unknown-stream", "A frame without SYN names a stream that was opened.",
         "Opening a stream"),
    Rule("yamux.window-exceeded", "No more is sent than the window of the stream allows.",
         "Flow Control", reaction=SESSION),
    Rule("yamux.window-overflow", "A window is at most 4294967295 bytes.", "Flow Control",
         reaction=SESSION),
    Rule("yamux.write-after-fin", "No data follows one's own FIN.", "Closing a stream"),
    Rule("yamux.fin-twice", "A side sends FIN once on a stream.", "Closing a stream"),
    Rule("yamux.write-after-rst", "Nothing but window updates follows one's own RST.",
         "Closing a stream"),
    Rule("yamux.write-after-peer-rst", "No data or FIN follows once the other side's RST was read.",
         "Closing a stream"),
    Rule("yamux.update-after-fin", "Some implementations refuse a window update after a FIN.",
         "Closing a stream", NOTE, origin=ADVICE),
    Rule("yamux.unacknowledged", "An opened stream is answered with ACK or RST.",
         "Opening a stream", NOTE, origin=ADVICE),
    Rule("yamux.ack-unexpected", "Only the other side acknowledges a stream, once.",
         "Opening a stream"),
    Rule("yamux.backlog", "At most 256 opened streams should wait for their ACK.",
         "libp2p: ACK backlog", NOTE, origin=ADVICE),
    Rule("yamux.ping-unanswered", "A ping is answered.", "Session-based Ping", NOTE,
         origin=ADVICE),
    Rule("yamux.pong-unrequested", "A ping answer repeats the value of a ping.",
         "Session-based Ping"),
    Rule("yamux.ping-flags", "A ping has SYN, its answer has ACK.", "Session-based Ping",
         reaction=SESSION),
    Rule("yamux.goaway-code", "Go Away has the code 0, 1 or 2.", "Go Away", NOTE, origin=ADVICE),
    Rule("yamux.open-after-goaway", "No stream is opened once the other side's Go Away was read.",
         "Go Away"),
    Rule("yamux.frame-too-long", "A Data frame over the limit is not accepted.", "Length Field",
         reaction=SESSION, origin=Origin.LIMIT),
    Rule("yamux.truncated", "The connection ended inside a frame.", "Framing", WARNING),
)  # fmt: skip

BAD_VERSION: Final[i64] = 0x1
BAD_TYPE: Final[i64] = 0x2
UNKNOWN_FLAG: Final[i64] = 0x4
STREAM_ZERO: Final[i64] = 0x8
SESSION_FRAME_ON_STREAM: Final[i64] = 0x10
SYN_AND_ACK: Final[i64] = 0x20
ID_PARITY: Final[i64] = 0x40
ID_REUSED: Final[i64] = 0x80
ID_RECYCLED: Final[i64] = 0x100
IDS_DESCENDING: Final[i64] = 0x200
UNKNOWN_STREAM: Final[i64] = 0x400
WINDOW_EXCEEDED: Final[i64] = 0x800
WINDOW_OVERFLOW: Final[i64] = 0x1000
WRITE_AFTER_FIN: Final[i64] = 0x2000
FIN_TWICE: Final[i64] = 0x4000
WRITE_AFTER_RST: Final[i64] = 0x8000
WRITE_AFTER_PEER_RST: Final[i64] = 0x10000
UPDATE_AFTER_FIN: Final[i64] = 0x20000
UNACKNOWLEDGED: Final[i64] = 0x40000
ACK_UNEXPECTED: Final[i64] = 0x80000
BACKLOG: Final[i64] = 0x100000
PING_UNANSWERED: Final[i64] = 0x200000
PONG_UNREQUESTED: Final[i64] = 0x400000
PING_FLAGS: Final[i64] = 0x800000
GOAWAY_CODE: Final[i64] = 0x1000000
OPEN_AFTER_GOAWAY: Final[i64] = 0x2000000
FRAME_TOO_LONG: Final[i64] = 0x4000000
TRUNCATED: Final[i64] = 0x8000000
