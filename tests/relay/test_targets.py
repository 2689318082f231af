"""Which targets a tunnel server allows, and the arguments of -L, -R and -D."""

import asyncio
from typing import Any

import pytest

from polymux.relay.tunnel.forwards import LocalForward, parse_dynamic, parse_local, parse_remote
from polymux.relay.tunnel.requests import BadRequest, parse_answer, parse_request
from polymux.relay.tunnel.server import AllowedBinds
from polymux.relay.tunnel.socks import BadSocks, SocksNegotiation
from polymux.relay.tunnel.targets import (
    FAILED,
    AllowedTargets,
    BadForward,
    Target,
    TargetRefused,
    parse_target,
)


@pytest.mark.parametrize(
    ("entry", "target", "allowed"),
    [
        ("192.0.2.7:443", "192.0.2.7:443", True),
        ("192.0.2.7:443", "192.0.2.7:80", False),
        ("192.0.2.0/24:80,8000-8100", "192.0.2.9:8050", True),
        ("192.0.2.0/24:80,8000-8100", "192.0.3.9:8050", False),
        ("192.0.2.0/24:*", "192.0.2.9:1", True),
        ("[2001:db8::/32]:443", "[2001:db8::1]:443", True),
        ("[2001:db8::/32]:443", "[2001:db9::1]:443", False),
        ("127.0.0.0/8:22", "[::ffff:127.0.0.1]:22", True),
        ("10.0.0.0/8:22", "[::ffff:127.0.0.1]:22", False),
        ("example.com:22", "192.0.2.1:22", False),
    ],
)
async def test_an_address_is_allowed_if_an_entry_has_it(
    entry: str, target: str, allowed: bool
) -> None:
    targets = AllowedTargets([entry])
    if allowed:
        assert len(await targets.resolve(parse_target(target))) == 1
    else:
        with pytest.raises(TargetRefused, match="is not allowed"):
            await targets.resolve(parse_target(target))


