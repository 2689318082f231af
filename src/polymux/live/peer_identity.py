"""The identity of a peer, by its certificate, and which peers a server accepts."""

import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from polymux.live.session.socket_options import transport_info
from polymux.live.transport import ConnectionInfo
from polymux.live.urls import Address
from polymux.text.sanitize import escape_hidden

log = logging.getLogger("polymux.aio")

MAX_TEXT_CHARS = 300  # of an identity in a log line or a capture
SHORT_NAMES = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
}
NETWORK_NAMES = ("DNS", "IP Address", "URI", "email")  # kinds of alternative names that are kept


@dataclass(frozen=True)
class PeerIdentity:
    """The names in a peer's certificate, which was verified.

    Attributes:
        subject: The subject, such as `CN=alice,O=Example`.
        common_name: Its common name; empty if it has none.
        names: The alternative names: host names, addresses, e-mail addresses and URIs.
    """

    subject: str
    common_name: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        text = ", ".join([self.subject or "no subject", *self.names])
        return escape_hidden(text, MAX_TEXT_CHARS)


def identity_of(transport: ConnectionInfo | None) -> PeerIdentity | None:
    """Return the identity of the peer; None without TLS, or if its certificate was not verified."""
    tls: Any = transport_info(transport, "ssl_object")
    certificate = tls.getpeercert() if tls is not None else None
    if not certificate:  # an empty one was not verified
        return None
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [
        value for kind, value in certificate.get("subjectAltName", ()) if kind in NETWORK_NAMES
    ]
    return PeerIdentity(
        ",".join(f"{SHORT_NAMES.get(name, name)}={value}" for name, value in pairs),
        next((value for name, value in pairs if name == "commonName"), ""),
        tuple(names),
    )


class AllowedPeers:
    """The peers that a server accepts: by a name in their certificate, or by their address.

    A peer is accepted if any entry matches. Names are compared as they are, without wildcards; they
    match nothing without TLS and a verified client certificate.

    Args:
        entries: Names (the common name or an alternative name), addresses, and networks such as
            `192.0.2.0/24`; None accepts all.

    Raises:
        ValueError: An entry is empty, or a network is malformed.
        TypeError: `entries` is a str.
    """

    def __init__(self, entries: Iterable[str] | None) -> None:
        if isinstance(entries, str):
            raise TypeError(f"allow is a list of names and networks, not the str {entries!r}")
        self.accepts_all = entries is None
        self.names: set[str] = set()
        self.networks: list[IPv4Network | IPv6Network] = []
        for entry in entries or ():
            if not entry.strip():
                raise ValueError("an empty name is no entry of an allow list")
            try:
                self.networks.append(ip_network(entry))
            except ValueError as problem:
                address = entry.partition("/")[0]
                if entry.count("/") == 1 and _is_address(address):
                    raise ValueError(f"{entry!r} is no network: {problem}") from None
                self.names.add(entry)

    @property
    def needs_certificates(self) -> bool:
        """Whether entries can be matched by a certificate only."""
        return bool(self.names)

    def refusal(self, transport: ConnectionInfo | None) -> str:
        """Return why the peer at this transport is refused; empty if it is accepted."""
        if self.accepts_all:
            return ""
        identity = identity_of(transport)
        if identity is not None and self.names & {identity.common_name, *identity.names}:
            return ""
        peer = transport_info(transport, "peername")
        if isinstance(peer, tuple) and _is_address(str(peer[0])):
            address = ip_address(str(peer[0]).partition("%")[0])
            if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            if any(address in network for network in self.networks):
                return ""
        shown = str(identity) if identity is not None else "a peer without a verified certificate"
        return f"{shown} is not on the list of allowed clients"


def warn_if_open_to_all(
    address: Address,
    tls: ssl.SSLContext | None,
    allowed: AllowedPeers,
    asks_for_token: bool = False,
) -> None:
    """Log a warning if a server accepts connections of everyone beyond this machine."""
    verifies = tls is not None and tls.verify_mode is ssl.CERT_REQUIRED
    if verifies or asks_for_token or not allowed.accepts_all or is_local(address):
        return
    log.warning(
        "%s accepts every client that can reach it: ask for client certificates or a token, or "
        "list the clients that may connect (0.0.0.0/0 and ::/0 for all)",
        address,
    )


def is_local(address: Address) -> bool:
    """Return whether only this machine can reach an address: Unix sockets, loopback, stdio."""
    if address.scheme in ("unix", "stdio"):
        return True
    host = address.host
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
