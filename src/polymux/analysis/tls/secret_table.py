# mypyc: compiled
"""The secrets of key logs in compact form, and the parser of key log lines (RFC 9850).

A line is `LABEL client_random secret` in hexadecimal. Writers append at the same time, so lines are
in any order, may be repeated, and the last may be incomplete. Lines with other labels, comments and
malformed lines are skipped; the latter are counted.

A million secrets take about 110 MB: an entry has 82 bytes, and the index 12 to 24 more.
"""

from binascii import unhexlify
from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

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
RANDOM_BYTES: Final[i64] = 32
MAX_SECRET_BYTES: Final[i64] = 48
MIN_SECRET_BYTES: Final[i64] = 32
ENTRY_BYTES: Final[i64] = 82  # random, label, length, secret padded to 48 bytes
MAX_LINE_BYTES: Final[i64] = 512  # of a line that can be valid
MAX_SECRETS: Final = 4_000_000
LABEL_BYTES: Final = [bytes([number]) for number in range(CLIENT_EARLY + 1)]
LENGTH_BYTES: Final = [bytes([number]) for number in range(int(MAX_SECRET_BYTES) + 1)]
MIN_LINE_BYTES: Final[i64] = 144  # of the shortest label, a client random and a secret

SPACE: Final[i64] = 0x20
NEWLINE: Final[i64] = 0x0A
RETURN: Final[i64] = 0x0D


class TooManySecrets(Exception):
    """More secrets than `MAX_SECRETS`."""


