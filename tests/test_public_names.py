"""What `polymux` exports."""

import polymux


def test_the_public_names_are_these() -> None:
    assert sorted(polymux.__all__) == [
        "BadProtocolString", "BadUrl", "Call", "CaptureError", "Endpoint", "Exchange",
        "ItemReceiver", "ItemSender", "LimitExceeded", "Limits", "LocalProtocolError",
        "MessageReceiver", "MessageSender", "MinmuxSession", "MissingExtra", "NerdbankSession",
        "NoFreeIds", "Observer", "OmnistreamsSession", "PeerIdentity", "PeerViolation", "Pending",
        "PolymuxError", "Server", "Session", "SessionClosed", "SessionLimit", "Side", "Stream",
        "StreamAborted", "StreamEnded", "StreamuxSession", "Timeouts", "Unreachable", "Unsupported",
        "Vantage", "YamuxSession", "as_asyncio_streams", "connect", "minmux", "mplex", "nerdbank",
        "omnistreams", "pipe", "protocol", "serve", "streamux", "yamux",
    ]  # fmt: skip
    for name in polymux.__all__:
        assert getattr(polymux, name) is not None
