"""A tuned pure-Python mplex decoder and encoder, as written by hand without polymux."""

from __future__ import annotations


class Arrival:
    """Content of one frame, as the decoder delivers it."""

    __slots__ = ("data", "key")

    def __init__(self, key: int, data: bytes) -> None:
        self.key = key
        self.data = data


class Decoder:
    """Decodes bytes to content of open streams; drops frames for unknown streams."""

    def __init__(self) -> None:
        self.rest = b""
        self.open: dict[int, int] = {}  # key to bytes received

    def receive(self, data: bytes) -> list[Arrival]:
        if self.rest:
            data = self.rest + data
        found: list[Arrival] = []
        append = found.append
        known = self.open
        pos = 0
        end = len(data)
        while True:
            at = pos
            try:
                word = data[at]
                at += 1
                if word > 127:
                    word &= 127
                    shift = 7
                    while (byte := data[at]) > 127:
                        word |= (byte & 127) << shift
                        shift += 7
                        at += 1
                    word |= byte << shift
                    at += 1
                size = data[at]
                at += 1
                if size > 127:
                    size &= 127
                    shift = 7
                    while (byte := data[at]) > 127:
                        size |= (byte & 127) << shift
                        shift += 7
                        at += 1
                    size |= byte << shift
                    at += 1
            except IndexError:
                break
            after = at + size
            if after > end:
                break
            flag = word & 7
            key = word >> 3 << 1 | flag & 1
            if flag == 1 or flag == 2:
                if key in known:
                    known[key] += size
                    append(Arrival(key, data[at:after]))
            elif flag == 0:
                known[key] = 0
            else:
                known.pop(key, None)
            pos = after
        self.rest = data[pos:]
        return found


class Encoder:
    """Encodes content: one header and one payload per frame."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def send(self, number: int, data: bytes) -> None:
        word = number << 3 | 2
        head = bytearray()
        while word > 127:
            head.append(word & 127 | 128)
            word >>= 7
        head.append(word)
        size = len(data)
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        head.append(size)
        self.parts.append(bytes(head))
        self.parts.append(data)

    def data_to_send(self) -> bytes:
        joined = b"".join(self.parts)
        self.parts.clear()
        return joined
