"""What a peer of Nerdbank has to do, and the cases that examine it (see `core/conformance.py`)."""

from __future__ import annotations

from typing import Final

from polymux.core.conformance import (
    DIALECT,
    EITHER,
    MAY_IGNORE,
    MUST,
    MUST_GO_ON,
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

V1: Final = {"version": ("1",)}
V2: Final = {"version": ("2",)}
V3: Final = {"version": ("3",)}
V12: Final = {"version": ("1", "2")}
V23: Final = {"version": ("2", "3")}

REQUIREMENTS: Final = (
    Requirement("NB-HS-1", DIALECT, "Version 1 begins with a magic and 16 random bytes.",
                ("nerdbank.bad-magic",)),
    Requirement("NB-HS-2", MUST, "Version 2 begins with [[major, minor], 16 bytes].",
                ("nerdbank.bad-handshake",)),
    Requirement("NB-HS-3", MUST, "Both sides send the handshake without waiting for the other's."),
    Requirement("NB-HS-4", MUST, "An incompatible version is detected.",
                ("nerdbank.version-mismatch",)),
    Requirement("NB-HS-5", MUST, "The side with the greater random value has the odd ids.",
                ("nerdbank.id-parity",)),
    Requirement("NB-HS-6", ROBUSTNESS, "Equal random values cannot be decided.",
                ("nerdbank.equal-randoms",)),
    Requirement("NB-HS-7", MUST, "Version 3 has no handshake."),
    Requirement("NB-FRM-1", MUST, "A frame of version 2 is an array: code, id, optional payload.",
                ("nerdbank.bad-frame",)),
    Requirement("NB-FRM-2", MUST, "A frame of version 3 is an array: code, id, source, optional "
                "payload.", ("nerdbank.bad-frame",)),
    Requirement("NB-FRM-3", DIALECT, "Codes 0 to 5 are defined, 6 to 8 are known extensions; a "
                "peer lives with others.", ("nerdbank.unknown-code",)),
    Requirement("NB-FRM-4", DIALECT, "A payload has at most 20480 bytes.",
                ("nerdbank.payload-too-long", "nerdbank.frame-too-long")),
    Requirement("NB-FRM-5", ROBUSTNESS, "An integer may have any legal width."),
    Requirement("NB-ID-1", MUST, "The odd side counts 1, 3, 5, the even side 2, 4, 6.",
                ("nerdbank.id-parity",)),
    Requirement("NB-ID-2", SHOULD, "Ids are not used again.",
                ("nerdbank.id-reused", "nerdbank.id-recycled")),
    Requirement("NB-ID-3", MUST, "The source of a frame says which side offered the channel.",
                ("nerdbank.wrong-source", "nerdbank.unknown-channel")),
    Requirement("NB-OFF-1", MUST, "An offer carries [name, window]; the name is required.",
                ("nerdbank.bad-offer", "nerdbank.offer-without-window")),
    Requirement("NB-OFF-2", MUST, "Nothing is sent on an offered channel before it is accepted.",
                ("nerdbank.content-before-acceptance",)),
    Requirement("NB-OFF-3", MUST, "Only what is on offer is accepted, once.",
                ("nerdbank.accepted-unknown-offer", "nerdbank.bad-acceptance")),
    Requirement("NB-OFF-4", MUST, "An offer is rejected or withdrawn by a termination.",
                ("nerdbank.termination-unanswered",)),
    Requirement("NB-OFF-5", DIALECT, "The side that offers may send before the acceptance."),
    Requirement("NB-BP-1", MUST, "Bytes sent and not processed stay within the window.",
                ("nerdbank.window-exceeded",)),
    Requirement("NB-BP-2", MUST, "No more is processed than was received.",
                ("nerdbank.acknowledged-too-much",)),
    Requirement("NB-BP-3", MUST, "Version 1 has no ContentProcessed.", ("nerdbank.bad-frame",)),
    Requirement("NB-BP-4", SHOULD, "A window that is exceeded may end the connection.",
                ("nerdbank.window-exceeded",)),
    Requirement("NB-BP-5", MUST, "A sender resumes after ContentProcessed."),
    Requirement("NB-BP-6", DIALECT, "A window never shrinks.", ("nerdbank.window-shrunk",)),
    Requirement("NB-BP-7", ROBUSTNESS, "A window is above zero and plausible.",
                ("nerdbank.bad-window",)),
    Requirement("NB-CLS-1", MUST, "No content follows one's own completion of writing.",
                ("nerdbank.content-after-completed", "nerdbank.completed-twice")),
    Requirement("NB-CLS-2", SHOULD, "A channel that both sides completed is terminated.",
                ("nerdbank.not-terminated",)),
    Requirement("NB-CLS-3", MUST, "Nothing follows one's own termination of a channel.",
                ("nerdbank.frame-after-termination", "nerdbank.terminated-twice",
                 "nerdbank.frame-after-peer-termination")),
    Requirement("NB-CLS-4", SHOULD, "A termination is answered.",
                ("nerdbank.termination-unanswered",)),
    Requirement("NB-CLS-5", DIALECT, "A termination before both sides completed is an early end.",
                without_case="an early end is legal: the analysis labels it, no peer can fail it"),
)  # fmt: skip

OPENED: Final = """
> Offer 1 "echo"
< OfferAccepted 1
"""
ECHO: Final = f"""{OPENED}
> Content 1 "hello"
< content 1 "hello"
"""
EARLY: Final = """
> Offer 1 "echo"
> Content 1 "early"
alive
alive
? content 1 "early"
"""
LOW_RANDOM: Final = "00" * 16

CASES: Final = (
    *echo_cases(ECHO),
    Case("GEN-WEDGE-1", "malformed-then-channel", 1, "> hex 91 00\nreact", MAY_IGNORE,
         ("nerdbank.bad-frame",), V23),
    Case("GEN-ISO-1", "error-on-one-channel", 1, f"""{ECHO}
> ContentWritingCompleted 1
> Content 1 "late"
react""", outcomes(MAY_IGNORE, closed=Verdict.NON_STRICT), ("nerdbank.content-after-completed",)),
    Case("NB-HS-1", "wrong-magic", 0, f"bare\n> hex 00010203{LOW_RANDOM}\nreact", MUST_REFUSE,
         ("nerdbank.bad-magic",), V1),
    Case("NB-HS-2", "one-element", 0, "bare\n> hex 91 92 02 00\nreact", MUST_REFUSE,
         ("nerdbank.bad-handshake",), V2),
    Case("NB-HS-2", "short-random", 0, "bare\n> hex 92 92 02 00 c4 04 01020304\nreact",
         MUST_REFUSE, ("nerdbank.bad-handshake",), V2),
    Case("NB-HS-3", "unprompted", 0, "bare\n< Handshake", options=V12),
    Case("NB-HS-4", "major-9", 0, f"bare\n> hex 92 92 09 00 c4 10 {LOW_RANDOM}\nreact",
         MUST_REFUSE, ("nerdbank.version-mismatch",), V2),
    Case("NB-HS-5", "greater-random", 2, '> Offer 1 "open 1"\n< Offer p2\nalive', options=V12),
    Case("NB-HS-5", "lesser-random-v2", 2, f"""bare
> hex 92 92 02 00 c4 10 {LOW_RANDOM}
> Offer #2 "open 1"
< Offer p1""", options=V2),
    Case("NB-HS-5", "lesser-random-v1", 2, f"""bare
> hex 2fdf1d50 {LOW_RANDOM}
> Offer #2 "open 1"
< Offer p1""", options=V1),
    Case("NB-HS-6", "equal-randoms", 0, "bare\nmirror\n< closed",
         outcomes(closed=Verdict.NON_STRICT), ("nerdbank.equal-randoms",), V12),
    Case("NB-HS-7", "first-frame", 0, """
> Offer 1 "polymux"
> ChannelTerminated 1
alive""", options=V3),
    Case("NB-FRM-1", "one-element", 0, "> hex 91 00\nreact", MUST_REFUSE, ("nerdbank.bad-frame",),
         V2),
    Case("NB-FRM-1", "text-for-code", 0, "> hex 92 a1 78 01\nreact", MUST_REFUSE,
         ("nerdbank.bad-frame",), V2),
    Case("NB-FRM-2", "one-element", 0, "> hex 91 00\nreact", MUST_REFUSE, ("nerdbank.bad-frame",),
         V3),
    Case("NB-FRM-2", "text-for-code", 0, "> hex 93 a1 78 01 01\nreact", MUST_REFUSE,
         ("nerdbank.bad-frame",), V3),
    Case("NB-FRM-3", "code-9", 0, '> Offer 1 "x"\n> Code 1 code=9\nreact',
         outcomes(MUST_GO_ON, refused=Verdict.OK), ("nerdbank.unknown-code",), V23),
    Case("NB-FRM-3", "code-100", 0, '> Offer 1 "x"\n> Code 1 code=100\nreact',
         outcomes(MUST_GO_ON, refused=Verdict.OK), ("nerdbank.unknown-code",), V23),
    Case("NB-FRM-4", "20481-bytes", 1, f"{ECHO}\n> Content 1 *20481\nreact", EITHER,
         ("nerdbank.payload-too-long",)),
    Case("NB-FRM-4", "name-of-one-mebibyte", 0, "> Offer 1 *1048576\nreact", SHOULD_REFUSE,
         ("nerdbank.frame-too-long",), V23),
    Case("NB-FRM-5", "wide-integers", 1, """
> hex 94 cf0000000000000000 ce00000001 01 c40b 92a46563686fce00100000
< OfferAccepted 1""", options=V3),
    Case("NB-FRM-5", "wide-integers-v2", 1, """
> hex 93 cf0000000000000000 ce00000001 c40b 92a46563686fce00100000
< OfferAccepted 1""", options=V2),
    Case("NB-ID-1", "even-side", 2, '> Offer 1 "open 2"\n< Offer p2\n< Offer p4', options=V12),
    Case("NB-ID-1", "wrong-parity", 0, '> Offer #2 "x"\nreact', MUST_REFUSE,
         ("nerdbank.id-parity",), V12),
    Case("NB-ID-2", "offered-twice", 0, '> Offer 1 "echo"\n> Offer 1 "echo"\nreact', MUST_REFUSE,
         ("nerdbank.id-reused",)),
    Case("NB-ID-2", "offered-again", 1, f"""{ECHO}
> ChannelTerminated 1
< ChannelTerminated 1
> Offer 1 "echo"
react""", EITHER, ("nerdbank.id-recycled",)),
    Case("NB-ID-3", "content-with-the-other-source", 1, f"""{ECHO}
! content * "wrong source"
> Content 1 "wrong source" source=-1
react""", MAY_IGNORE, ("nerdbank.unknown-channel",), V3),
    Case("NB-ID-3", "offer-in-the-peers-name", 0, '> Offer 1 "x" source=-1\nreact', MUST_REFUSE,
         ("nerdbank.wrong-source",), V3),
    Case("NB-ID-3", "source-2", 0, '> Offer 1 "x" source=2\nreact', SHOULD_REFUSE,
         ("nerdbank.wrong-source",), V3),
    Case("NB-ID-3", "unknown-channel", 0, '> Content 77 "to no channel"\nreact', MAY_IGNORE,
         ("nerdbank.unknown-channel",)),
    Case("NB-OFF-1", "empty-array", 0, "> Offer 1 x90 raw=1\nreact", MUST_REFUSE,
         ("nerdbank.bad-offer",), V23),
    Case("NB-OFF-1", "number-for-name", 0, "> Offer 1 x9105 raw=1\nreact", MUST_REFUSE,
         ("nerdbank.bad-offer",), V23),
    Case("NB-OFF-1", "no-payload", 0, "> Offer 1 raw=1\nreact", MUST_REFUSE,
         ("nerdbank.bad-offer",), V23),
    Case("NB-OFF-1", "without-window", 0, "> Offer 1 x91a178 raw=1\nreact", EITHER,
         ("nerdbank.offer-without-window",), V23),
    Case("NB-OFF-2", "content-before-acceptance", 2, """
> Offer 1 "open 1"
< Offer p
> Content p "early"
react""", MUST_REFUSE, ("nerdbank.content-before-acceptance",)),
    Case("NB-OFF-3", "accept-unknown", 0, "> OfferAccepted p77\nreact", MAY_IGNORE,
         ("nerdbank.accepted-unknown-offer",)),
    Case("NB-OFF-3", "accept-twice", 2, """
> Offer 1 "open 1"
< Offer p
> OfferAccepted p
> OfferAccepted p
react""", MUST_REFUSE, ("nerdbank.bad-acceptance",)),
    Case("NB-OFF-4", "withdrawn", 0, """
> Offer 1 "polymux"
> ChannelTerminated 1
< ChannelTerminated 1""", outcomes(missing=Verdict.NON_STRICT)),
    Case("NB-OFF-5", "early-content", 1, EARLY, outcomes(EITHER, met=Verdict.OK),
         ("nerdbank.window-exceeded",), V23),
    Case("NB-OFF-5", "early-content-v1", 1, EARLY, outcomes(EITHER, met=Verdict.OK), options=V1),
    Case("NB-BP-1", "window-of-10", 1, """
> Offer 1 "echo" window=10
< OfferAccepted 1
> Content 1 *30
< bytes 1 amount=10
! content 1 *11
alive""", options=V23),
    Case("NB-BP-2", "processed-too-much", 1, f"{ECHO}\n> ContentProcessed 1 amount=1000\nreact",
         MUST_REFUSE, ("nerdbank.acknowledged-too-much",), V23),
    Case("NB-BP-3", "content-processed", 1, f"{ECHO}\n> ContentProcessed 1\nreact", MAY_IGNORE,
         ("nerdbank.bad-frame",), V1),
    Case("NB-BP-4", "far-over-the-window", 1, """
> Offer 1 "echo" window=10
< OfferAccepted 1
> Content 1 *20480 times=400
react""", SHOULD_REFUSE, ("nerdbank.window-exceeded",), V23),
    Case("NB-BP-5", "resumes", 1, """
> Offer 1 "echo" window=10
< OfferAccepted 1
> Content 1 *30
< bytes 1 amount=10
> ContentProcessed 1 amount=10
< bytes 1 amount=20""", options=V23),
    Case("NB-BP-6", "smaller-window", 1, f"{ECHO}\n> ChannelWindowAdjust 1 amount=5\nreact",
         EITHER, ("nerdbank.window-shrunk",), V23),
    Case("NB-BP-7", "negative", 0, '> Offer 1 "echo" window=-1\nreact', MUST_REFUSE,
         ("nerdbank.bad-window",), V23),
    Case("NB-BP-7", "zero", 0, '> Offer 1 "echo" window=0\nreact', SHOULD_REFUSE,
         ("nerdbank.bad-window",), V23),
    Case("NB-BP-7", "2-62", 0, '> Offer 1 "echo" window=4611686018427387904\nreact',
         SHOULD_REFUSE, ("nerdbank.bad-window",), V23),
    Case("NB-CLS-1", "content-after-completed", 1, f"""{ECHO}
! content 1 "too late"
> ContentWritingCompleted 1
> Content 1 "too late"
react""", MAY_IGNORE, ("nerdbank.content-after-completed",)),
    Case("NB-CLS-1", "completed-twice", 1, f"""{ECHO}
> ContentWritingCompleted 1
> ContentWritingCompleted 1
react""", MAY_IGNORE, ("nerdbank.completed-twice",)),
    Case("NB-CLS-2", "both-completed", 1, f"""{ECHO}
> ContentWritingCompleted 1
< ContentWritingCompleted 1
< ChannelTerminated 1
> ChannelTerminated 1""", outcomes(missing=Verdict.NON_STRICT)),
    Case("NB-CLS-3", "content-after-termination", 1, f"""{ECHO}
! content 1 "too late"
> ChannelTerminated 1
> Content 1 "too late"
react""", MAY_IGNORE, ("nerdbank.frame-after-termination",)),
    Case("NB-CLS-3", "terminated-twice", 1, f"""{ECHO}
> ChannelTerminated 1
> ChannelTerminated 1
react""", MAY_IGNORE, ("nerdbank.terminated-twice",)),
    Case("NB-CLS-3", "content-after-the-peers-termination", 2, """
! content 1 "too late"
> Offer 1 "reset 0"
< ChannelTerminated 1
> Content 1 "too late"
react""", MAY_IGNORE, ("nerdbank.frame-after-peer-termination",)),
    Case("NB-CLS-3", "nothing-follows", 1, f"""{ECHO}
> ChannelTerminated 1
< ChannelTerminated 1
alive""", outcomes(missing=Verdict.NON_STRICT)),
    Case("NB-CLS-4", "answered", 1, f"""{OPENED}
> ChannelTerminated 1
< ChannelTerminated 1""", outcomes(missing=Verdict.NON_STRICT)),
)  # fmt: skip
