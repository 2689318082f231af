"""What a peer of omnistreams has to do, and the cases that examine it (`core/conformance.py`)."""

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
    SHOULD_GO_ON,
    SHOULD_REFUSE,
    Case,
    Requirement,
    Verdict,
    echo_cases,
    outcomes,
)

SPEC: Final = {"numbering": ("spec",)}
LENGTH: Final = {"carrier": ("length",)}
WEBSOCKET: Final = {"carrier": ("websocket",)}

REQUIREMENTS: Final = (
    Requirement("OMNI-MSG-1", MUST, "A message begins with its type, 0 to 6.",
                ("omnistreams.empty-message", "omnistreams.unknown-type",
                 "omnistreams.message-too-long")),
    Requirement("OMNI-MSG-2", MUST, "All but control messages have a stream id.",
                ("omnistreams.bad-length",)),
    Requirement("OMNI-MSG-3", MUST, "An end has nothing after the id.",
                ("omnistreams.end-with-payload",)),
    Requirement("OMNI-MSG-4", MUST, "A request has exactly one byte of count.",
                ("omnistreams.bad-length",)),
    Requirement("OMNI-MSG-5", AMBIGUOUS, "Cancels carry nothing.",
                ("omnistreams.cancel-with-payload",)),
    Requirement("OMNI-DIA-1", DIALECT, "The types are numbered as in the specification, or as in "
                "all code before it."),
    Requirement("OMNI-ROLE-1", MUST, "The creator sends types 1 to 4, the acceptor 5 and 6.",
                ("omnistreams.request-on-unknown-id",)),
    Requirement("OMNI-ID-1", MUST, "A stream is created only on a free id.",
                ("omnistreams.create-on-open-id",)),
    Requirement("OMNI-ID-2", SHOULD, "An id is used again only after an end or a cancel."),
    Requirement("OMNI-ID-3", MUST, "A side has at most 256 streams open.",
                ("omnistreams.create-on-open-id",)),
    Requirement("OMNI-FC-1", MUST, "No more messages are sent than were requested.",
                ("omnistreams.credit-exceeded",)),
    Requirement("OMNI-FC-2", MUST, "No message is sent before the first request.",
                ("omnistreams.credit-exceeded",)),
    Requirement("OMNI-FC-3", MUST, "Requests add up."),
    Requirement("OMNI-FC-4", MUST, "A request permits, it does not demand."),
    Requirement("OMNI-FC-5", AMBIGUOUS, "A request of 0 has no effect."),
    Requirement("OMNI-FC-6", ROBUSTNESS, "Credit does not wrap at 256."),
    Requirement("OMNI-UNK-1", MUST, "Data on an unknown id is dropped and answered with a cancel.",
                ("omnistreams.data-on-unknown-id", "omnistreams.data-unanswered")),
    Requirement("OMNI-UNK-2", ROBUSTNESS, "A flood of such data does no harm.",
                ("omnistreams.data-on-unknown-id",)),
    Requirement("OMNI-END-1", MUST, "No data follows an end.",
                ("omnistreams.data-on-unknown-id", "omnistreams.end-on-unknown-id")),
    Requirement("OMNI-CAN-1", MUST, "After CANCEL_RECEIVE_STREAM the acceptor stops and forgets.",
                ("omnistreams.cancel-on-unknown-id",)),
    Requirement("OMNI-CAN-2", MUST, "After CANCEL_SEND_STREAM the creator stops.",
                ("omnistreams.sent-after-cancel",)),
    Requirement("OMNI-CTL-1", MUST, "Control messages belong to no stream and may hold any bytes."),
    Requirement("OMNI-META-1", MUST, "Metadata may be any bytes, or none.",
                ("omnistreams.metadata-too-long",)),
    Requirement("OMNI-WS-1", DIALECT, "Messages of the carrier are binary."),
)  # fmt: skip

