"""Cipher suites of TLS 1.2 and 1.3: names, and what opening their records takes."""

from __future__ import annotations

from typing import NamedTuple

TLS12, TLS13 = 0x0303, 0x0304
GCM, CHACHA, CCM, CCM_8 = "gcm", "chacha20", "ccm", "ccm8"


class Suite(NamedTuple):
    """An AEAD suite. `hash` is that of the key schedule, `cipher` one of the four kinds."""

    name: str
    version: int
    hash: str
    key_bytes: int
    cipher: str

    @property
    def tag_bytes(self) -> int:
        """Bytes of the tag at the end of a record."""
        return 8 if self.cipher == CCM_8 else 16

    @property
    def explicit_nonce(self) -> bool:
        """Whether each record carries 8 bytes of its nonce."""
        return self.version == TLS12 and self.cipher != CHACHA

    @property
    def record_overhead(self) -> int:
        """Bytes of a record of application data without padding that are not its content."""
        inner_type = 1 if self.version == TLS13 else 0
        return 5 + (8 if self.explicit_nonce else 0) + inner_type + self.tag_bytes


SUITES: dict[int, Suite] = {
    0x1301: Suite("TLS_AES_128_GCM_SHA256", TLS13, "sha256", 16, GCM),
    0x1302: Suite("TLS_AES_256_GCM_SHA384", TLS13, "sha384", 32, GCM),
    0x1303: Suite("TLS_CHACHA20_POLY1305_SHA256", TLS13, "sha256", 32, CHACHA),
    0x1304: Suite("TLS_AES_128_CCM_SHA256", TLS13, "sha256", 16, CCM),
    0x1305: Suite("TLS_AES_128_CCM_8_SHA256", TLS13, "sha256", 16, CCM_8),
}
# Suites of TLS 1.2: by key exchange, the codes of AES-128-GCM and AES-256-GCM.
_GCM_CODES = {
    "RSA": 0x009C,
    "DHE_RSA": 0x009E,
    "DH_RSA": 0x00A0,
    "DHE_DSS": 0x00A2,
    "DH_DSS": 0x00A4,
    "DH_anon": 0x00A6,
    "PSK": 0x00A8,
    "DHE_PSK": 0x00AA,
    "RSA_PSK": 0x00AC,
    "ECDHE_ECDSA": 0xC02B,
    "ECDH_ECDSA": 0xC02D,
    "ECDHE_RSA": 0xC02F,
    "ECDH_RSA": 0xC031,
    "ECDHE_PSK": 0xD001,
}
_CHACHA_CODES = {
    "ECDHE_RSA": 0xCCA8,
    "ECDHE_ECDSA": 0xCCA9,
    "DHE_RSA": 0xCCAA,
    "PSK": 0xCCAB,
    "ECDHE_PSK": 0xCCAC,
    "DHE_PSK": 0xCCAD,
    "RSA_PSK": 0xCCAE,
}
_CCM_CODES = {  # AES-128-CCM, AES-256-CCM, and both with a tag of 8 bytes
    "RSA": (0xC09C, 0xC09D, 0xC0A0, 0xC0A1),
    "DHE_RSA": (0xC09E, 0xC09F, 0xC0A2, 0xC0A3),
    "PSK": (0xC0A4, 0xC0A5, 0xC0A8, 0xC0A9),
    "DHE_PSK": (0xC0A6, 0xC0A7, 0xC0AA, 0xC0AB),
    "ECDHE_ECDSA": (0xC0AC, 0xC0AD, 0xC0AE, 0xC0AF),
}
for _exchange, _code in _GCM_CODES.items():
    _name = f"TLS_{_exchange}_WITH_AES"
    SUITES[_code] = Suite(f"{_name}_128_GCM_SHA256", TLS12, "sha256", 16, GCM)
    SUITES[_code + 1] = Suite(f"{_name}_256_GCM_SHA384", TLS12, "sha384", 32, GCM)
for _exchange, _code in _CHACHA_CODES.items():
    _name = f"TLS_{_exchange}_WITH_CHACHA20_POLY1305_SHA256"
    SUITES[_code] = Suite(_name, TLS12, "sha256", 32, CHACHA)
for _exchange, _codes in _CCM_CODES.items():
    for _number, _code in enumerate(_codes):
        _bits, _kind = (128, 256)[_number % 2], (CCM, CCM_8)[_number // 2]
        _name = f"TLS_{_exchange}_WITH_AES_{_bits}_CCM{'_8' if _kind == CCM_8 else ''}"
        SUITES[_code] = Suite(_name, TLS12, "sha256", _bits // 8, _kind)

# Suites without AEAD that are still met, so that the reason names them.
_OTHER_NAMES = {
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0033: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0x0039: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA",
    0x003C: "TLS_RSA_WITH_AES_128_CBC_SHA256",
    0x003D: "TLS_RSA_WITH_AES_256_CBC_SHA256",
    0x0067: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256",
    0x006B: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC023: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    0xC024: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
    0xC027: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    0xC028: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
}
_VERSIONS = {0x0300: "SSL 3.0", 0x0301: "1.0", 0x0302: "1.1", TLS12: "1.2", TLS13: "1.3"}


def version_text(version: int) -> str:
    """`1.3` for 0x0304."""
    return _VERSIONS.get(version, f"{version:#06x}")


def suite_name(code: int) -> str:
    """The name of a suite, or its number in hexadecimal."""
    suite = SUITES.get(code)
    return suite.name if suite is not None else _OTHER_NAMES.get(code, f"{code:#06x}")
