"""What a peer of Streamux has to do, and the cases that examine it (see `core/conformance.py`)."""

from __future__ import annotations

from typing import Final

from polymux.core.conformance import (
    AMBIGUOUS,
    EITHER,
    MAY_IGNORE,
    MUST,
    MUST_GO_ON,
    SHOULD,
    Case,
    Requirement,
    Verdict,
    echo_cases,
    outcomes,
)

REQUIREMENTS: Final = (
    Requirement("SMX-INI-1", MUST, "The initiator comes before anything else.",
                ("streamux.bad-version",)),
    Requirement("SMX-INI-2", MUST, "The version is 1.", ("streamux.bad-version",)),
    Requirement("SMX-INI-3", MUST, "The bit counts are at least 1 and sum to 14 or 30.",
                ("streamux.bad-bit-counts", "streamux.mixed-header-sizes")),
    Requirement("SMX-INI-4", MUST, "After a bad initiator a peer closes, or discards what "
                "follows.", ("streamux.bad-version",)),
    Requirement("SMX-INI-5", MUST, "Each side sends its initiator unprompted."),
    Requirement("SMX-HDR-1", MUST, "A header has 2 or 4 bytes, little endian.",
                ("streamux.chunk-too-long",)),
    Requirement("SMX-HDR-2", MUST, "A reply has the layout of the side that asked."),
    Requirement("SMX-ID-1", MUST, "No id in flight is used again.", ("streamux.id-in-flight",)),
    Requirement("SMX-ID-2", MUST, "Ids belong to the side that asks."),
    Requirement("SMX-CHK-1", MUST, "Chunks come in order and the last is marked.",
                ("streamux.reply-before-end",)),
    Requirement("SMX-CHK-2", MUST, "Chunks of different messages may be interleaved."),
    Requirement("SMX-CHK-3", MUST, "Nothing follows the last chunk until the answer.",
                ("streamux.id-in-flight",)),
    Requirement("SMX-CHK-4", AMBIGUOUS, "A message does not end with a chunk of length zero."),
    Requirement("SMX-RPL-1", MUST, "A message has one reply, and only a message has one.",
                ("streamux.reply-unknown",)),
    Requirement("SMX-RPL-2", MUST, "Replies may come in any order."),
    Requirement("SMX-RPL-3", SHOULD, "A reply comes within the announced time."),
    Requirement("SMX-RPL-4", MUST, "An empty reply means success."),
    Requirement("SMX-CAN-1", MUST, "Every cancel is acknowledged, even of an unknown id.",
                ("streamux.cancel-unanswered",)),
    Requirement("SMX-CAN-2", MUST, "A cancelled id is locked until the acknowledgement.",
                ("streamux.cancel-twice", "streamux.id-in-flight")),
    Requirement("SMX-CAN-3", MUST, "No reply follows the acknowledgement of a cancel.",
                ("streamux.reply-after-cancel", "streamux.cancel-unanswered")),
    Requirement("SMX-CAN-4", SHOULD, "An acknowledgement needs a cancel.",
                ("streamux.ack-not-cancelled",)),
    Requirement("SMX-TMO-1", MUST, "With a timeout of 0 the other side never gives up by itself."),
    Requirement("SMX-TMO-2", MUST, "A reply that has begun is not given up."),
    Requirement("SMX-TMO-3", AMBIGUOUS, "How a side shows that it has given up is not said.",
                without_case="nothing is sent, so there is nothing to be seen"),
    Requirement("SMX-KA-1", MUST, "A keep alive is not answered."),
    Requirement("SMX-KA-2", MUST, "An idle side sends keep alives.",
                without_case="the specification names no interval, so no time limit could decide"),
    Requirement("SMX-KA-3", SHOULD, "A keep alive uses a free id.",
                ("streamux.keepalive-busy-id",)),
    Requirement("SMX-SPU-1", MUST, "Spurious messages are discarded.",
                ("streamux.cancel-unknown", "streamux.cancel-unanswered")),
)  # fmt: skip

# To discard everything without a word is allowed, and leaves the other side waiting.
DISCARD: Final = outcomes(closed=Verdict.OK, refused=Verdict.OK, wedged=Verdict.NON_STRICT)
ECHO: Final = """
> Request 1 "hello" last=1
< content 1 "hello"
"""
BUSY: Final = """
> Request 1 "testee: never-read" last=1
"""

