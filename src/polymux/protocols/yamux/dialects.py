# mypyc: compiled
"""Which of the two dialects a yamux session speaks, by what only one of them does.

HashiCorp's implementation and those of libp2p (Go, JavaScript, Rust, Python, Nim) have the same
frames. They differ in what they send, and each sign here is sent by implementations of one dialect
only. A session may show none, and two peers of different dialects may show signs of both.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.side import DIALER
from polymux.core.streams import NOT_YET

HASHICORP: Final = "hashicorp"
LIBP2P: Final = "libp2p"
MIXED: Final = "hashicorp and libp2p"

MAX_LIBP2P_PAYLOAD: Final[i64] = 65536  # no implementation of libp2p sends more in a frame
FIRST_PING_NS: Final[i64] = 5_000_000_000  # a keepalive comes later: HashiCorp's after 30 s
MAX_SPEC_CODE: Final = 2  # of a Go Away; libp2p has more


class DialectSigns:
    """The first sign of each dialect in one session.

    Args:
        named: the dialect if it was given, else "".
        negotiated: the session was agreed on by multistream-select, which libp2p uses.
    """

    def __init__(self, named: str, negotiated: bool) -> None:
        self.named = named
        self.hashicorp: str = ""
        self.libp2p: str = "negotiated by multistream-select" if negotiated else ""
        # When the first frame of a side was seen, if it was a ping:
        self.dialer_ping_at: i64 = NOT_YET
        self.acceptor_ping_at: i64 = NOT_YET
        self.left0: bool = False  # the dialer has sent Go Away with code 0
        self.left1: bool = False
        self.any_left: bool = False

    def name(self) -> str:
        """The dialect as it was given or shown; "" if nothing shows it."""
        if self.named:
            return self.named
        if self.hashicorp and self.libp2p:
            return MIXED
        return HASHICORP if self.hashicorp else LIBP2P if self.libp2p else ""

    def evidence(self) -> str:
        """What shows the dialect, for the user; "" if nothing does."""
        signs = []
        if self.hashicorp:
            signs.append(f"{self.hashicorp} as HashiCorp's do")
        if self.libp2p:
            signs.append(f"{self.libp2p} as libp2p's do")
        return "; ".join(signs)

    def on_content(self, sender: i64, size: i64) -> None:
        """A side has sent `size` bytes of content in a frame."""
        if self.hashicorp:
            return
        if size > MAX_LIBP2P_PAYLOAD:
            self.hashicorp = f"the {side_name(sender)} sends {size} bytes in a frame"
        elif size > 0 and (self.left0 if sender == DIALER else self.left1):
            self.hashicorp = f"the {side_name(sender)} goes on after its Go Away"

    def on_ping(self, sender: i64, frame_index: i64, timestamp: i64) -> None:
        """A ping was sent."""
        if frame_index == 0:
            if sender == DIALER:
                self.dialer_ping_at = timestamp
            else:
                self.acceptor_ping_at = timestamp

    def on_open(self, sender: i64, timestamp: i64) -> None:
        """A stream was opened."""
        at = self.dialer_ping_at if sender == DIALER else self.acceptor_ping_at
        if at != NOT_YET and timestamp - at < FIRST_PING_NS and not self.libp2p:
            self.libp2p = f"the {side_name(sender)} pings before anything else"

    def on_reset(self, sender: i64, code: int) -> None:
        """A stream was reset with this length."""
        if code > 0 and not self.libp2p:
            self.libp2p = f"the {side_name(sender)} resets with code {code}"

    def on_go_away(self, sender: i64, code: int) -> None:
        """A Go Away was sent."""
        if code > MAX_SPEC_CODE and not self.libp2p:
            self.libp2p = f"the {side_name(sender)} goes away with code {code}"
        if code == 0:
            self.any_left = True
            if sender == DIALER:
                self.left0 = True
            else:
                self.left1 = True

    def save(self) -> list[object]:
        """The state as plain data, for `load`."""
        return [
            self.hashicorp,
            self.libp2p,
            int(self.dialer_ping_at),
            int(self.acceptor_ping_at),
            self.left0,
            self.left1,
        ]

    def load(self, saved: list[object]) -> None:
        """Restore what `save` returned."""
        self.hashicorp = str(saved[0])
        self.libp2p = str(saved[1])
        first, second = saved[2], saved[3]
        self.dialer_ping_at = first if isinstance(first, int) else NOT_YET
        self.acceptor_ping_at = second if isinstance(second, int) else NOT_YET
        self.left0 = bool(saved[4])
        self.left1 = bool(saved[5])
        self.any_left = self.left0 or self.left1


def side_name(side: i64) -> str:
    """`dialer` or `acceptor`."""
    return "dialer" if side == DIALER else "acceptor"
