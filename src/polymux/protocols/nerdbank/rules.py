# mypyc: compiled
"""Frame kinds and rules of Nerdbank. The n-th rule of `RULES` is bit n of a violation mask."""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import ABORTS, ACCEPTS, CONTENT, CONTROL, ENDS, GRANTS, OPENS, FrameKind
from polymux.core.rules import Origin, Reaction, Rule, Severity

KINDS: Final = {
    0: FrameKind("Offer", OPENS),
    1: FrameKind("OfferAccepted", ACCEPTS),
    2: FrameKind("Content", CONTENT),
    3: FrameKind("ContentWritingCompleted", ENDS),
    4: FrameKind("ChannelTerminated", ABORTS),
    5: FrameKind("ContentProcessed", GRANTS),
    6: FrameKind("ContentReadingCompleted", CONTROL),
    7: FrameKind("ChannelWindowAdjust", GRANTS),
    8: FrameKind("ChannelWindowGrowthRequest", CONTROL),
    254: FrameKind("Malformed", CONTROL),
    255: FrameKind("Handshake", CONTROL),
}

SESSION: Final = Reaction.SESSION
STREAM: Final = Reaction.STREAM
NOTE: Final = Severity.NOTE
WARNING: Final = Severity.WARNING
ADVICE: Final = Origin.ADVICE

RULES: Final = (
    Rule("nerdbank.bad-magic", "A v1 connection begins with the bytes 2f df 1d 50.",
         "Version 1, Handshake", reaction=SESSION),
    Rule("nerdbank.bad-handshake", "A v2 connection begins with [[major, minor], 16 bytes].",
         "Version 2, Handshake", reaction=SESSION),
    Rule("nerdbank.version-mismatch", "Both sides must speak the same major version.",
         "Version 2, Handshake", reaction=SESSION),
    Rule("nerdbank.equal-randoms",
         "The two random values must differ, or neither side has the odd ids.",
         "Channel ID uniqueness", reaction=SESSION),
    Rule("nerdbank.bad-frame", "A frame has the shape and types its version gives it.", "Frame",
         reaction=SESSION),
    Rule("nerdbank.payload-too-long", "A payload has at most 20480 bytes.", "Frame", WARNING),
    Rule("nerdbank.frame-too-long", "A payload over the limit is not accepted.", "Frame",
         reaction=SESSION, origin=Origin.LIMIT),
    Rule("nerdbank.id-parity", "The odd party offers odd ids, the other even ones.",
         "Channel ID uniqueness", reaction=SESSION),
    Rule("nerdbank.wrong-source", "An offer's source says that its sender offers the channel.",
         "Version 3, Frame", reaction=SESSION),
    Rule("nerdbank.bad-offer", "An offer carries [name, window].", "Offer", reaction=SESSION),
    Rule("nerdbank.bad-acceptance", "Only the other side accepts an offer, once, with [window].",
         "OfferAccepted", reaction=SESSION),
    Rule("nerdbank.id-reused", "The id of a live channel must not be offered again.",
         "Channel ID uniqueness", reaction=SESSION),
    Rule("nerdbank.content-before-acceptance",
         "A side writes to an offered channel only after accepting it.",
         "Channel lifecycle", reaction=STREAM),
    Rule("nerdbank.accepted-unknown-offer", "Only a channel that was offered can be accepted.",
         "Channel lifecycle"),
    Rule("nerdbank.unknown-channel", "A frame must name a channel that was offered.",
         "Channel lifecycle"),
    Rule("nerdbank.window-exceeded", "Bytes sent and not processed stay within the window.",
         "Backpressure", reaction=STREAM),
    Rule("nerdbank.window-shrunk", "A window only grows.", "Backpressure", WARNING),
    Rule("nerdbank.bad-window", "A window is above zero and within the limit.", "Backpressure",
         reaction=STREAM, origin=Origin.LIMIT),
    Rule("nerdbank.acknowledged-too-much", "No more can be processed than was sent.",
         "Backpressure", reaction=SESSION),
    Rule("nerdbank.content-after-completed", "Nothing is written after writing was completed.",
         "Channel termination"),
    Rule("nerdbank.completed-twice", "Writing is completed once.", "Channel termination"),
    Rule("nerdbank.frame-after-termination", "Nothing follows one's own termination of a channel.",
         "Channel termination"),
    Rule("nerdbank.terminated-twice", "A side terminates a channel once.", "Channel termination"),
    Rule("nerdbank.truncated", "The connection ended inside a frame.", "Frame", WARNING),
    Rule("nerdbank.unknown-code", "The control code is not one this version knows.",
         "Control codes", NOTE, origin=ADVICE),
    Rule("nerdbank.offer-without-window", "Without a window the other side cannot send.",
         "Backpressure", NOTE, origin=ADVICE),
    Rule("nerdbank.not-terminated", "A channel finished by both sides should be terminated.",
         "Channel termination", NOTE, origin=ADVICE),
    Rule("nerdbank.termination-unanswered", "A termination should be answered with one's own.",
         "Channel lifecycle", NOTE, origin=ADVICE),
    Rule("nerdbank.id-recycled", "The id of a channel that is over should not be offered again.",
         "Channel ID uniqueness", NOTE, origin=ADVICE),
    Rule("nerdbank.frame-after-peer-termination",
         "Once the other side's termination was read, only one's own should follow.",
         "Channel termination", NOTE, origin=ADVICE),
)  # fmt: skip

EQUAL_RANDOMS: Final[i64] = 0x8
PAYLOAD_TOO_LONG: Final[i64] = 0x20
FRAME_TOO_LONG: Final[i64] = 0x40
ID_PARITY: Final[i64] = 0x80
ID_REUSED: Final[i64] = 0x800
CONTENT_BEFORE_ACCEPTANCE: Final[i64] = 0x1000
ACCEPTED_UNKNOWN_OFFER: Final[i64] = 0x2000
UNKNOWN_CHANNEL: Final[i64] = 0x4000
WINDOW_EXCEEDED: Final[i64] = 0x8000
WINDOW_SHRUNK: Final[i64] = 0x10000
ACKNOWLEDGED_TOO_MUCH: Final[i64] = 0x40000
CONTENT_AFTER_COMPLETED: Final[i64] = 0x80000
COMPLETED_TWICE: Final[i64] = 0x100000
FRAME_AFTER_TERMINATION: Final[i64] = 0x200000
TERMINATED_TWICE: Final[i64] = 0x400000
TRUNCATED: Final[i64] = 0x800000
UNKNOWN_CODE: Final[i64] = 0x1000000
NOT_TERMINATED: Final[i64] = 0x4000000
TERMINATION_UNANSWERED: Final[i64] = 0x8000000
ID_RECYCLED: Final[i64] = 0x10000000
FRAME_AFTER_PEER_TERMINATION: Final[i64] = 0x20000000
