# mypyc: compiled
"""Detection of the HTTP upgrade before the first WebSocket frame, in a capture (RFC 6455, 4).

Given the first bytes of each direction, `detect_upgrade` says whether they are a successful
WebSocket upgrade and how long each HTTP head is; frames follow the heads. Nothing here raises
because of what it reads: the outcome says what is wrong. Text from the wire is returned unescaped;
escape it before printing.
"""

import re
from base64 import b64encode
from hashlib import sha1
from typing import Final

MAX_HEAD_BYTES: Final = 16 * 1024  # a browser's HTTP head with all its cookies is below 8 KiB
GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

NEED_MORE: Final = "more"  # not decided: more bytes are needed
NOT_UPGRADE: Final = "no"  # not a WebSocket upgrade, or one that was refused
IS_UPGRADE: Final = "yes"


class HttpHead:
    """One HTTP head: whether it is half of an upgrade (`outcome`, `reason`), and its fields."""

    def __init__(self, outcome: str, reason: str = "") -> None:
        self.outcome = outcome
        self.reason = reason
        self.size = 0  # bytes, including the empty line at its end
        self.start_line = ""
        self.fields: dict[str, str] = {}  # names in lower case; repeated ones joined by ", "

    def tokens(self, name: str) -> list[str]:
        """The values of a comma-separated field, in lower case, without their parameters."""
        parts = [
            part.split(";")[0].strip().lower() for part in self.fields.get(name, "").split(",")
        ]
        return [part for part in parts if part]

    def reject(self, reason: str) -> "HttpHead":
        """Set the outcome to NOT_UPGRADE, with this reason; return the head."""
        self.outcome = NOT_UPGRADE
        self.reason = reason
        return self


class UpgradeDetection:
    """The result of `detect_upgrade`.

    With outcome IS_UPGRADE, `path` is the request's target, `request_size` and `response_size` are
    where the frames begin, and `undecodable_reason` says why the frames cannot be decoded ("": they
    can). With NOT_UPGRADE, `reason` says why.
    """

    def __init__(self, outcome: str, reason: str = "") -> None:
        self.outcome = outcome
        self.reason = reason
        self.path = ""
        self.request_size = 0
        self.response_size = 0
        self.undecodable_reason = ""


def accept_key(key: str) -> str:
    """The Sec-WebSocket-Accept for a Sec-WebSocket-Key (4.2.2)."""
    return b64encode(sha1(key.encode("latin-1", "replace") + GUID).digest()).decode("ascii")


def detect_upgrade(
    request: bytes, response: bytes, limit: int = MAX_HEAD_BYTES
) -> UpgradeDetection:
    """Decide whether a connection begins with a WebSocket upgrade.

    Args:
        request: the first bytes of the dialer.
        response: the first bytes of the acceptor.
        limit: bytes of an HTTP head, at most.

    Returns:
        The detection. With NEED_MORE, call again with all bytes so far and more; a decision needs
        at most `limit` bytes of each direction.
    """
    request_head = read_request(request, limit)
    response_head = read_response(response, limit)
    for head in (request_head, response_head):
        if head.outcome == NOT_UPGRADE:
            return UpgradeDetection(NOT_UPGRADE, head.reason)
    if request_head.outcome == NEED_MORE or response_head.outcome == NEED_MORE:
        return UpgradeDetection(NEED_MORE)
    expected = accept_key(request_head.fields.get("sec-websocket-key", ""))
    if response_head.fields.get("sec-websocket-accept", "") != expected:
        return UpgradeDetection(
            NOT_UPGRADE, "Sec-WebSocket-Accept does not answer the request's Sec-WebSocket-Key"
        )
    detection = UpgradeDetection(IS_UPGRADE)
    detection.path = request_head.start_line.split(" ")[1]
    detection.request_size = request_head.size
    detection.response_size = response_head.size
    extensions = response_head.tokens("sec-websocket-extensions")
    if "permessage-deflate" in extensions:
        detection.undecodable_reason = (
            "permessage-deflate was negotiated and compressed messages are not read; "
            "record again with compression off"
        )
    elif extensions:
        detection.undecodable_reason = (
            f"the extension {extensions[0]!r} was negotiated and is not known"
        )
    return detection


def read_request(data: bytes, limit: int = MAX_HEAD_BYTES) -> HttpHead:
    """The dialer's half: a GET request for WebSocket version 13."""
    head = read_http_head(data, b"GET ", limit)
    if head.outcome != IS_UPGRADE:
        return head
    words = head.start_line.split(" ")
    if len(words) != 3 or not words[1] or not words[2].startswith("HTTP/1."):
        return head.reject("the request line is not 'GET path HTTP/1.1'")
    reason = missing_upgrade_header(head)
    if reason:
        return head.reject(f"the request has {reason}")
    if head.fields.get("sec-websocket-version") != "13":
        return head.reject("the request is not for WebSocket version 13")
    if not head.fields.get("sec-websocket-key"):
        return head.reject("the request has no Sec-WebSocket-Key")
    return head


