# mypyc: compiled
"""The rules of mplex. The n-th rule of `RULES` is bit n of a violation mask."""

from typing import Final

from mypy_extensions import i64

from polymux.core.rules import Origin, Reaction, Rule, Severity

NOTE: Final = Severity.NOTE
ADVICE: Final = Origin.ADVICE

RULES: Final = (
    Rule("mplex.bad-flag", "Flag 7 is not defined.", "Flag Values", reaction=Reaction.SESSION),
    Rule("mplex.varint-too-long", "A varint has at most nine bytes.", "Message format",
         reaction=Reaction.SESSION),
    Rule("mplex.varint-noncanonical", "A varint should have its shortest form.", "Message format",
         NOTE, origin=ADVICE),
    Rule("mplex.frame-too-long", "A payload has at most 1 MiB.", "Writing to a stream",
         reaction=Reaction.SESSION, origin=Origin.LIMIT),
    Rule("mplex.id-reused", "A stream that is live must not be opened again.",
         "Opening a new stream", reaction=Reaction.SESSION),
    Rule("mplex.unknown-stream", "Only a stream that was opened can be written, closed or reset.",
         "Opening a new stream"),
    Rule("mplex.wrong-role-flag", "The flag must tell which side opened the stream.",
         "Flag Values"),
    Rule("mplex.write-after-close", "Nothing may be written after closing.", "Closing a stream"),
    Rule("mplex.close-twice", "A stream need be closed only once.", "Closing a stream", NOTE,
         origin=ADVICE),
    Rule("mplex.write-after-reset", "Nothing may be sent on a stream after resetting it.",
         "Resetting a stream"),
    Rule("mplex.write-after-peer-reset", "Nothing may be sent after reading the peer's reset.",
         "Resetting a stream"),
    Rule("mplex.close-with-payload", "A close has a body of zero length.", "Closing a stream",
         Severity.WARNING),
    Rule("mplex.reset-with-payload", "A reset has a body of zero length; npm's carries its error.",
         "Resetting a stream", NOTE, origin=ADVICE),
    Rule("mplex.id-parity", "The dialer uses odd ids and the listener even ones.",
         "Opening a new stream", NOTE, origin=ADVICE),
    Rule("mplex.id-recycled", "An id should not be used again after its stream is over.",
         "Opening a new stream", NOTE, origin=ADVICE),
    Rule("mplex.reset-after-close", "A stream that is already over need not be reset.",
         "Resetting a stream", NOTE, origin=ADVICE),
    Rule("mplex.truncated", "The connection ended inside a frame.", "Message format",
         Severity.WARNING),
)  # fmt: skip

BAD_FLAG: Final[i64] = 0x1
VARINT_TOO_LONG: Final[i64] = 0x2
VARINT_NONCANONICAL: Final[i64] = 0x4
FRAME_TOO_LONG: Final[i64] = 0x8
ID_REUSED: Final[i64] = 0x10
UNKNOWN_STREAM: Final[i64] = 0x20
WRONG_ROLE_FLAG: Final[i64] = 0x40
WRITE_AFTER_CLOSE: Final[i64] = 0x80
CLOSE_TWICE: Final[i64] = 0x100
WRITE_AFTER_RESET: Final[i64] = 0x200
WRITE_AFTER_PEER_RESET: Final[i64] = 0x400
CLOSE_WITH_PAYLOAD: Final[i64] = 0x800
RESET_WITH_PAYLOAD: Final[i64] = 0x1000
ID_PARITY: Final[i64] = 0x2000
ID_RECYCLED: Final[i64] = 0x4000
RESET_AFTER_CLOSE: Final[i64] = 0x8000
TRUNCATED: Final[i64] = 0x10000
