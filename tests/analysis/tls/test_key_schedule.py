"""The key schedules against the published vectors of RFC 8448 and of the TLS 1.2 PRF."""

from __future__ import annotations

from polymux.analysis.tls.key_schedule import key_block, prf, traffic_keys, updated_secret
from polymux.analysis.tls.suites import SUITES


def test_traffic_keys_of_rfc_8448() -> None:
    # Section 3, "{server} derive write traffic keys for handshake data" and "for application data".
    suite = SUITES[0x1301]
    secret = bytes.fromhex("b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38")
    keys = traffic_keys(secret, suite)
    assert keys.key.hex() == "3fce516009c21727d0f2e4e86ee403bc"
    assert keys.iv.hex() == "5d313eb2671276ee13000b30"
    secret = bytes.fromhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
    keys = traffic_keys(secret, suite)
    assert keys.key.hex() == "9f02283b6c9c07efc26bb9f2ac92e356"
    assert keys.iv.hex() == "cf782b88dd83549aadf1e984"


def test_an_updated_secret_has_the_size_of_the_hash() -> None:
    for code, size in ((0x1301, 32), (0x1302, 48)):
        suite = SUITES[code]
        first = updated_secret(bytes(size), suite)
        assert len(first) == size
        assert updated_secret(first, suite) != first


def test_the_prf_of_tls_1_2() -> None:
    # The vector for SHA-256 that the TLS working group published on its list in 2009.
    secret = bytes.fromhex("9bbe436ba940f017b17652849a71db35")
    seed = bytes.fromhex("a0ba9f936cda311827a6f796ffd5198c")
    expected = (
        "e3f229ba727be17b8d122620557cd453c2aab21d07c3d495329b52d4e61edb5a"
        "6b301791e90d35c9c9a46b4e14baf9af0fa022f7077def17abfd3797c0564bab"
        "4fbc91666e9def9b97fce34f796789baa48082d122ee42c5a72e5a5110fff701"
        "87347b66"
    )
    assert prf(secret, b"test label", seed, 100, "sha256").hex() == expected


def test_the_key_block_gives_each_side_its_own_keys() -> None:
    for code in (0xC02F, 0xC030, 0xCCA8):
        suite = SUITES[code]
        client, server = key_block(bytes(48), b"c" * 32, b"s" * 32, suite)
        assert len(client.key) == len(server.key) == suite.key_bytes
        assert len(client.iv) == (4 if suite.explicit_nonce else 12)
        assert len({client.key, server.key}) == 2
