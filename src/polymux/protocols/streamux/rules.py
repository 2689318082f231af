# mypyc: compiled
"""Frame kinds and rules of Streamux. The n-th rule of `RULES` is bit n of a violation mask."""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import ABORTS, CONTENT, CONTROL, ENDS, FrameKind
from polymux.core.rules import Origin, Reaction, Rule, Severity

# The bits of a kind: 1 termination, 2 reply, 4 no data.

REQUEST: Final[i64] = 0
REQUEST_LAST: Final[i64] = 1
REPLY: Final[i64] = 2
REPLY_LAST: Final[i64] = 3
CANCEL: Final[i64] = 4
KEEP_ALIVE: Final[i64] = 5
CANCEL_ACK: Final[i64] = 6
EMPTY_REPLY: Final[i64] = 7
INITIATOR: Final[i64] = 8

TERMINATION_BIT: Final[i64] = 1
REPLY_BIT: Final[i64] = 2

KINDS: Final = {
    0: FrameKind("Request", CONTENT),
    1: FrameKind("Request", CONTENT),
    2: FrameKind("Reply", CONTENT),
    3: FrameKind("Reply", CONTENT),
    4: FrameKind("Cancel", ABORTS),
    5: FrameKind("KeepAlive", CONTROL),
    6: FrameKind("CancelAck", CONTROL),
    7: FrameKind("EmptyReply", ENDS),
    8: FrameKind("Initiator", CONTROL),
}

SESSION: Final = Reaction.SESSION
NOTE: Final = Severity.NOTE
WARNING: Final = Severity.WARNING

RULES: Final = (
    Rule("streamux.bad-version", "An initiator says version 1.", "Initiator message",
         reaction=SESSION),
    Rule("streamux.bad-bit-counts",
         "Both bit counts are at least 1, sum to 14 or 30, and every length and id fits them.",
         "Initiator message", reaction=SESSION),
    Rule("streamux.mixed-header-sizes",
         "Both peers must use headers of the same size, or the end of a header is unknown.",
         "Header", reaction=SESSION),
    Rule("streamux.chunk-too-long", "A chunk over the limit is not accepted.", "Length", NOTE,
         reaction=SESSION, origin=Origin.LIMIT),
    Rule("streamux.reply-unknown", "A reply needs a request that still waits for it.",
         "Spurious Messages"),
    Rule("streamux.ack-not-cancelled", "A cancel is acknowledged once, and nothing else is.",
         "Spurious Messages"),
    Rule("streamux.id-in-flight",
         "An id is not used again before its final reply or, once cancelled, its ack.", "ID"),
    Rule("streamux.cancel-twice", "A cancelled id is locked until the ack.", "Cancel"),
    Rule("streamux.keepalive-busy-id", "A keep alive uses a free id.", "Keep Alive"),
    Rule("streamux.reply-before-end", "A request is answered once its last chunk has come.",
         "Flow"),
    Rule("streamux.reply-after-cancel",
         "After reading a cancel, a side sends no more of the reply.", "Cancel Ack"),
    Rule("streamux.cancel-unknown", "A cancel is for an operation in progress.",
         "Spurious Messages", NOTE, origin=Origin.ADVICE),
    Rule("streamux.cancel-unanswered", "Every cancel is answered with an ack.", "Cancel Ack",
         NOTE),
    Rule("streamux.truncated", "The connection ended inside a frame.", "Layout", WARNING),
)  # fmt: skip

BAD_VERSION: Final[i64] = 0x1
BAD_BIT_COUNTS: Final[i64] = 0x2
MIXED_HEADER_SIZES: Final[i64] = 0x4
CHUNK_TOO_LONG: Final[i64] = 0x8
REPLY_UNKNOWN: Final[i64] = 0x10
ACK_NOT_CANCELLED: Final[i64] = 0x20
ID_IN_FLIGHT: Final[i64] = 0x40
CANCEL_TWICE: Final[i64] = 0x80
KEEPALIVE_BUSY_ID: Final[i64] = 0x100
REPLY_BEFORE_END: Final[i64] = 0x200
REPLY_AFTER_CANCEL: Final[i64] = 0x400
CANCEL_UNKNOWN: Final[i64] = 0x800
CANCEL_UNANSWERED: Final[i64] = 0x1000
TRUNCATED: Final[i64] = 0x2000
