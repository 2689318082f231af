"""What a peer of yamux has to do, and the cases that examine it (see `core/conformance.py`)."""

from __future__ import annotations

from typing import Final

from polymux.core.conformance import (
    DIALECT,
    EITHER,
    MAY_IGNORE,
    MUST,
    MUST_REFUSE,
    ROBUSTNESS,
    SHOULD,
    SHOULD_REFUSE,
    Case,
    Requirement,
    Verdict,
    echo_cases,
    outcomes,
)

REQUIREMENTS: Final = (
    Requirement("YAMUX-HDR-1", MUST, "The version is 0.", ("yamux.bad-version",)),
    Requirement("YAMUX-HDR-2", MUST, "Types are 0 to 3.", ("yamux.bad-type",)),
    Requirement("YAMUX-HDR-3", DIALECT, "Flags are SYN, ACK, FIN and RST.",
                ("yamux.unknown-flag",)),
    Requirement("YAMUX-HDR-4", ROBUSTNESS, "A frame that is longer than the window is refused.",
                ("yamux.frame-too-long",)),
    Requirement("YAMUX-HDR-5", MUST, "A connection ends at the end of a frame.",
                ("yamux.truncated",)),
    Requirement("YAMUX-ID-1", MUST, "Stream 0 carries no data and no window.",
                ("yamux.stream-zero",)),
    Requirement("YAMUX-ID-2", MUST, "Ping and Go Away name stream 0.",
                ("yamux.session-frame-on-stream",)),
    Requirement("YAMUX-ID-3", MUST, "The dialer opens odd ids and the acceptor even ones.",
                ("yamux.id-parity",)),
    Requirement("YAMUX-ID-4", MUST, "A stream that is live is not opened again.",
                ("yamux.id-reused",)),
    Requirement("YAMUX-ID-5", SHOULD, "An id is not used again.", ("yamux.id-recycled",)),
    Requirement("YAMUX-ID-6", SHOULD, "Ids increase.", ("yamux.ids-descending",)),
    Requirement("YAMUX-OPEN-1", MUST, "A frame without SYN names a stream that was opened.",
                ("yamux.unknown-stream",)),
    Requirement("YAMUX-OPEN-2", MUST, "A frame does not open and accept at once.",
                ("yamux.syn-and-ack",)),
    Requirement("YAMUX-OPEN-3", MUST, "An opened stream is answered with ACK or RST.",
                ("yamux.unacknowledged",)),
    Requirement("YAMUX-OPEN-4", MUST, "Only the other side acknowledges, once.",
                ("yamux.ack-unexpected",)),
    Requirement("YAMUX-OPEN-5", SHOULD, "At most 256 streams wait for their ACK.",
                ("yamux.backlog",)),
    Requirement("YAMUX-WIN-1", MUST, "No more is sent than the window allows.",
                ("yamux.window-exceeded",)),
    Requirement("YAMUX-WIN-2", MUST, "A window is at most 4294967295 bytes.",
                ("yamux.window-overflow",)),
    Requirement("YAMUX-FIN-1", MUST, "No data follows one's own FIN.", ("yamux.write-after-fin",)),
    Requirement("YAMUX-FIN-2", MUST, "FIN is sent once.", ("yamux.fin-twice",)),
    Requirement("YAMUX-FIN-3", DIALECT, "A window update may follow one's own FIN.",
                ("yamux.update-after-fin",)),
    Requirement("YAMUX-RST-1", MUST, "Nothing but window updates follows one's own RST.",
                ("yamux.write-after-rst",)),
    Requirement("YAMUX-RST-2", MUST, "Nothing follows the other side's RST.",
                ("yamux.write-after-peer-rst",)),
    Requirement("YAMUX-PING-1", MUST, "A ping is answered.", ("yamux.ping-unanswered",)),
    Requirement("YAMUX-PING-2", MUST, "An answer to a ping repeats its value.",
                ("yamux.pong-unrequested",)),
    Requirement("YAMUX-PING-3", MUST, "A ping has SYN, its answer ACK.", ("yamux.ping-flags",)),
    Requirement("YAMUX-AWAY-1", DIALECT, "Go Away has the code 0, 1 or 2.",
                ("yamux.goaway-code",)),
    Requirement("YAMUX-AWAY-2", MUST, "No stream is opened after the other side's Go Away.",
                ("yamux.open-after-goaway",)),
)  # fmt: skip

