"""The exchange that proves a shared token, before the first byte of a protocol.

Three lines of ASCII, each ended by a line feed; numbers are bytes in hex:

    acceptor:  polymux-token 1 NONCE                  16 random bytes
    dialer:    polymux-token 1 NONCE PROOF            16 random bytes, and its proof
    acceptor:  polymux-token 1 ok PROOF               or: polymux-token 1 refused

A proof is HMAC-SHA-256, keyed with the token, of the side's name (`dialer` or `acceptor`) and both
nonces. The token itself is not sent, so that neither a recording nor a proxy that ends TLS contains
it, and a proof is of no use on another connection. After the third line both sides begin their
protocol, as on a new connection.
"""

import hmac
import re
from hashlib import sha256

PREFIX = b"polymux-token 1 "
NONCE_BYTES = 16
MIN_TOKEN_BYTES = 16
MAX_TOKEN_BYTES = 1024
MAX_LINE_BYTES = 160  # of a received line

_CHALLENGE = re.compile(rb"polymux-token 1 ([0-9a-f]{32})\n")
_PROOF = re.compile(rb"polymux-token 1 ([0-9a-f]{32}) ([0-9a-f]{64})\n")
_ACCEPTED = re.compile(rb"polymux-token 1 ok ([0-9a-f]{64})\n")
_REFUSED = PREFIX + b"refused\n"
# What each side sends, dialer first.
_SENT = (
    re.compile(_PROOF.pattern),
    re.compile(_CHALLENGE.pattern + rb"(?:" + _ACCEPTED.pattern + rb"|" + _REFUSED + rb")?"),
)


class SharedToken:
    """A token that the sides of a connection share. Its text is in no message and no `repr`.

    Args:
        token: 16 to 1,024 bytes; text is encoded as UTF-8. It should be random: proofs that were
            recorded allow tokens to be tried out.

    Raises:
        TypeError: It is neither text nor bytes.
        ValueError: It is too short or too long.
    """

    __slots__ = ("_key",)

    def __init__(self, token: object) -> None:
        if isinstance(token, str):
            token = token.encode()
        if not isinstance(token, bytes):
            raise TypeError(f"a token is text or bytes, not {type(token).__name__}")
        if not MIN_TOKEN_BYTES <= len(token) <= MAX_TOKEN_BYTES:
            raise ValueError(
                f"a token has {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} bytes, not {len(token)}: "
                "make one with `openssl rand -hex 32`"
            )
        self._key = token

    def __repr__(self) -> str:
        return "<polymux shared token>"

    def proof(self, side: bytes, acceptor_nonce: bytes, dialer_nonce: bytes) -> bytes:
        """Return what proves on one connection that a side knows the token, in hex."""
        text = PREFIX + side + b" " + acceptor_nonce + b" " + dialer_nonce
        return hmac.new(self._key, text, sha256).hexdigest().encode()


class TokenExchange:
    """One side of the exchange. Performs no I/O.

    Attributes:
        done: The token was proved: the protocol follows.
        failure: Why it was not; empty while that is open.
    """

    def __init__(self, token: SharedToken, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        self.done = False
        self.failure = ""
        self._token = token
        self._nonce = nonce.hex().encode()
        self._received = b""

    def initial_bytes(self) -> bytes:
        """Return what this side sends first, without waiting for the peer."""
        return b""

    def receive(self, data: bytes) -> bytes:
        """Process received bytes and return the reply to send.

        Bytes after the exchange are kept for `take_rest`, those of a peer that failed are not.
        """
        self._received += data
        reply = b""
        while not self.done and not self.failure:
            expected = PREFIX[: len(self._received)]
            end = self._received.find(b"\n", 0, MAX_LINE_BYTES)
            if not self._received.startswith(expected) or (
                end < 0 and len(self._received) >= MAX_LINE_BYTES
            ):
                self.failure = self._describe_other(self._received)
                self._received = b""
                reply += self._refusal()
            elif end < 0:
                break
            else:
                line, self._received = self._received[: end + 1], self._received[end + 1 :]
                reply += self._process_line(line)
        return reply

    def take_rest(self) -> bytes:
        """Return the bytes received after the exchange, once it is done."""
        rest, self._received = self._received, b""
        return rest

    def _process_line(self, line: bytes) -> bytes:
        raise NotImplementedError

    def _describe_other(self, received: bytes) -> str:
        """Say what it means that the peer sent something else."""
        raise NotImplementedError

    def _refusal(self) -> bytes:
        """Return what to send to a peer that failed."""
        return b""


class TokenAcceptor(TokenExchange):
    """The side that asks for the token."""

    def initial_bytes(self) -> bytes:
        return PREFIX + self._nonce + b"\n"

    def _process_line(self, line: bytes) -> bytes:
        found = _PROOF.fullmatch(line)
        if found is None:
            self.failure = self._describe_other(line)
            return self._refusal()
        expected = self._token.proof(b"dialer", self._nonce, found[1])
        if not hmac.compare_digest(expected, found[2]):
            self.failure = "it presented another token"
            return self._refusal()
        self.done = True
        return PREFIX + b"ok " + self._token.proof(b"acceptor", self._nonce, found[1]) + b"\n"

    def _describe_other(self, received: bytes) -> str:
        return "it presented no token"

    def _refusal(self) -> bytes:
        return _REFUSED


class TokenDialer(TokenExchange):
    """The side that presents the token, and learns whether the other one has it too."""

    def __init__(self, token: SharedToken, nonce: bytes) -> None:
        super().__init__(token, nonce)
        self._acceptor_nonce = b""

    def _process_line(self, line: bytes) -> bytes:
        if not self._acceptor_nonce:
            found = _CHALLENGE.fullmatch(line)
            if found is None:
                self.failure = self._describe_other(line)
                return b""
            self._acceptor_nonce = found[1]
            proof = self._token.proof(b"dialer", self._acceptor_nonce, self._nonce)
            return PREFIX + self._nonce + b" " + proof + b"\n"
        if line == _REFUSED:
            self.failure = "the server refused the token"
            return b""
        found = _ACCEPTED.fullmatch(line)
        expected = self._token.proof(b"acceptor", self._acceptor_nonce, self._nonce)
        if found is None or not hmac.compare_digest(expected, found[1]):
            self.failure = "the server does not know the token: it may be another server"
            return b""
        self.done = True
        return b""

    def _describe_other(self, received: bytes) -> str:
        return "the server asks for no token, or not for one of this kind"


def token_exchange_size(head: bytes, side: int) -> int:
    """Return how many bytes of a direction belong to the exchange; 0 if it has none.

    Args:
        head: The first bytes that a side sent.
        side: That side, DIALER or ACCEPTOR.
    """
    found = _SENT[side].match(head)
    return found.end() if found is not None else 0


def without_proofs(sent: bytes) -> bytes:
    """Return what a side sent with zeros for its proof, by which tokens could be tried out."""
    return re.sub(rb"(polymux-token 1 (?:[0-9a-f]{32}|ok) )([0-9a-f]{1,64})", _with_zeros, sent)


def _with_zeros(proof: re.Match[bytes]) -> bytes:
    return proof[1] + b"0" * len(proof[2])


def is_token_exchange_open(head: bytes) -> bool:
    """Return whether an acceptor's bytes end within the exchange, so that more of it may follow.

    Args:
        head: The first bytes that the acceptor sent; none is no exchange.
    """
    if not head.startswith(PREFIX[: len(head)]) or not head:
        return False
    return head.count(b"\n") < 2 and len(head) < 2 * MAX_LINE_BYTES
