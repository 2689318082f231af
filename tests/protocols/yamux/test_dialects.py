"""The two dialects are told apart by what only one of them sends, and the evidence says by what."""

import pytest
from tests.attacks import raw_frames as words

from polymux.core.observer import Observer
from polymux.protocols.registry import create

UPDATE, DATA = words.YAMUX_UPDATE, words.YAMUX_DATA
OPEN = words.yamux(UPDATE, words.SYN, 1)
ACCEPT = words.yamux(UPDATE, words.ACK, 1)
PING = words.yamux(words.YAMUX_PING, words.SYN, 0, 9)
SECOND = 10**9

LARGE = words.yamux(DATA, 0, 1, 0, bytes(65537))
CASES = [
    ([(0, OPEN, 0), (1, ACCEPT, 0), (0, LARGE, 0)], "hashicorp", "the dialer sends 65537 bytes"),
    ([(1, words.yamux(words.YAMUX_GO_AWAY, 0, 0), 0), (0, OPEN, 0), (1, ACCEPT, 0),
      (1, words.yamux(DATA, 0, 1, 0, b"x"), 0)], "hashicorp", "the acceptor goes on after"),
    ([(0, OPEN, 0), (1, words.yamux(UPDATE, words.RST, 1, 7), 0)], "libp2p",
     "the acceptor resets with code 7"),
    ([(1, words.yamux(words.YAMUX_GO_AWAY, 0, 0, 4101), 0)], "libp2p", "goes away with code 4101"),
    ([(0, PING, 0), (0, OPEN, SECOND)], "libp2p", "the dialer pings before anything else"),
    ([(0, PING, 0), (0, OPEN, 30 * SECOND)], "", ""),
    ([(0, OPEN, 0), (1, ACCEPT, 0), (0, words.yamux(DATA, 0, 1, 0, bytes(65536)), 0)], "", ""),
    ([(0, PING, 0), (0, OPEN, 0), (0, LARGE, 0)], "hashicorp and libp2p", "; "),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "dialect", "evidence"), CASES)
def test_the_dialect_is_told_by_what_only_one_of_them_sends(
    steps: list[tuple[int, bytes, int]], dialect: str, evidence: str
) -> None:
    observer = Observer(create("yamux"))
    for number, (side, data, at) in enumerate(steps):
        if number == 1:  # what was seen survives a snapshot
            saved = observer.snapshot()
            observer = Observer(create("yamux"))
            observer.restore(saved)
        observer.feed(side, data, at)
    assert observer.protocol.dialect() == dialect
    assert evidence in observer.protocol.dialect_evidence()
    assert bool(evidence) == bool(observer.protocol.dialect_evidence())


def test_a_named_dialect_and_multistream_select_need_no_sign() -> None:
    assert create("yamux:dialect=hashicorp").dialect() == "hashicorp"
    negotiated = create("yamux:preamble=multistream")
    assert negotiated.dialect() == "libp2p"
    assert negotiated.dialect_evidence() == "negotiated by multistream-select as libp2p's do"