ECHO: Final = """
> WindowUpdate+SYN 1
> Data 1 "hello"
< content 1 "hello"
"""
# The echo has more to send than its window allows, so it does not see an end before it gets more.
BLOCKED: Final = """
> WindowUpdate+SYN 1
> Data 1 *65536 times=4
< credit 1 amount=8
< bytes 1 amount=262144
> Data 1 "more"
alive
"""
CLOSED: Final = f"""{ECHO}
> WindowUpdate+FIN 1
< *FIN* 1
"""

CASES: Final = (
    *echo_cases(ECHO),
    Case("GEN-WEDGE-1", "unknown-stream-then-stream", 1, '> Data 77 "?"\nreact', MAY_IGNORE,
         ("yamux.unknown-stream",)),
    Case("GEN-ISO-1", "reset-of-one-stream", 1, f"""{ECHO}
> WindowUpdate+RST 1
> WindowUpdate+SYN 2
> Data 2 "other"
< content 2 "other" """),
    Case("YAMUX-HDR-1", "version-1", 0, "> WindowUpdate+SYN 1 version=1\nreact", MUST_REFUSE,
         ("yamux.bad-version",)),
    Case("YAMUX-HDR-2", "type-9", 0, "> WindowUpdate 1 type=9\nreact", MUST_REFUSE,
         ("yamux.bad-type",)),
    Case("YAMUX-HDR-3", "flag-8000", 0, "> WindowUpdate 1 flags=0x8001\nreact", EITHER,
         ("yamux.unknown-flag",)),
    Case("YAMUX-HDR-4", "length-2-31", 0, """
> WindowUpdate+SYN 1
> Data 1 amount=2147483648
react""", outcomes(MUST_REFUSE, wedged=Verdict.FAILED), ("yamux.frame-too-long",)),
    Case("YAMUX-HDR-5", "end", 0, "eof\n< closed", outcomes(missing=Verdict.NON_STRICT)),
    Case("YAMUX-ID-1", "stream-0-opened", 0, "> WindowUpdate+SYN #0\nreact", MUST_REFUSE,
         ("yamux.stream-zero",)),
    Case("YAMUX-ID-2", "ping-on-a-stream", 0, "> Ping #5 amount=1\nreact", MAY_IGNORE,
         ("yamux.session-frame-on-stream",)),
    Case("YAMUX-ID-3", "wrong-parity", 0, "> WindowUpdate+SYN o1\nreact", MUST_REFUSE,
         ("yamux.id-parity",)),
    Case("YAMUX-ID-3", "ids-of-the-peer", 2, """
> WindowUpdate+SYN 1
> Data 1 "testee: open 2" x0a
< *SYN* p
< *SYN* p
alive"""),
    Case("YAMUX-ID-4", "opened-twice", 0, """
> WindowUpdate+SYN 1
> WindowUpdate+SYN 1
react""", MUST_REFUSE, ("yamux.id-reused",)),
    Case("YAMUX-ID-5", "after-both-ended", 1, f"{CLOSED}\n> WindowUpdate+SYN 1\nreact", EITHER,
         ("yamux.id-recycled",)),
    Case("YAMUX-ID-6", "descending", 0, "> WindowUpdate+SYN 5\n> WindowUpdate+SYN 3\nreact",
         EITHER, ("yamux.ids-descending",)),
    Case("YAMUX-OPEN-1", "data-on-unknown-id", 0, """
! content 77 "to no stream"
> Data 77 "to no stream"
react""", MAY_IGNORE, ("yamux.unknown-stream",)),
    Case("YAMUX-OPEN-2", "syn-and-ack", 0, "> WindowUpdate+SYN+ACK 1\nreact", MAY_IGNORE,
         ("yamux.syn-and-ack",)),
    Case("YAMUX-OPEN-3", "acknowledged", 1, f"{ECHO}\n< *ACK* 1"),
    Case("YAMUX-OPEN-4", "ack-of-the-opener", 1, f"{ECHO}\n> WindowUpdate+ACK 1\nreact",
         MAY_IGNORE, ("yamux.ack-unexpected",)),
    Case("YAMUX-OPEN-5", "300-opened", 0,
         "\n".join(f"> WindowUpdate+SYN {number}" for number in range(1, 301)) + "\nreact",
         outcomes(EITHER, ignored=Verdict.OK, refused=Verdict.OK,
                  wedged=Verdict.INFORMATIONAL)),
    Case("YAMUX-OPEN-5", "5000-opened", 0,
         "\n".join(f"> WindowUpdate+SYN {number}" for number in range(1, 5001)) + "\nreact",
         outcomes(EITHER, wedged=Verdict.INFORMATIONAL)),
    Case("YAMUX-WIN-1", "far-over-the-window", 1, """
> WindowUpdate+SYN 1
> Data 1 *262145
react""", SHOULD_REFUSE, ("yamux.window-exceeded",)),
    Case("YAMUX-WIN-2", "largest-delta-twice", 1, f"""{ECHO}
> WindowUpdate 1 amount=4294967295
> WindowUpdate 1 amount=4294967295
react""", MUST_REFUSE, ("yamux.window-overflow",)),
    Case("YAMUX-FIN-1", "data-after-fin", 1, f"""{BLOCKED}
! content 1 "too late"
> WindowUpdate+FIN 1
> Data 1 "too late"
alive
> WindowUpdate 1 amount=1024
react""", MAY_IGNORE, ("yamux.write-after-fin",)),
    Case("YAMUX-FIN-1", "everything-then-the-end", 1, """
> WindowUpdate+SYN 1
> Data 1 *32768 times=6
> WindowUpdate+FIN 1
< content 1 *196608
< *FIN* 1"""),
    Case("YAMUX-FIN-2", "fin-twice", 1, f"""{BLOCKED}
> WindowUpdate+FIN 1
> WindowUpdate+FIN 1
> WindowUpdate 1 amount=1024
react""", EITHER, ("yamux.fin-twice",)),
    Case("YAMUX-FIN-3", "update-after-fin", 1, f"""{ECHO}
> WindowUpdate+FIN 1
> WindowUpdate 1 amount=5
react""", EITHER, ("yamux.update-after-fin",)),
    Case("YAMUX-RST-1", "data-after-rst", 1, f"""{ECHO}
! content 1 "too late"
> WindowUpdate+RST 1
> Data 1 "too late"
react""", MAY_IGNORE, ("yamux.write-after-rst",)),
    Case("YAMUX-RST-2", "data-after-the-peers-rst", 2, """
! content 1 "too late"
> WindowUpdate+SYN 1
> Data 1 "testee: reset 0" x0a
< *RST* 1
> Data 1 "too late"
react""", outcomes(MAY_IGNORE, missing=Verdict.UNIMPLEMENTED), ("yamux.write-after-peer-rst",)),
    Case("YAMUX-PING-1", "ping", 0, "> Ping amount=77\n< Pong amount=77"),
    Case("YAMUX-PING-2", "unrequested-pong", 0, "> Pong amount=77\nreact", MAY_IGNORE,
         ("yamux.pong-unrequested",)),
    Case("YAMUX-PING-3", "ping-without-flags", 0, "> Ping amount=7 flags=0\nreact", SHOULD_REFUSE,
         ("yamux.ping-flags",)),
    Case("YAMUX-AWAY-1", "code-9", 1, f"{ECHO}\n> GoAway amount=9\nreact",
         outcomes(EITHER, wedged=Verdict.INFORMATIONAL), ("yamux.goaway-code",)),
    Case("YAMUX-AWAY-2", "open-after-go-away", 2, """
> WindowUpdate+SYN 1
> Data 1 "hello"
< content 1 "hello"
! *SYN* p
> GoAway amount=0
> Data 1 "more"
< content 1 "more" """,
         outcomes(closed=Verdict.INFORMATIONAL, missing=Verdict.INFORMATIONAL)),
)  # fmt: skip