@pytest.mark.parametrize(
    ("entry", "resolved", "allowed"),
    [
        ("10.0.0.0/8:80", ["127.0.0.1"], []),  # the name points elsewhere than the network
        ("10.0.0.0/8:80", ["127.0.0.1", "10.1.2.3"], ["10.1.2.3"]),
        ("Name.Example.:80", ["127.0.0.1"], ["127.0.0.1"]),
        ("other.example:80", ["127.0.0.1"], []),
    ],
)
async def test_a_name_is_resolved_once_and_only_allowed_addresses_are_connected_to(
    entry: str, resolved: list[str], allowed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        return [(2, 1, 6, "", (address, port)) for address in resolved]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    targets = AllowedTargets([entry])
    if allowed:
        assert await targets.resolve(Target("name.example", 80)) == allowed
    else:
        with pytest.raises(TargetRefused, match=r"name\.example:80 is not allowed"):
            await targets.resolve(Target("name.example", 80))
    assert len(asked) == (entry != "other.example:80")  # none for what no entry can allow


@pytest.mark.parametrize(
    "entry",
    ["192.0.2.7", "192.0.2.0/33:80", "*:80", "host:0", "host:9-8", "host:x", "2001:db8::1:80"],
)
def test_a_malformed_entry_is_an_error_that_names_it(entry: str) -> None:
    with pytest.raises(BadForward, match=r"write|port|range|appear|expected|network"):
        AllowedTargets([entry])


def test_forwards_are_written_as_for_ssh_and_bind_loopback_by_default() -> None:
    assert parse_local("8080:db:80") == LocalForward("127.0.0.1", 8080, Target("db", 80))
    assert parse_local("0.0.0.0:8080:db:80").bind == "0.0.0.0"
    assert parse_local("*:8080:db:80").bind == "0.0.0.0"
    assert parse_local("[::1]:8080:[2001:db8::1]:80") == LocalForward(
        "::1", 8080, Target("2001:db8::1", 80)
    )
    assert parse_dynamic("1080") == LocalForward("127.0.0.1", 1080, None)
    assert parse_dynamic("[::1]:1080").bind == "::1"
    for text in ("8080", "8080:db", "x:db:80", "8080:db:0", "8080:db:99999", "1:2:3:4:5"):
        with pytest.raises(BadForward):
            parse_local(text)


def test_a_server_listens_only_where_an_entry_says() -> None:
    binds = AllowedBinds(["8000-8100", "0.0.0.0:9000"])
    assert binds.allows(Target("127.0.0.1", 8080))
    assert binds.allows(Target("0.0.0.0", 9000))
    assert not binds.allows(Target("0.0.0.0", 8080))
    assert not binds.allows(Target("127.0.0.1", 0))
    assert AllowedBinds(["*"]).allows(Target("127.0.0.1", 0))
    assert not AllowedBinds([]).allows(Target("127.0.0.1", 8080))


def test_a_free_port_needs_an_entry_for_every_port() -> None:
    assert not AllowedBinds(["1-80,65535"]).allows(Target("127.0.0.1", 0))
    assert AllowedBinds(["80,1-65535"]).allows(Target("127.0.0.1", 0))


def test_a_star_as_bind_is_every_address_for_the_server_as_for_the_client() -> None:
    asked = parse_remote("*:8080:db:80").listening
    assert AllowedBinds(["*:8080"]).allows(asked)
    assert not AllowedBinds(["*:8080"]).allows(Target("127.0.0.1", 8080))


@pytest.mark.parametrize("code", ["-1", "0", "9", "999"])
def test_a_refusal_with_a_code_that_socks_has_not_is_a_plain_failure(code: str) -> None:
    with pytest.raises(TargetRefused, match="because") as caught:
        parse_answer(f"refused {code} because\n".encode())
    assert caught.value.code == FAILED


@pytest.mark.parametrize("host", ["\x1b[2J", "a\rb", "a\0b", "a\tb", "", "a" * 254])
def test_what_is_no_host_is_neither_a_request_nor_an_answer(host: str) -> None:
    for parse, line in (
        (parse_request, f"polymux-tunnel/1 connect {host}:80\n"),
        (parse_answer, f"ok {host}:80\n"),
    ):
        with pytest.raises(BadRequest) as caught:
            parse(line.encode())
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("target", ["db_1.example:80", "[fe80::1%eth0]:80", f"{'a' * 253}:80"])
def test_a_request_names_a_host_or_an_address_with_its_zone(target: str) -> None:
    request = parse_request(f"polymux-tunnel/1 connect {target}\n".encode())
    assert str(request.target) == target


@pytest.mark.parametrize(
    ("request_bytes", "target"),
    [
        (b"\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb", Target("192.0.2.7", 443)),
        (b"\x05\x01\x00\x03\x0bexample.com\x00\x50", Target("example.com", 80)),
        (b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50", Target("::1", 80)),
    ],
)
def test_a_socks_request_is_read_byte_by_byte_too(request_bytes: bytes, target: Target) -> None:
    whole = b"\x05\x02\x00\x02" + request_bytes + b"first bytes"
    for step in (1, len(whole)):
        negotiation = SocksNegotiation()
        answers = b""
        rest = b""
        for start in range(0, len(whole), step):
            if negotiation.target is None:
                answers += negotiation.receive(whole[start : start + step])
                rest += negotiation.rest
            else:
                rest += whole[start : start + step]
        assert (negotiation.target, answers, rest) == (target, b"\x05\x00", b"first bytes")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1",
        b"\x05\x01\x02",
        b"\x05\x01\x00\x05\x02\x00\x01\xc0\x00\x02\x07\x01\xbb",
        b"\x05\x01\x00\x05\x01\x00\x07\xc0\x00\x02\x07\x01\xbb",
        b"\x05\x01\x00\x05\x01\x00\x03\x04a\nb\x00\x01\xbb",
        b"\x05\x01\x00\x05\x01\x00\x01\xc0\x00\x02\x07\x00\x00",
    ],
)
def test_what_is_no_socks_request_for_a_connection_is_refused(data: bytes) -> None:
    with pytest.raises(BadSocks):
        SocksNegotiation().receive(data)
