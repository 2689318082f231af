# mypyc: compiled
"""The rules of Minmux. The n-th rule of `RULES` is bit n of a violation mask."""

from typing import Final

from mypy_extensions import i64

from polymux.core.rules import Origin, Reaction, Rule, Severity

SESSION: Final = Reaction.SESSION
NOTE: Final = Severity.NOTE
ADVICE: Final = Origin.ADVICE

RULES: Final = (
    Rule("minmux.varint-noncanonical", "A number is written in its shortest form.", "Encodings",
         reaction=SESSION),
    Rule("minmux.varint-overflow",
         "A number is at most 2^64-1, and not 0 where the encoding has no 0.", "Encodings",
         reaction=SESSION),
    Rule("minmux.unassigned-stream",
         "Only streams that the instance assigns are used, each by its writer and its reader.",
         "What, Why, and How?", reaction=SESSION),
    Rule("minmux.write-past-limit",
         "Nothing but the last item is written past the announced end, and nothing after that.",
         "StopWrite", reaction=SESSION),
    Rule("minmux.credit-exceeded", "No more items are written than there is credit for.", "Write",
         reaction=SESSION),
    Rule("minmux.credit-past-limit", "No more credit is given than the announced limit.",
         "StopRead", reaction=SESSION),
    Rule("minmux.limit-raised", "An announced limit can be lowered, never raised.",
         "StopRead, StopWrite", reaction=SESSION),
    Rule("minmux.endless-stream-stopped",
         "A stream whose last item has the empty type cannot end.", "Write", reaction=SESSION),
    Rule("minmux.forgo-exceeds-credit", "No more credit is forgone than is held.", "ForgoCredit",
         reaction=SESSION),
    Rule("minmux.credit-overflow", "The credit held at a time is at most 2^64-1.", "GiveCredit",
         reaction=SESSION),
    Rule("minmux.bad-item", "A Write holds whole items in the encoding of its stream.",
         "Instantiating Minmux", reaction=SESSION),
    Rule("minmux.item-too-long", "An item over the limit is not accepted.", "Instantiating Minmux",
         reaction=SESSION, origin=Origin.LIMIT),
    Rule("minmux.truncated", "The connection ended inside a packet.", "Encodings",
         Severity.WARNING),
    Rule("minmux.promise-past-limit", "A side should not promise more than it has announced.",
         "PromiseWrite, PromiseRead", NOTE, origin=ADVICE),
    Rule("minmux.last-item-missing", "After the last regular item the last item should follow.",
         "StopWrite", NOTE, origin=ADVICE),
)  # fmt: skip

VARINT_NONCANONICAL: Final[i64] = 0x1
VARINT_OVERFLOW: Final[i64] = 0x2
UNASSIGNED_STREAM: Final[i64] = 0x4
WRITE_PAST_LIMIT: Final[i64] = 0x8
CREDIT_EXCEEDED: Final[i64] = 0x10
CREDIT_PAST_LIMIT: Final[i64] = 0x20
LIMIT_RAISED: Final[i64] = 0x40
ENDLESS_STREAM_STOPPED: Final[i64] = 0x80
FORGO_EXCEEDS_CREDIT: Final[i64] = 0x100
CREDIT_OVERFLOW: Final[i64] = 0x200
BAD_ITEM: Final[i64] = 0x400
ITEM_TOO_LONG: Final[i64] = 0x800
TRUNCATED: Final[i64] = 0x1000
PROMISE_PAST_LIMIT: Final[i64] = 0x2000
LAST_ITEM_MISSING: Final[i64] = 0x4000