ECHO: Final = """
> CREATE_RECEIVE_STREAM 1 "echo"
< STREAM_REQUEST_DATA 1
> STREAM_DATA 1 "hello"
< CREATE_RECEIVE_STREAM p
> STREAM_REQUEST_DATA p amount=9
< content p "hello"
"""
SOURCE: Final = """
> CREATE_RECEIVE_STREAM 1 "source 300"
< CREATE_RECEIVE_STREAM p
"""

CASES: Final = (
    *echo_cases(ECHO),
    Case("GEN-WEDGE-1", "unknown-type-then-stream", 1, "> message x2a01\nreact", MAY_IGNORE,
         ("omnistreams.unknown-type",)),
    Case("GEN-ISO-1", "error-on-one-stream", 1, f"""{ECHO}
> STREAM_END 1
> STREAM_DATA 1 "late"
react""", outcomes(MAY_IGNORE, closed=Verdict.NON_STRICT), ("omnistreams.data-on-unknown-id",)),
    Case("OMNI-MSG-1", "empty", 0, "> message\nreact", MAY_IGNORE, ("omnistreams.empty-message",)),
    Case("OMNI-MSG-1", "type-7", 0, "> message x0701\nreact", MAY_IGNORE,
         ("omnistreams.unknown-type",)),
    Case("OMNI-MSG-1", "type-255", 0, "> message xff01\nreact", MAY_IGNORE,
         ("omnistreams.unknown-type",)),
    Case("OMNI-MSG-1", "2-gibibytes", 0, "> hex 7fffffff\nreact",
         outcomes(MUST_REFUSE, wedged=Verdict.FAILED), ("omnistreams.message-too-long",), LENGTH),
    Case("OMNI-MSG-2", "data-without-id", 0, "> message x02\nreact", MAY_IGNORE,
         ("omnistreams.bad-length",), SPEC),
    Case("OMNI-MSG-3", "end-with-data", 1, f"{ECHO}\n> STREAM_END 1 xff\nreact", MAY_IGNORE,
         ("omnistreams.end-with-payload",)),
    Case("OMNI-MSG-4", "without-count", 0, "> message x0501\nreact", MAY_IGNORE,
         ("omnistreams.bad-length",), SPEC),
    Case("OMNI-MSG-4", "with-two-bytes", 1, f"{ECHO}\n> STREAM_REQUEST_DATA p x01\nreact",
         MAY_IGNORE, ("omnistreams.bad-length",), SPEC),
    Case("OMNI-MSG-5", "cancel-with-body", 1, f"{ECHO}\n> CANCEL_RECEIVE_STREAM 1 xff\nreact",
         EITHER, ("omnistreams.cancel-with-payload",), SPEC),
    Case("OMNI-DIA-1", "specification", 1, """
> message x0000
> message x0100
< STREAM_REQUEST_DATA #0""", outcomes(EITHER, met=Verdict.OK), options=SPEC),
    Case("OMNI-ROLE-1", "request-of-the-creator", 1, f"{ECHO}\n> STREAM_REQUEST_DATA 77\nreact",
         MAY_IGNORE, ("omnistreams.request-on-unknown-id",)),
    Case("OMNI-ID-1", "created-twice", 1, f"""{ECHO}
> CREATE_RECEIVE_STREAM 1 "echo"
react""", SHOULD_REFUSE, ("omnistreams.create-on-open-id",)),
    Case("OMNI-ID-2", "after-the-end", 1, f"""{ECHO}
> STREAM_END 1
> CREATE_RECEIVE_STREAM 1 "echo"
react""", SHOULD_GO_ON),
    Case("OMNI-ID-3", "256-open", 2, """
> CREATE_RECEIVE_STREAM 1 "open 300"
< CREATE_RECEIVE_STREAM p255"""),
    Case("OMNI-FC-1", "two-requested", 2, f"""{SOURCE}
> STREAM_REQUEST_DATA p amount=2
< content p "zz"
! content p "zzz"
alive"""),
    Case("OMNI-FC-1", "more-than-requested", 1, """
> CREATE_RECEIVE_STREAM 1 "echo"
> STREAM_DATA 1 "z" times=3000
react""", SHOULD_REFUSE, ("omnistreams.credit-exceeded",)),
    Case("OMNI-FC-2", "nothing-requested", 2, f'{SOURCE}\n! content p "z"\nalive'),
    Case("OMNI-FC-3", "two-and-three", 2, f"""{SOURCE}
> STREAM_REQUEST_DATA p amount=2
> STREAM_REQUEST_DATA p amount=3
< content p *5
! content p *6
alive"""),
    Case("OMNI-FC-4", "end-with-credit-left", 1, f"{ECHO}\n> STREAM_END 1\nreact", MUST_GO_ON),
    Case("OMNI-FC-5", "count-0", 1, f"{ECHO}\n> STREAM_REQUEST_DATA p amount=0\nreact",
         outcomes(EITHER, ignored=Verdict.OK)),
    Case("OMNI-FC-6", "255-twice", 2, f"""{SOURCE}
> STREAM_REQUEST_DATA p amount=255
> STREAM_REQUEST_DATA p amount=255
< frames p amount=300"""),
    Case("OMNI-UNK-1", "data-on-unused-id", 0, """
> STREAM_DATA 77 "to no stream"
< CANCEL_SEND_STREAM 77
alive""", breaks=("omnistreams.data-on-unknown-id",)),
    Case("OMNI-UNK-2", "flood", 0, '> STREAM_DATA 77 "to no stream" times=5000\nreact',
         MAY_IGNORE, ("omnistreams.data-on-unknown-id",)),
    Case("OMNI-END-1", "data-after-end", 1, f"""{ECHO}
! content p "too late"
> STREAM_END 1
> STREAM_DATA 1 "too late"
react""", MAY_IGNORE, ("omnistreams.data-on-unknown-id",)),
    Case("OMNI-END-1", "end-of-unknown-id", 0, "> STREAM_END 77\nreact", MAY_IGNORE,
         ("omnistreams.end-on-unknown-id",)),
    Case("OMNI-CAN-1", "cancelled-by-the-creator", 1, f"""{ECHO}
> CANCEL_RECEIVE_STREAM 1
alive
alive""", options=SPEC),
    Case("OMNI-CAN-1", "cancel-of-unknown-id", 0, "> CANCEL_RECEIVE_STREAM 77\nreact", MAY_IGNORE,
         ("omnistreams.cancel-on-unknown-id",), SPEC),
    Case("OMNI-CAN-2", "cancelled-by-the-acceptor", 2, f"""{SOURCE}
> STREAM_REQUEST_DATA p amount=2
< content p "zz"
> CANCEL_SEND_STREAM p
! content p "zzz"
alive
> STREAM_REQUEST_DATA p amount=100
alive"""),
    Case("OMNI-CTL-1", "any-bytes", 0, "> CONTROL_MESSAGE x00ff0102fe\nreact", MUST_GO_ON),
    Case("OMNI-META-1", "empty", 1, "> CREATE_RECEIVE_STREAM 1\n< STREAM_REQUEST_DATA 1"),
    Case("OMNI-META-1", "binary", 1, f"""
> CREATE_RECEIVE_STREAM 1 x{bytes(range(255, -1, -1)).hex()}
< STREAM_REQUEST_DATA 1"""),
    Case("OMNI-META-1", "half-a-mebibyte", 1, "> CREATE_RECEIVE_STREAM 1 *524288\nreact",
         SHOULD_REFUSE, ("omnistreams.metadata-too-long",)),
    Case("OMNI-WS-1", "text-message", 0, "> message x0041 opcode=1\nreact", EITHER,
         options=WEBSOCKET),
)  # fmt: skip
