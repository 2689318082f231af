"""The exchange that proves a shared token, without I/O."""

from __future__ import annotations

import pytest

from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.token_exchange import (
    MAX_LINE_BYTES,
    SharedToken,
    TokenAcceptor,
    TokenDialer,
    is_token_exchange_open,
    token_exchange_size,
)

TOKEN = SharedToken("correct horse battery")


def exchanged(dialer: TokenDialer, acceptor: TokenAcceptor, piece: int) -> tuple[bytes, bytes]:
    """Run both sides in pieces of so many bytes; return what dialer and acceptor sent."""
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    sides = (dialer, acceptor)
    waiting = [(ACCEPTOR, acceptor.initial_bytes())]
    while waiting:
        sender, data = waiting.pop(0)
        sent[sender].append(data)
        for start in range(0, len(data), piece):
            reply = sides[1 - sender].receive(data[start : start + piece])
            if reply:
                waiting.append((1 - sender, reply))
    return b"".join(sent[0]), b"".join(sent[1])


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_sides_with_the_same_token_prove_it_to_each_other(piece: int) -> None:
    dialer, acceptor = TokenDialer(TOKEN, b"d" * 16), TokenAcceptor(TOKEN, b"a" * 16)
    by_dialer, by_acceptor = exchanged(dialer, acceptor, piece)
    assert dialer.done
    assert acceptor.done
    assert b"correct horse" not in by_dialer + by_acceptor
    assert token_exchange_size(by_dialer + b"frames", DIALER) == len(by_dialer)
    assert token_exchange_size(by_acceptor + b"frames", ACCEPTOR) == len(by_acceptor)


def test_what_follows_the_exchange_in_the_same_chunk_is_kept() -> None:
    dialer, acceptor = TokenDialer(TOKEN, b"d" * 16), TokenAcceptor(TOKEN, b"a" * 16)
    proof = dialer.receive(acceptor.initial_bytes())
    answer = acceptor.receive(proof + b"first\nframes")
    dialer.receive(answer + b"reply")
    assert (acceptor.take_rest(), dialer.take_rest()) == (b"first\nframes", b"reply")


def test_another_token_is_refused_and_both_sides_know_it() -> None:
    dialer = TokenDialer(SharedToken("another token, too"), b"d" * 16)
    acceptor = TokenAcceptor(TOKEN, b"a" * 16)
    _, by_acceptor = exchanged(dialer, acceptor, 1000)
    assert not acceptor.done
    assert acceptor.failure == "it presented another token"
    assert dialer.failure == "the server refused the token"
    assert token_exchange_size(by_acceptor, ACCEPTOR) == len(by_acceptor)


def test_a_proof_of_one_connection_is_refused_on_another() -> None:
    first = TokenAcceptor(TOKEN, b"a" * 16)
    recorded = TokenDialer(TOKEN, b"d" * 16).receive(first.initial_bytes())
    second = TokenAcceptor(TOKEN, b"b" * 16)
    second.receive(recorded)
    assert second.failure


def test_the_proof_of_a_dialer_cannot_be_reflected_as_that_of_the_server() -> None:
    dialer = TokenDialer(TOKEN, b"d" * 16)
    acceptor = TokenAcceptor(TOKEN, b"a" * 16)
    proof = dialer.receive(acceptor.initial_bytes()).split()[-1]
    dialer.receive(b"polymux-token 1 ok " + proof + b"\n")
    assert dialer.failure.startswith("the server does not know the token")


@pytest.mark.parametrize(
    "data",
    [b"\x00", b"GET / HTTP/1.1\r\n", b"polymux-token 1 " + b"a" * MAX_LINE_BYTES,
     b"polymux-token 1 ok\n", b"polymux-token 2 x\n"],
)  # fmt: skip
def test_anything_else_is_refused_at_once_and_nothing_is_kept_of_it(data: bytes) -> None:
    acceptor = TokenAcceptor(TOKEN, b"a" * 16)
    assert acceptor.receive(data) == b"polymux-token 1 refused\n"
    assert acceptor.failure == "it presented no token"
    assert acceptor.take_rest() == b""


def test_a_server_that_begins_otherwise_gets_no_proof() -> None:
    dialer = TokenDialer(TOKEN, b"d" * 16)
    assert dialer.receive(b"\x93\x00") == b""
    assert "asks for no token" in dialer.failure


def test_a_token_is_in_no_repr_and_in_no_message() -> None:
    assert "horse" not in repr(TOKEN)
    with pytest.raises(ValueError, match="16 to 1024 bytes, not 6") as problem:
        SharedToken("secret")
    assert "secret" not in str(problem.value)
    with pytest.raises(TypeError, match="text or bytes"):
        SharedToken(12345)


def test_a_reader_of_live_bytes_knows_when_the_exchange_goes_on() -> None:
    acceptor = TokenAcceptor(TOKEN, b"a" * 16)
    challenge = acceptor.initial_bytes()
    answer = acceptor.receive(TokenDialer(TOKEN, b"d" * 16).receive(challenge))
    assert all(
        is_token_exchange_open((challenge + answer)[:size])
        for size in range(1, len(challenge + answer))
    )
    assert not is_token_exchange_open(challenge + answer)
    assert not is_token_exchange_open(b"")
    assert not is_token_exchange_open(b"\x00\x01")
