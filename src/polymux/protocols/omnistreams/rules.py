# mypyc: compiled
"""Message types and rules of omnistreams.

The n-th rule of `RULES` is bit n of a violation mask.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import ABORTS, CONTENT, CONTROL, ENDS, GRANTS, OPENS, FrameKind
from polymux.core.rules import Origin, Reaction, Rule, Severity

# A kind is the number of the spec, whichever numbering the wire uses.

CONTROL_MESSAGE: Final[i64] = 0
CREATE: Final[i64] = 1
DATA: Final[i64] = 2
END: Final[i64] = 3
CANCEL_RECEIVE: Final[i64] = 4
REQUEST: Final[i64] = 5
CANCEL_SEND: Final[i64] = 6
UNKNOWN_MESSAGE: Final[i64] = 7  # an empty message, or an undefined type

KINDS: Final = {
    0: FrameKind("CONTROL_MESSAGE", CONTROL),
    1: FrameKind("CREATE_RECEIVE_STREAM", OPENS),
    2: FrameKind("STREAM_DATA", CONTENT),
    3: FrameKind("STREAM_END", ENDS),
    4: FrameKind("CANCEL_RECEIVE_STREAM", ABORTS),
    5: FrameKind("STREAM_REQUEST_DATA", GRANTS),
    6: FrameKind("CANCEL_SEND_STREAM", ABORTS),
    7: FrameKind("UNKNOWN", CONTROL),
}

# Numbering of all implementations up to npm 0.9.0; it has no CANCEL_RECEIVE_STREAM.
LEGACY_KINDS: Final = (CREATE, DATA, END, CANCEL_SEND, REQUEST, CONTROL_MESSAGE)
LEGACY_TYPES: Final = (5, 0, 1, 2, 6, 4, 3)  # by kind; undefined type 6 for CANCEL_RECEIVE_STREAM

NOTE: Final = Severity.NOTE
WARNING: Final = Severity.WARNING
ADVICE: Final = Origin.ADVICE

RULES: Final = (
    Rule("omnistreams.empty-message", "A message begins with its type.", "Protocol"),
    Rule("omnistreams.unknown-type", "The types are 0 to 6 (legacy numbering: 0 to 5).",
         "Protocol"),
    Rule("omnistreams.bad-length",
         "All but control messages have an id, and a request one byte of count after it.",
         "Protocol"),
    Rule("omnistreams.message-too-long", "A message keeps to the limit.", "Protocol",
         reaction=Reaction.SESSION, origin=Origin.LIMIT),
    Rule("omnistreams.metadata-too-long", "Metadata keeps to its limit.", "Initiator messages",
         reaction=Reaction.STREAM, origin=Origin.LIMIT),
    Rule("omnistreams.create-on-open-id", "An id in use is not used for another stream.",
         "Initiator messages"),
    Rule("omnistreams.credit-exceeded", "No more messages are sent than were requested.",
         "Initiator messages", reaction=Reaction.STREAM),
    Rule("omnistreams.data-on-unknown-id", "Data is sent only between CREATE and END or a cancel.",
         "Initiator messages"),
    Rule("omnistreams.end-on-unknown-id", "Only a stream that is open can be ended.",
         "Initiator messages"),
    Rule("omnistreams.sent-after-cancel",
         "Nothing is sent on a stream once the acceptor's cancel was read.", "Acceptor messages"),
    Rule("omnistreams.end-with-payload", "An end is its type and id, without data.",
         "Initiator messages"),
    Rule("omnistreams.cancel-with-payload", "A cancel is its type and id.", "Acceptor messages",
         WARNING),
    Rule("omnistreams.request-on-unknown-id", "A request for a stream that is over has no effect.",
         "Acceptor messages", NOTE, origin=ADVICE),
    Rule("omnistreams.cancel-on-unknown-id", "A cancel of a stream that is over has no effect.",
         "Acceptor messages", NOTE, origin=ADVICE),
    Rule("omnistreams.data-unanswered",
         "Data for an unknown stream should be answered with CANCEL_SEND_STREAM.",
         "Initiator messages", NOTE, origin=ADVICE),
    Rule("omnistreams.truncated", "The connection ended inside a message.", "Protocol", WARNING),
)  # fmt: skip

EMPTY_MESSAGE: Final[i64] = 0x1
UNKNOWN_TYPE: Final[i64] = 0x2
BAD_LENGTH: Final[i64] = 0x4
MESSAGE_TOO_LONG: Final[i64] = 0x8
METADATA_TOO_LONG: Final[i64] = 0x10
CREATE_ON_OPEN_ID: Final[i64] = 0x20
CREDIT_EXCEEDED: Final[i64] = 0x40
DATA_ON_UNKNOWN_ID: Final[i64] = 0x80
END_ON_UNKNOWN_ID: Final[i64] = 0x100
SENT_AFTER_CANCEL: Final[i64] = 0x200
END_WITH_PAYLOAD: Final[i64] = 0x400
CANCEL_WITH_PAYLOAD: Final[i64] = 0x800
REQUEST_ON_UNKNOWN_ID: Final[i64] = 0x1000
CANCEL_ON_UNKNOWN_ID: Final[i64] = 0x2000
DATA_UNANSWERED: Final[i64] = 0x4000
TRUNCATED: Final[i64] = 0x8000