def read_response(data: bytes, limit: int = MAX_HEAD_BYTES) -> HttpHead:
    """The acceptor's half: status 101, switching to WebSocket."""
    head = read_http_head(data, b"HTTP/1.", limit)
    if head.outcome != IS_UPGRADE:
        return head
    words = head.start_line.split(" ")
    if len(words) < 2 or words[1] != "101":
        return head.reject("the response is not 101 Switching Protocols")
    reason = missing_upgrade_header(head)
    if reason:
        return head.reject(f"the response has {reason}")
    if not head.fields.get("sec-websocket-accept"):
        return head.reject("the response has no Sec-WebSocket-Accept")
    return head


def read_http_head(data: bytes, prefix: bytes, limit: int) -> HttpHead:
    """Parse an HTTP head that begins with `prefix`, up to and including its first empty line."""
    if data[: len(prefix)] != prefix[: len(data)]:
        return HttpHead(NOT_UPGRADE, f"it does not begin with {prefix.decode('ascii').strip()!r}")
    size = http_head_size(data, limit)
    if size < 0:
        if len(data) >= limit:
            return HttpHead(NOT_UPGRADE, f"the HTTP head is over the limit of {limit} bytes")
        return HttpHead(NEED_MORE)
    head = HttpHead(IS_UPGRADE)
    head.size = size
    lines = data[:size].decode("latin-1").split("\n")
    head.start_line = lines[0].rstrip("\r")
    last = ""
    for raw in lines[1:-2]:  # the empty line, and what split() leaves after it
        line = raw.rstrip("\r")
        if line[:1] in (" ", "\t") and last:  # a folded field goes on (RFC 9112, 5.2)
            head.fields[last] = f"{head.fields[last]} {line.strip()}"
            continue
        name, colon, value = line.partition(":")
        last = name.strip().lower()
        if not colon or not last:
            return head.reject("a header line has no name and colon")
        value = value.strip()
        head.fields[last] = f"{head.fields[last]}, {value}" if last in head.fields else value
    return head


def http_head_size(data: bytes, limit: int) -> int:
    """Bytes up to and including the first empty line (CR is optional); -1: none in `limit`."""
    strict = data.find(b"\n\r\n", 0, limit)
    bare = data.find(b"\n\n", 0, limit)
    if strict >= 0 and (bare < 0 or strict < bare):
        return strict + 3
    return bare + 2 if bare >= 0 else -1


def missing_upgrade_header(head: HttpHead) -> str:
    """Which of `Upgrade: websocket` and `Connection: Upgrade` a head lacks; "": neither."""
    if "websocket" not in head.tokens("upgrade"):
        return "no 'Upgrade: websocket'"
    if "upgrade" not in head.tokens("connection"):
        return "no 'Connection: Upgrade'"
    return ""


# Values of an upgrade that say how the connection goes on; of the others only the length is kept.
_KEPT_FIELDS: Final = {
    b"upgrade": re.compile(rb"websocket", re.IGNORECASE),
    b"connection": re.compile(rb"upgrade|keep-alive, *upgrade", re.IGNORECASE),
    b"sec-websocket-version": re.compile(rb"\d{1,2}"),
    b"sec-websocket-key": re.compile(rb"[A-Za-z0-9+/]{22}=="),
    b"sec-websocket-accept": re.compile(rb"[A-Za-z0-9+/]{27}="),
    b"sec-websocket-extensions": re.compile(rb"permessage-deflate", re.IGNORECASE),
}
_REQUEST_LINE: Final = re.compile(rb"(GET )([^ ?]+)([^ ]*)( HTTP/1\.\d\r?\n)")
_STATUS_LINE: Final = re.compile(rb"(HTTP/1\.\d \d{3})(.*)", re.DOTALL)


def redacted_head(head: bytes, keeps_path: bool) -> bytes:
    """An HTTP head, complete or not, without what the upgrade does not depend on.

    As many bytes: names and values of other fields, the query and the reason phrase become `x`.
    """
    lines = head.split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + [lines[-1]]
    first = _REQUEST_LINE.fullmatch(lines[0])
    status = _STATUS_LINE.fullmatch(lines[0])
    if first is not None:
        path = first[2] if keeps_path else first[2][:1] + blank_text(first[2][1:])
        lines[0] = first[1] + path + blank_text(first[3]) + first[4]
    elif status is not None:
        lines[0] = status[1] + blank_text(status[2])
    else:
        lines[0] = lines[0][:4] + blank_text(lines[0][4:])
    for n in range(1, len(lines)):
        name, colon, value = lines[n].partition(b":")
        pattern = _KEPT_FIELDS.get(name.lower())
        if pattern is None or pattern.fullmatch(value.strip()) is None:
            kept = name if pattern is not None else blank_text(name)
            lines[n] = kept + colon + blank_text(value)
    return b"".join(lines)


def blank_text(text: bytes) -> bytes:
    """As many bytes, `x` except for spaces, tabs and line ends."""
    return bytes([byte if byte in b" \t\r\n" else 120 for byte in text])