class SecretTable:
    """Secrets by client random and label. The newest of several with the same label is kept.

    `entries` is all its data; a table with the same bytes is equal.
    """

    def __init__(self, entries: bytes = b"") -> None:
        self.entries: bytearray = bytearray(entries)
        self.count: i64 = i64(len(entries)) // ENTRY_BYTES
        self.hashes: vec[i32] = vec[i32]([0] * 1024)  # of the client random of each entry
        self.slots: vec[i32] = vec[i32]([0] * 1024)  # numbers of entries from 1 on; 0: free
        self.slot_mask: i64 = 1023
        self.bad_lines = 0
        self.make_room(self.count)
        for number in range(self.count):
            start = i64(number) * ENTRY_BYTES
            random = bytes(self.entries[start : start + RANDOM_BYTES])
            self.hashes[number] = hash_of(random)
        self.fill_slots()

    def make_room(self, count: i64) -> None:
        """Make an index of at most half its slots for `count` entries; `fill_slots` fills it."""
        size = self.slot_mask + 1
        while size < count * 2:
            size *= 2
        self.slots = vec[i32]([0] * size)
        self.slot_mask = size - 1
        hashes = vec[i32]([0] * (size // 2))
        known = i64(len(self.hashes))
        for number in range(known if known < size // 2 else size // 2):
            hashes[number] = self.hashes[number]
        self.hashes = hashes

    def fill_slots(self) -> None:
        """Enter all entries into an index that has none."""
        for number in range(self.count):
            slot = i64(self.hashes[number]) & self.slot_mask
            while self.slots[slot] != 0:
                slot = (slot + 1) & self.slot_mask
            self.slots[slot] = i32(number + 1)

    def add(self, random: bytes, label: i64, secret: bytes) -> None:
        """Add a secret of 32 to 48 bytes, or replace the one with the same random and label.

        Raises:
            TooManySecrets: It would be one more than `MAX_SECRETS`.
        """
        entries = self.entries
        key = hash_of(random)
        slot = i64(key) & self.slot_mask
        length: i64 = len(secret)
        tail = LABEL_BYTES[label] + LENGTH_BYTES[length] + secret
        while self.slots[slot] != 0:
            number = i64(self.slots[slot]) - 1
            if self.hashes[number] == key:
                start = number * ENTRY_BYTES
                if (
                    i64(entries[start + RANDOM_BYTES]) == label
                    and entries[start : start + RANDOM_BYTES] == random
                ):
                    entries[start + RANDOM_BYTES : start + RANDOM_BYTES + 2 + length] = tail
                    return
            slot = (slot + 1) & self.slot_mask
        if self.count >= MAX_SECRETS:
            raise TooManySecrets
        entry = random + tail
        if length < MAX_SECRET_BYTES:
            entry += bytes(MAX_SECRET_BYTES - length)
        entries += entry
        self.hashes[self.count] = key
        self.count += 1
        self.slots[slot] = i32(self.count)
        if self.count * 2 > self.slot_mask:
            self.make_room(self.count * 2)
            self.fill_slots()

    def find(self, random: bytes) -> dict[int, bytes]:
        """The secrets of one session by label; empty if there are none."""
        found: dict[int, bytes] = {}
        key = hash_of(random)
        slot = i64(key) & self.slot_mask
        entries = self.entries
        while self.slots[slot] != 0:
            number = i64(self.slots[slot]) - 1
            start = number * ENTRY_BYTES
            if self.hashes[number] == key and entries[start : start + RANDOM_BYTES] == random:
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

    def add_lines(self, text: bytes) -> int:
        """Add the secrets of whole lines; return how many were key log lines, used or not.

        The last line may lack its newline. Lines as writers make them, with single spaces, take the
        short way; the others are split into words.
        """
        known = 0
        start: i64 = 0
        end: i64 = len(text)
        while start < end:
            after = self.add_plain_line(text, start, end)
            if after == 0:
                at = i64(text.find(b"\n", int(start)))
                after = at + 1 if at >= 0 else end
                known += self.add_any_line(text, start, after)
            else:
                known += 1
            start = after
        return known

    def add_plain_line(self, text: bytes, start: i64, end: i64) -> i64:
        """Add the line at `start` if it is the usual form of one; return where the next begins.

        0 if it is not: a label that is used, one space, a client random, one space, a secret of 32
        or 48 bytes, and a line break.
        """
        if end - start < MIN_LINE_BYTES:
            return 0
        if text[start + 13] == SPACE:
            size: i64 = 13
        elif text[start + 23] == SPACE:
            size = 23
        elif text[start + 31] == SPACE:
            size = 31
        elif text[start + 27] == SPACE:
            size = 27
        else:
            return 0
        secret_at = start + size + 2 + 2 * RANDOM_BYTES
        stop = secret_at + 2 * MAX_SECRET_BYTES
        after = line_break(text, stop, end)
        if after == 0:
            stop = secret_at + 2 * MIN_SECRET_BYTES
            after = line_break(text, stop, end)
        if after == 0 or text[secret_at - 1] != SPACE:
            return 0
        label = i64(LABELS.get(text[start : start + size], 0))
        if label == 0:
            return 0
        try:
            random = unhexlify(text[start + size + 1 : secret_at - 1])
            secret = unhexlify(text[secret_at:stop])
        except ValueError:
            return 0
        self.add(random, label, secret)
        return after

    def add_any_line(self, text: bytes, start: i64, stop: i64) -> int:
        """Add the line between these places; 1 if it is a key log line, used or not, else 0."""
        if stop - start > MAX_LINE_BYTES:
            self.bad_lines += 1
            return 0
        words = text[start:stop].split()
        if len(words) == 0 or words[0].startswith(b"#"):
            return 0
        label = LABELS.get(words[0], 0)
        if label == 0 and words[0] in IGNORED_LABELS:
            return 1
        if label == 0 or len(words) != 3 or not self.add_words(label, words[1], words[2]):
            self.bad_lines += 1
            return 0
        return 1

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


def line_break(text: bytes, at: i64, end: i64) -> i64:
    """Where the next line begins if one ends at `at`; 0 if none does before `end`."""
    if at < end and text[at] == NEWLINE:
        return at + 1
    if end - at > 1 and text[at] == RETURN and text[at + 1] == NEWLINE:
        return at + 2
    return 0


def hash_of(random: bytes) -> i32:
    """The hash by which a client random is found; not to be foreseen by a writer of key logs."""
    return i32(hash(random) & 0x7FFFFFFF)
