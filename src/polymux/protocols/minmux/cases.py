"""What a peer of Minmux has to do, and the cases that examine it (see `core/conformance.py`)."""

from __future__ import annotations

from typing import Final

from polymux.core.conformance import (
    AMBIGUOUS,
    DIALECT,
    EITHER,
    MAY_IGNORE,
    MUST,
    MUST_GO_ON,
    MUST_REFUSE,
    ROBUSTNESS,
    SHOULD,
    Case,
    Requirement,
    Verdict,
    echo_cases,
    outcomes,
)

NEEDS_PROFILE: Final = "it depends on the profile; without one, every id is assigned and can end"

REQUIREMENTS: Final = (
    Requirement("MIN-ROLE-1", MUST, "The dialer writes odd ids and reads even ones."),
    Requirement("MIN-ID-1", MUST, "A packet on an unassigned stream ends the session.",
                ("minmux.unassigned-stream",), NEEDS_PROFILE),
    Requirement("MIN-ID-2", MUST, "Ids below 63 are in the header, others follow it."),
    Requirement("MIN-ID-3", MUST, "An id is used again only after both sides stopped.",
                ("minmux.write-past-limit",)),
    Requirement("MIN-ENC-1", DIALECT, "A number has its shortest form.",
                ("minmux.varint-noncanonical",)),
    Requirement("MIN-ENC-2", MUST, "Amounts that cannot be zero are stored minus one."),
    Requirement("MIN-ENC-3", AMBIGUOUS, "The offset of ids after the header is 63."),
    Requirement("MIN-ENC-4", MUST, "No number is above 2^64-1.", ("minmux.varint-overflow",)),
    Requirement("MIN-ENC-5", AMBIGUOUS, "The reader promises credit and the writer items.",
                ("minmux.promise-past-limit",)),
    Requirement("MIN-CR-1", MUST, "No more is written than there is credit for.",
                ("minmux.credit-exceeded",)),
    Requirement("MIN-CR-2", MUST, "Writing without credit ends the session.",
                ("minmux.credit-exceeded",)),
    Requirement("MIN-CR-3", MUST, "Credit starts at zero.", ("minmux.credit-exceeded",)),
    Requirement("MIN-CR-4", MUST, "No more credit is forgone than is held.",
                ("minmux.forgo-exceeds-credit",)),
    Requirement("MIN-CR-5", ROBUSTNESS, "The credit held at a time is at most 2^64-1.",
                ("minmux.credit-overflow",)),
    Requirement("MIN-CR-6", MUST, "What credit allows is taken at once."),
    Requirement("MIN-SR-1", MUST, "After StopRead no more credit is given than it says.",
                ("minmux.credit-past-limit",)),
    Requirement("MIN-SR-2", MUST, "StopRead can only lower the limit.", ("minmux.limit-raised",)),
    Requirement("MIN-SW-1", MUST, "After StopWrite no more items are written than it says.",
                ("minmux.write-past-limit",)),
    Requirement("MIN-SW-2", MUST, "StopWrite can only lower the limit.", ("minmux.limit-raised",)),
    Requirement("MIN-SW-3", MUST, "At zero only the last item follows.",
                ("minmux.write-past-limit", "minmux.last-item-missing")),
    Requirement("MIN-SW-4", MUST, "A stream whose last item is empty is not stopped.",
                ("minmux.endless-stream-stopped",), NEEDS_PROFILE),
    Requirement("MIN-OOPS-1", SHOULD, "An Oops is answered by forgoing credit; it may be ignored."),
    Requirement("MIN-PRM-1", DIALECT, "A broken promise to write may be an error.",
                ("minmux.promise-past-limit",)),
    Requirement("MIN-PRM-2", DIALECT, "A broken promise to read may be an error.",
                ("minmux.promise-past-limit",)),
    Requirement("MIN-IGN-1", MUST, "A minimal peer tolerates Oops and promises."),
    Requirement("MIN-FAIR-1", MUST, "Streams are interleaved fairly."),
)  # fmt: skip

ECHO: Final = """
> GiveCredit r1 amount=5
< credit w1 amount=5
> Write w1 "hello"
< content r1 "hello"
"""


def promise_on(number: int) -> str:
    return f"> PromiseRead #{number} amount=1\nreact"


