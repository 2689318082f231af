# mypyc: compiled
"""The secrets of key logs in compact form, and the parser of key log lines (RFC 9850).

A line is `LABEL client_random secret` in hexadecimal. Writers append at the same time, so lines are
in any order, may be repeated, and the last may be incomplete. Lines with other labels, comments and
malformed lines are skipped; the latter are counted.

A million sessions fit into memory: an entry has 82 bytes, and the index 16.
"""

from binascii import unhexlify
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

# Labels, as stored in an entry.
MASTER_SECRET: Final = 1
CLIENT_HANDSHAKE: Final = 2
SERVER_HANDSHAKE: Final = 3
CLIENT_TRAFFIC: Final = 4
SERVER_TRAFFIC: Final = 5
CLIENT_EARLY: Final = 6
LABELS: Final = {
    b"CLIENT_RANDOM": MASTER_SECRET,
    b"CLIENT_HANDSHAKE_TRAFFIC_SECRET": CLIENT_HANDSHAKE,
    b"SERVER_HANDSHAKE_TRAFFIC_SECRET": SERVER_HANDSHAKE,
    b"CLIENT_TRAFFIC_SECRET_0": CLIENT_TRAFFIC,
    b"SERVER_TRAFFIC_SECRET_0": SERVER_TRAFFIC,
    b"CLIENT_EARLY_TRAFFIC_SECRET": CLIENT_EARLY,
}
LABEL_NAMES: Final = {number: name for name, number in LABELS.items()}
# Labels of secrets that no record is opened with.
IGNORED_LABELS: Final = {
    b"EXPORTER_SECRET",
    b"EARLY_EXPORTER_MASTER_SECRET",
    b"EARLY_EXPORTER_SECRET",
    b"ECH_SECRET",
    b"ECH_CONFIG",
    b"RSA",
    b"SERVER_EARLY_TRAFFIC_SECRET",
}
RANDOM_BYTES: Final = 32
MAX_SECRET_BYTES: Final[i64] = 48
MIN_SECRET_BYTES: Final[i64] = 32
ENTRY_BYTES: Final[i64] = 82  # random, label, length, secret padded to 48 bytes
MAX_LINE_BYTES: Final[i64] = 512  # of a line that can be valid
MAX_SECRETS: Final = 4_000_000


class TooManySecrets(Exception):
    """More secrets than `MAX_SECRETS`."""


class SecretTable:
    """Secrets by client random and label. The newest of several with the same label is kept.

    `entries` is all its data; a table with the same bytes is equal.
    """

    def __init__(self, entries: bytes = b"") -> None:
        self.entries: bytearray = bytearray(entries)
        self.count: i64 = i64(len(entries)) // ENTRY_BYTES
        self.slots: vec[i64] = vec[i64]([0])
        self.slot_mask: i64 = 0
        self.bad_lines = 0
        self.first_bad_line = 0  # its number from 1 on in the text added last; 0: none
        self.resize_index()

    def resize_index(self) -> None:
        """Make an index with room for twice the entries, and enter all of them."""
        size: i64 = 1024
        while size < self.count * 2:
            size *= 2
        self.slots = vec[i64]([0] * (size * 2))
        self.slot_mask = size * 2 - 1
        for number in range(self.count):
            start = i64(number) * ENTRY_BYTES
            key = bytes(self.entries[start : start + RANDOM_BYTES])
            slot = i64(hash(key) & 0x3FFFFFFFFFFFFFFF) & self.slot_mask
            while self.slots[slot] != 0:
                slot = (slot + 1) & self.slot_mask
            self.slots[slot] = i64(number) + 1

    def add(self, random: bytes, label: int, secret: bytes) -> None:
        """Add a secret of 32 to 48 bytes, or replace the one with the same random and label."""
        slot = i64(hash(random) & 0x3FFFFFFFFFFFFFFF) & self.slot_mask
        entries = self.entries
        length = len(secret)
        while self.slots[slot] != 0:
            start = (self.slots[slot] - 1) * ENTRY_BYTES
            if entries[start + 32] == label and entries[start : start + RANDOM_BYTES] == random:
                entries[start + 33] = length
                entries[start + 34 : start + 34 + length] = secret
                return
            slot = (slot + 1) & self.slot_mask
        if self.count >= MAX_SECRETS:
            raise TooManySecrets
        self.count += 1
        self.slots[slot] = self.count
        entries += random
        entries.append(label)
        entries.append(length)
        entries += secret
        entries += bytes(MAX_SECRET_BYTES - length)
        if self.count * 2 > self.slot_mask:
            self.resize_index()

    def find(self, random: bytes) -> dict[int, bytes]:
        """The secrets of one session by label; empty if there are none."""
        found: dict[int, bytes] = {}
        slot = i64(hash(random) & 0x3FFFFFFFFFFFFFFF) & self.slot_mask
        entries = self.entries
        while self.slots[slot] != 0:
            start = (self.slots[slot] - 1) * ENTRY_BYTES
            if entries[start : start + RANDOM_BYTES] == random:
                length = entries[start + 33]
                found[entries[start + 32]] = bytes(entries[start + 34 : start + 34 + length])
            slot = (slot + 1) & self.slot_mask
        return found

    def all(self) -> list[tuple[bytes, int, bytes]]:
        """All secrets: client random, label, secret."""
        entries = self.entries
        found: list[tuple[bytes, int, bytes]] = []
        for number in range(self.count):
            start = i64(number) * ENTRY_BYTES
            length = entries[start + 33]
            found.append(
                (
                    bytes(entries[start : start + RANDOM_BYTES]),
                    entries[start + 32],
                    bytes(entries[start + 34 : start + 34 + length]),
                )
            )
        return found

    def add_lines(self, lines: list[bytes], first_number: int) -> int:
        """Add the secrets of these lines; return how many were key log lines, used or not.

        `first_number` is the number of the first line in its file.
        """
        known = 0
        for number, line in enumerate(lines):
            if len(line) > MAX_LINE_BYTES:
                self.record_bad_line(first_number + number)
                continue
            words = line.split()
            if len(words) == 0 or words[0].startswith(b"#"):
                continue
            label = LABELS.get(words[0], 0)
            if label == 0:
                if words[0] in IGNORED_LABELS:
                    known += 1
                else:
                    self.record_bad_line(first_number + number)
                continue
            if len(words) != 3 or not self.add_words(label, words[1], words[2]):
                self.record_bad_line(first_number + number)
            else:
                known += 1
        return known

    def add_words(self, label: int, random_text: bytes, secret_text: bytes) -> bool:
        """Add a secret from hexadecimal; False if it is malformed."""
        size: i64 = len(secret_text)
        if len(random_text) != 2 * RANDOM_BYTES or size & 1 != 0:
            return False
        if size < 2 * MIN_SECRET_BYTES or size > 2 * MAX_SECRET_BYTES:
            return False
        try:
            random = unhexlify(random_text)
            secret = unhexlify(secret_text)
        except ValueError:
            return False
        self.add(random, label, secret)
        return True

    def record_bad_line(self, number: int) -> None:
        """Count a line that is no key log line."""
        self.bad_lines += 1
        if self.first_bad_line == 0:
            self.first_bad_line = number
