"""What a peer of mplex has to do, and the cases that examine it (see `core/conformance.py`)."""

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
    SHOULD_GO_ON,
    SHOULD_REFUSE,
    Case,
    Requirement,
    Verdict,
    echo_cases,
    outcomes,
)

REQUIREMENTS: Final = (
    Requirement("MPLEX-HDR-1", MUST, "A header is a varint: the flag in the low three bits, then "
                "the id."),
    Requirement("MPLEX-HDR-2", MUST, "Flags are 0 to 6.", ("mplex.bad-flag",)),
    Requirement("MPLEX-HDR-3", DIALECT, "A varint is minimal and has at most nine bytes.",
                ("mplex.varint-noncanonical", "mplex.varint-too-long")),
    Requirement("MPLEX-LEN-1", MUST, "The length is exact and at most the agreed maximum.",
                ("mplex.frame-too-long",)),
    Requirement("MPLEX-OPEN-1", MUST, "A new stream has an id that is not in use.",
                ("mplex.id-reused",)),
    Requirement("MPLEX-OPEN-2", DIALECT, "The dialer opens odd ids and the listener even ones.",
                ("mplex.id-parity",)),
    Requirement("MPLEX-OPEN-3", MUST, "A name may be anything: empty, repeated, or odd bytes."),
    Requirement("MPLEX-OPEN-4", SHOULD, "An id is not used again after its stream is over.",
                ("mplex.id-recycled",)),
    Requirement("MPLEX-OPEN-5", MUST, "Only streams that were opened are used.",
                ("mplex.unknown-stream",)),
    Requirement("MPLEX-ROLE-1", MUST, "The opener uses the initiator's flags, the other side the "
                "receiver's.", ("mplex.wrong-role-flag",)),
    Requirement("MPLEX-CLOSE-1", MUST, "A close has no body.", ("mplex.close-with-payload",)),
    Requirement("MPLEX-CLOSE-2", MUST, "No message follows one's own close.",
                ("mplex.write-after-close", "mplex.close-twice")),
    Requirement("MPLEX-CLOSE-3", MUST, "After a close the other direction goes on."),
    Requirement("MPLEX-CLOSE-4", MUST, "A reader gets everything, and then the end."),
    Requirement("MPLEX-RESET-1", DIALECT, "A reset has no body, or the text of an error.",
                ("mplex.reset-with-payload",)),
    Requirement("MPLEX-RESET-2", MUST, "A reset ends both directions at once.",
                ("mplex.write-after-reset", "mplex.write-after-peer-reset",
                 "mplex.reset-after-close")),
    Requirement("MPLEX-RESET-3", MUST, "After a reset, reads fail; they do not report an end."),
    Requirement("MPLEX-RESET-4", MUST, "A reset drops what was queued.",
                ("mplex.write-after-reset",)),
    Requirement("MPLEX-RESET-5", MUST, "A reset does not wait for data that is queued.",
                without_case="the tester cannot know when the buffers of the peer are full"),
    Requirement("MPLEX-SLOW-1", MUST, "A slow reader makes the peer pause the connection, or reset "
                "that stream."),
    Requirement("MPLEX-SLOW-2", ROBUSTNESS, "A pause has an end.",
                without_case="a pause may last half a minute, longer than a case"),
    Requirement("MPLEX-RATE-1", DIALECT, "A peer may limit how many streams are opened a second."),
    Requirement("MPLEX-ISO-1", MUST, "The reset of one stream leaves the others alone."),
)  # fmt: skip

ECHO: Final = """
> NewStream 1 "echo"
> MessageInitiator 1 "hello"
< content 1 "hello"
"""


def echo_on(word: str) -> str:
    """The script of an echo on the stream that `word` names."""
    return f"""
> NewStream {word} "echo"
> MessageInitiator {word} "hello"
< content {word} "hello"
"""


IDS: Final = (
    tuple(Case("MPLEX-HDR-1", f"id-{name}", 1, echo_on(f"#{number}")) for name, number in (
        ("0", 0), ("1", 1), ("50-million", 50_000_000), ("2-31", 1 << 31),
        ("2-33", 1 << 33), ("2-53", 1 << 53), ("2-60", (1 << 60) - 1),
    ))
)  # fmt: skip