CASES: Final = (
    *echo_cases(ECHO),
    Case("GEN-WEDGE-1", "overflow-then-stream", 1, "> hex e8 ff ffffffffffffffff\nreact",
         MAY_IGNORE, ("minmux.varint-overflow",)),
    Case("GEN-ISO-1", "stop-of-one-stream", 1, f"{ECHO}\n> StopRead r1\n> StopWrite w1\nreact",
         MUST_GO_ON),
    Case("MIN-ROLE-1", "echo", 1, ECHO),
    *(Case("MIN-ID-2", f"id-{name}", 0, promise_on(number), MUST_GO_ON) for name, number in (
        ("0", 0), ("62", 62), ("63", 63), ("64", 64), ("2-64", (1 << 64) - 1))),
    Case("MIN-ID-3", "write-after-the-end", 1, f"""{ECHO}
> StopWrite w1
> Write w1 "x"
react""", MUST_REFUSE, ("minmux.write-past-limit",)),
    Case("MIN-ENC-1", "padded", 0, "> hex e8 f8 05\nreact", EITHER,
         ("minmux.varint-noncanonical",)),
    Case("MIN-ENC-2", "amount-of-one", 1, """
> GiveCredit r1 amount=1
< credit w1 amount=2
> Write w1 "ab"
< content r1 "a"
! content r1 "ab"
alive"""),
    Case("MIN-ENC-3", "id-63", 0, promise_on(63), outcomes(EITHER, ignored=Verdict.OK)),
    Case("MIN-ENC-4", "overflow", 0, "> hex e8 ff ffffffffffffffff\nreact", MUST_REFUSE,
         ("minmux.varint-overflow",)),
    Case("MIN-ENC-5", "both-promises", 0, """
> PromiseRead r1 amount=3
> PromiseWrite w1 amount=3
react""", outcomes(EITHER, ignored=Verdict.OK)),
    Case("MIN-CR-1", "credit-of-three", 1, """
> GiveCredit r1 amount=3
< credit w1 amount=5
> Write w1 "hello"
< content r1 "hel"
! content r1 "hell"
alive"""),
    Case("MIN-CR-2", "write-without-credit", 2, '> Write w7 "x"\nreact', MUST_REFUSE,
         ("minmux.credit-exceeded",)),
    Case("MIN-CR-3", "nothing-granted", 2, '! content r8 "z"\nalive'),
    Case("MIN-CR-4", "forgo-too-much", 2, "> ForgoCredit w7 amount=5\nreact", MUST_REFUSE,
         ("minmux.forgo-exceeds-credit",)),
    Case("MIN-CR-5", "overflow", 0, """
> GiveCredit r5 amount=18446744073709551615
> GiveCredit r5 amount=18446744073709551615
react""", MUST_REFUSE, ("minmux.credit-overflow",)),
    Case("MIN-CR-6", "all-of-the-credit", 2, """
< credit w6 amount=100
> Write w6 *100
alive"""),
    Case("MIN-SR-1", "credit-past-the-limit", 0, """
> StopRead r5 amount=5
> GiveCredit r5 amount=9
react""", MUST_REFUSE, ("minmux.credit-past-limit",)),
    Case("MIN-SR-2", "raised", 0, "> StopRead r5 amount=5\n> StopRead r5 amount=9\nreact",
         MUST_REFUSE, ("minmux.limit-raised",)),
    Case("MIN-SW-1", "past-the-limit", 1, """
< credit w1 amount=2
> StopWrite w1 amount=1
> Write w1 "ab"
react""", MUST_REFUSE, ("minmux.write-past-limit",)),
    Case("MIN-SW-2", "raised", 0, "> StopWrite w5 amount=5\n> StopWrite w5 amount=9\nreact",
         MUST_REFUSE, ("minmux.limit-raised",)),
    Case("MIN-SW-3", "write-at-zero", 0, '> StopWrite w5\n> Write w5 "ab"\nreact', MUST_REFUSE,
         ("minmux.write-past-limit",)),
    Case("MIN-OOPS-1", "oops-0", 1, """
> GiveCredit r1 amount=50
> Oops r1 amount=0
< ForgoCredit r1""", outcomes(missing=Verdict.INFORMATIONAL)),
    Case("MIN-PRM-1", "promise-past-the-limit", 0, """
> StopWrite w5 amount=2
> PromiseWrite w5 amount=5
react""", EITHER, ("minmux.promise-past-limit",)),
    Case("MIN-PRM-2", "promise-past-the-limit", 0, """
> StopRead r5 amount=2
> PromiseRead r5 amount=5
react""", EITHER, ("minmux.promise-past-limit",)),
    Case("MIN-IGN-1", "oops-and-promises", 0, """
> GiveCredit r5 amount=5
> Oops r5 amount=5
> PromiseRead r5 amount=1
> PromiseWrite w5 amount=1
react""", MUST_GO_ON),
    Case("MIN-FAIR-1", "beside-bulk", 2, f"> GiveCredit r8 amount=20000\n{ECHO}"),
)  # fmt: skip