CASES: Final = (
    *echo_cases(ECHO),
    Case("GEN-WEDGE-1", "spurious-reply-then-request", 1, '> Reply p5 "?" last=1\nreact',
         MAY_IGNORE, ("streamux.reply-unknown",)),
    Case("GEN-ISO-1", "error-on-one-request", 1, f"{ECHO}\n> CancelAck p5\nreact",
         outcomes(MAY_IGNORE, closed=Verdict.NON_STRICT), ("streamux.ack-not-cancelled",)),
    Case("SMX-INI-1", "request-first", 0, 'bare\n> Request 9 "hello" last=1\nreact', DISCARD,
         ("streamux.bad-version",)),
    Case("SMX-INI-2", "version-2", 0, "bare\n> Initiator version=2\nreact", DISCARD,
         ("streamux.bad-version",)),
    Case("SMX-INI-3", "no-length", 0, "bare\n> Initiator length=0 id=14\nreact", DISCARD,
         ("streamux.bad-bit-counts",)),
    Case("SMX-INI-3", "sum-31", 0, "bare\n> Initiator length=15 id=16\nreact", DISCARD,
         ("streamux.bad-bit-counts",)),
    Case("SMX-INI-3", "sum-15", 0, "bare\n> Initiator length=7 id=8\nreact", DISCARD,
         ("streamux.bad-bit-counts",)),
    # An echo asks for nothing by itself, so only its Initiator and Keep Alives can come.
    Case("SMX-INI-3", "request-after-sum-31", 1, """bare
! [!IK]*
> Initiator length=15 id=16
> Request 1 "hello" last=1
react""", DISCARD, ("streamux.bad-bit-counts",)),
    Case("SMX-INI-4", "request-after-a-bad-initiator", 1, """bare
! content * "hello"
> Initiator version=2
> Request 1 "hello" last=1
react""", DISCARD, ("streamux.bad-version",)),
    Case("SMX-INI-5", "unprompted", 0, "bare\n< Initiator"),
    Case("SMX-HDR-1", "all-splits", 1, """split
> Request 1 "one" last=1
> Request 2 "two" last=1
< content 1 "one"
< content 2 "two" """),
    Case("SMX-HDR-2", "17-and-13", 1, f"bare\n> Initiator length=17 id=13\n{ECHO}"),
    Case("SMX-HDR-2", "20-and-10", 1, f"bare\n> Initiator length=20 id=10\n{ECHO}"),
    Case("SMX-ID-1", "unanswered-requests", 2, """
> Request 1 "testee: open 3" last=1
< Request p
< Request p
< Request p
alive"""),
    Case("SMX-ID-2", "ids-of-the-peer", 2, """
> Request 5 "testee: open 2" last=1
< Request p
< Request p
> Request 0 "zero" last=1
> Request 1 "one" last=1
> Request 2 "two" last=1
< content 0 "zero"
< content 1 "one"
< content 2 "two" """),
    Case("SMX-CHK-1", "long-reply", 2, """
> Request 1 "testee: source 200000" last=1
< content 1 *200000
alive"""),
    Case("SMX-CHK-1", "reply-before-the-end", 2, """
> Request 5 "testee: open 1" last=1
< Request p
> Request 1 "half"
alive
> Request 1 "done" last=1
< content 1 "halfdone" """),
    Case("SMX-CHK-2", "interleaved", 1, """
> Request 1 "a"
> Request 2 "b"
> Request 1 "c" last=1
> Request 2 "d" last=1
< content 1 "ac"
< content 2 "bd" """),
    Case("SMX-CHK-3", "request-in-flight", 2, f"""{BUSY}
! content 1 "again"
> Request 1 "again" last=1
react""", MAY_IGNORE, ("streamux.id-in-flight",)),
    Case("SMX-CHK-4", "empty-last-chunk", 1, """
> Request 1 "x"
> KeepAlive 1
< content 1 "x" """, outcomes(EITHER, met=Verdict.OK)),
    Case("SMX-RPL-1", "reply-to-nothing", 0, '> Reply p5 "?" last=1\nreact', MAY_IGNORE,
         ("streamux.reply-unknown",)),
    Case("SMX-RPL-2", "in-reverse", 2, """
> Request 5 "testee: open 2" last=1
< Request p
< Request p
> Reply p "second" last=1
> Reply pp "first" last=1
alive"""),
    Case("SMX-RPL-3", "in-time", 1, ECHO),
    Case("SMX-RPL-4", "empty-reply", 2, """
> Request 5 "testee: open 1" last=1
< Request p
> EmptyReply p
alive"""),
    Case("SMX-CAN-1", "five-unknown-ids", 0, """
> Cancel 1
> Cancel 2
> Cancel 3
> Cancel 4
> Cancel 5
< CancelAck 1
< CancelAck 2
< CancelAck 3
< CancelAck 4
< CancelAck 5""", breaks=("streamux.cancel-unknown",)),
    Case("SMX-CAN-2", "cancelled-twice", 2, f"""{BUSY}
> Cancel 1
> Cancel 1
react""", MAY_IGNORE, ("streamux.cancel-twice",)),
    Case("SMX-CAN-3", "cancel-of-a-long-reply", 2, """
> Request 1 "testee: slow 40" last=1
< frames 1 amount=1
> Cancel 1
< CancelAck 1
alive
alive"""),
    Case("SMX-CAN-4", "ack-without-cancel", 0, "> CancelAck p5\nreact", MAY_IGNORE,
         ("streamux.ack-not-cancelled",)),
    Case("SMX-TMO-1", "timeout-0", 2, """bare
> Initiator timeout=0
> Request 1 "testee: slow 6" last=1
< frames 1 amount=6
alive"""),
    Case("SMX-TMO-2", "timeout-of-a-tenth", 2, """bare
> Initiator timeout=1
> Request 1 "testee: slow 6" last=1
< frames 1 amount=6
alive"""),
    Case("SMX-KA-1", "ten-keep-alives", 0, """
! Reply|EmptyReply|CancelAck 3
> KeepAlive 3 times=10
react""", MUST_GO_ON),
    Case("SMX-KA-3", "keep-alive-on-a-busy-id", 2, f"{BUSY}\n> KeepAlive 1\nreact", MAY_IGNORE,
         ("streamux.keepalive-busy-id",)),
    Case("SMX-SPU-1", "cancel-of-a-finished-request", 1, f"""{ECHO}
> Cancel 1
< CancelAck 1
alive""", breaks=("streamux.cancel-unknown",)),
)  # fmt: skip