CASES: Final = (
    *echo_cases(ECHO),
    Case("GEN-WEDGE-1", "bad-flag-then-stream", 1, "> hex 0f 00\nreact", MAY_IGNORE,
         ("mplex.bad-flag",)),
    Case("GEN-ISO-1", "error-on-one-stream", 1, f"""{ECHO}
> CloseInitiator 1
> MessageInitiator 1 "late"
react""", outcomes(MAY_IGNORE, closed=Verdict.NON_STRICT), ("mplex.write-after-close",)),
    *IDS,
    Case("MPLEX-HDR-2", "flag-7", 0, "> Undefined 1\nreact", SHOULD_REFUSE, ("mplex.bad-flag",)),
    Case("MPLEX-HDR-3", "padded-id", 0, '> NewStream 1 "echo" padded=3\nreact', EITHER,
         ("mplex.varint-noncanonical",)),
    Case("MPLEX-HDR-3", "ten-bytes", 0, "> hex 88 80 80 80 80 80 80 80 80 01 00\nreact",
         MAY_IGNORE, ("mplex.varint-too-long",)),
    Case("MPLEX-HDR-3", "twelve-bytes", 0,
         "> hex 88 80 80 80 80 80 80 80 80 80 80 01 00\nreact", MAY_IGNORE,
         ("mplex.varint-too-long",)),
    Case("MPLEX-HDR-3", "without-end", 0, f"> hex {'ff' * 12}\nreact", MAY_IGNORE,
         ("mplex.varint-too-long",)),
    Case("MPLEX-LEN-1", "one-mebibyte", 1, """
> NewStream 1 "echo"
> MessageInitiator 1 *1048576
< content 1 *1048576"""),
    Case("MPLEX-LEN-1", "over-one-mebibyte", 0, """
> NewStream 1 "echo"
> MessageInitiator 1 *1048577
react""", SHOULD_REFUSE, ("mplex.frame-too-long",)),
    Case("MPLEX-LEN-1", "length-2-40", 0, """
> NewStream 1 "echo"
> MessageInitiator 1 length=1099511627776
react""", outcomes(MUST_REFUSE, wedged=Verdict.FAILED), ("mplex.frame-too-long",)),
    Case("MPLEX-LEN-1", "length-2-62", 0, """
> NewStream 1 "echo"
> MessageInitiator 1 length=4611686018427387904
react""", outcomes(MUST_REFUSE, wedged=Verdict.FAILED), ("mplex.frame-too-long",)),
    Case("MPLEX-OPEN-1", "opened-twice", 0, """
> NewStream 1 "echo"
> NewStream 1 "echo"
react""", MUST_REFUSE, ("mplex.id-reused",)),
    Case("MPLEX-OPEN-2", "parity", 2, """
> NewStream 1 "open 3"
< NewStream p
< NewStream p
< NewStream p
alive""", outcomes(forbidden=Verdict.INFORMATIONAL)),
    Case("MPLEX-OPEN-3", "empty-name", 1, """
> NewStream 1
> MessageInitiator 1 "hello"
< content 1 "hello" """),
    Case("MPLEX-OPEN-3", "repeated-name", 1, f"""{ECHO}
> NewStream 2 "echo"
> MessageInitiator 2 "again"
< content 2 "again" """),
    Case("MPLEX-OPEN-3", "odd-bytes", 1, f"""
> NewStream 1 x{bytes(range(255, 0, -1)).hex()}
> MessageInitiator 1 "hello"
< content 1 "hello" """),
    Case("MPLEX-OPEN-4", "after-both-closed", 1, f"""{ECHO}
> CloseInitiator 1
< CloseReceiver 1
> NewStream 1 "echo"
react""", EITHER, ("mplex.id-recycled",)),
    Case("MPLEX-OPEN-4", "after-reset", 1, f"""{ECHO}
> ResetInitiator 1
> NewStream 1 "echo"
react""", EITHER, ("mplex.id-recycled",)),
    Case("MPLEX-OPEN-5", "message-on-unknown-id", 0, """
! content 77 "to no stream"
> MessageInitiator 77 "to no stream"
react""", MAY_IGNORE, ("mplex.unknown-stream",)),
    Case("MPLEX-OPEN-5", "close-of-unknown-id", 0, "> CloseInitiator 77\nreact", MAY_IGNORE,
         ("mplex.unknown-stream",)),
    Case("MPLEX-ROLE-1", "receiver-flag-of-opener", 1, f"""{ECHO}
! content * "wrong flag"
> MessageReceiver 1 "wrong flag"
react""", MAY_IGNORE, ("mplex.wrong-role-flag",)),
    Case("MPLEX-CLOSE-1", "close-with-body", 1, f"""{ECHO}
! content 1 "body"
> CloseInitiator 1 "body"
react""", MAY_IGNORE, ("mplex.close-with-payload",)),
    Case("MPLEX-CLOSE-2", "message-after-close", 1, f"""{ECHO}
! content 1 "too late"
> CloseInitiator 1
> MessageInitiator 1 "too late"
react""", MAY_IGNORE, ("mplex.write-after-close",)),
    Case("MPLEX-CLOSE-2", "close-twice", 1, f"""{ECHO}
> CloseInitiator 1
> CloseInitiator 1
react""", SHOULD_GO_ON, ("mplex.close-twice",)),
    Case("MPLEX-CLOSE-3", "echo-after-close", 1, """
> NewStream 1 "echo"
> MessageInitiator 1 "hello"
> CloseInitiator 1
< content 1 "hello"
< CloseReceiver 1"""),
    Case("MPLEX-CLOSE-4", "everything-then-the-end", 1, """
> NewStream 1 "echo"
> MessageInitiator 1 *65536 times=16
> CloseInitiator 1
< content 1 *1048576
< CloseReceiver 1"""),
    Case("MPLEX-RESET-1", "reset-with-text", 1, f"""{ECHO}
> ResetInitiator 1 "went wrong"
react""", outcomes(SHOULD_GO_ON, refused=Verdict.OK), ("mplex.reset-with-payload",)),
    Case("MPLEX-RESET-2", "message-after-reset", 1, f"""{ECHO}
! content 1 "too late"
> ResetInitiator 1
> MessageInitiator 1 "too late"
react""", MAY_IGNORE, ("mplex.write-after-reset",)),
    Case("MPLEX-RESET-2", "message-after-the-peers-reset", 2, """
! content 1 "too late"
> NewStream 1 "reset 0"
< ResetReceiver 1
> MessageInitiator 1 "too late"
react""", MAY_IGNORE, ("mplex.write-after-peer-reset",)),
    Case("MPLEX-RESET-2", "nothing-after-reset", 2, """
> NewStream 1 "slow 64000"
> MessageInitiator 1 *65536 times=4
< frames 1 amount=1
> ResetInitiator 1
alive
alive"""),
    Case("MPLEX-RESET-2", "reset-of-a-closed-stream", 1, f"""{ECHO}
> CloseInitiator 1
< CloseReceiver 1
> ResetInitiator 1
react""", SHOULD_GO_ON, ("mplex.reset-after-close",)),
    Case("MPLEX-RESET-3", "reads-fail", 2, f"""{ECHO}
> ResetInitiator 1
alive
> NewStream 3 "report"
< content 3 "echo: aborted" """),
    Case("MPLEX-RESET-4", "nothing-of-the-queue", 2, """
> NewStream 1 "reset 65536"
< ResetReceiver 1
alive
alive"""),
    Case("MPLEX-SLOW-1", "unread-stream", 2, """
> NewStream 1 "never-read"
> MessageInitiator 1 *65536 times=128
react""", outcomes(MAY_IGNORE, wedged=Verdict.INFORMATIONAL)),
    Case("MPLEX-RATE-1", "fifty-at-once", 0,
         "\n".join(f'> NewStream {number} "echo"' for number in range(1, 51)) + "\nreact",
         outcomes(EITHER, ignored=Verdict.OK, wedged=Verdict.INFORMATIONAL)),
    Case("MPLEX-ISO-1", "one-of-three", 1, """
> NewStream 1 "echo"
> NewStream 2 "echo"
> NewStream 3 "echo"
> MessageInitiator 1 "one"
> MessageInitiator 2 "two"
> MessageInitiator 3 "three"
< content 2 "two"
> ResetInitiator 2
> MessageInitiator 1 "more"
> MessageInitiator 3 "more"
< content 1 "onemore"
< content 3 "threemore" """),
)  # fmt: skip
