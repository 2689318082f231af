"""Flows: their keys, the endpoints and the sensor in a key, and filters that select flows.

A flow key is 36 bytes (`FlowTable.key`), followed by the name of the sensor; nothing follows for
the default sensor. A sensor is the place where a capture was taken: hosts in different private
networks may use the same addresses and ports at the same time, so packets of two captures belong to
one flow only if their sensors are the same too.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from polymux.capture.pcapng.comments import read_sensor

FLOW_KEY_BYTES: Final = 36
DEFAULT_SENSOR: Final = "default"
MAX_SENSOR_BYTES: Final = 200  # of a name, as UTF-8
_FIELD: Final = "{sensor}"
_KEY = struct.Struct(">16s16sHH")
_MAPPED = bytes(10) + b"\xff\xff"


def flow_endpoints(flow: bytes) -> tuple[tuple[str, int], tuple[str, int]]:
    """The two endpoints of a flow key (`FlowTable.key`) as (address, port)."""
    address1, address2, port1, port2 = _KEY.unpack(flow[:FLOW_KEY_BYTES])
    return (_address(address1), port1), (_address(address2), port2)


@functools.lru_cache(maxsize=1024)
def _address(packed: bytes) -> str:
    if packed.startswith(_MAPPED):
        a, b, c, d = packed[12:]
        return f"{a}.{b}.{c}.{d}"
    return str(ipaddress.IPv6Address(packed))


def endpoint_text(address: str, port: int) -> str:
    """An endpoint as text: `192.0.2.1:80` or `[2001:db8::1]:80`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


FlowName = tuple[str, str, str]


def flow_name(flow: bytes) -> FlowName:
    """The sensor and the two endpoints of a flow as in the tables, whichever of them dialed."""
    ends = flow_endpoints(flow)
    return flow_name_of(sensor_of_flow(flow), *(endpoint_text(*end) for end in ends))


def flow_name_of(sensor: str, one: str, other: str) -> FlowName:
    """The name of the flow between two endpoints, in any order."""
    return (sensor, one, other) if one <= other else (sensor, other, one)


@dataclass(frozen=True, slots=True)
class SensorNaming:
    """How the sensor of a capture is found.

    Args:
        name: The sensor of all captures; "": it is found for each.
        pattern: Paths of captures, with `{sensor}` for one part of a name: `captures/{sensor}/**`.
            `*` and `?` do not match a slash, `**` does. It may match from any folder on.

    A capture whose path does not match has the sensor that its first section names, else the
    default one.

    Raises:
        ValueError: The name is empty or too long, or the pattern does not have `{sensor}` once.
    """

    name: str = ""
    pattern: str = ""
    _regex: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.name and self.pattern:
            raise ValueError("a sensor is given by name or by pattern, not by both")
        if self.name:
            check_sensor(self.name)
        if self.pattern:
            if self.pattern.count(_FIELD) != 1:
                raise ValueError(
                    f"pattern {self.pattern!r}: write {_FIELD} once, as in captures/{_FIELD}/**"
                )
            object.__setattr__(self, "_regex", _compile(self.pattern))

    def sensor_of(self, path: str, sensor_hint: str) -> str:
        """The sensor of a capture.

        Args:
            path: The path or URL of the capture, as given. The query of a URL does not count.
            sensor_hint: The comments of its first section (see `comments`).
        """
        if self.name:
            return self.name
        if "://" in path:
            path = unquote(path.partition("?")[0])
        found = self._regex.search(path) if self._regex is not None else None
        if found is not None:
            return found["sensor"]
        return short_sensor(read_sensor(sensor_hint)) or DEFAULT_SENSOR


def short_sensor(name: str) -> str:
    """A name that a capture gives its sensor: the end of one that is too long becomes its hash.

    It is part of the key of every flow.
    """
    encoded = name.encode("utf-8", "replace")
    if len(encoded) <= MAX_SENSOR_BYTES:
        return name
    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    kept = encoded[: MAX_SENSOR_BYTES - len(digest) - 1].decode("utf-8", "ignore")
    return f"{kept}~{digest}"


def check_sensor(name: str) -> None:
    """Raise ValueError if a sensor cannot have this name: it is written in comments and tables."""
    if not name.strip() or name != name.strip():
        raise ValueError(f"sensor {name!r} is empty, or begins or ends with a space")
    if len(name.encode()) > MAX_SENSOR_BYTES:
        raise ValueError(f"a sensor's name has at most {MAX_SENSOR_BYTES} bytes")
    if any(sign in name for sign in ";\r\n\0"):
        raise ValueError(f"sensor {name!r} has a semicolon or a line end")


def local_sensor() -> str:
    """The name of this host, as the sensor of captures that are recorded on it."""
    name = "".join(sign for sign in socket.gethostname() if sign.isprintable() and sign != ";")
    return name.strip()[:MAX_SENSOR_BYTES] or DEFAULT_SENSOR


def flow_at_sensor(flow: bytes, sensor: str) -> bytes:
    """The key of a flow that was seen at a sensor, from the 36 bytes of its endpoints."""
    return flow if sensor == DEFAULT_SENSOR else flow + sensor.encode("utf-8", "replace")


def sensor_of_flow(flow: bytes) -> str:
    """The sensor at which a flow was seen."""
    return flow[FLOW_KEY_BYTES:].decode("utf-8", "replace") or DEFAULT_SENSOR


def _compile(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern, which matches whole parts of a path."""
    out = ""
    for part in re.split(r"(\{sensor\}|\*\*/?|\*|\?)", pattern.lstrip("/")):
        if part == _FIELD:
            out += "(?P<sensor>[^/]+?)"
        elif part == "**/":
            out += "(?:.*/)?"
        elif part == "**":
            out += ".*"
        elif part == "*":
            out += "[^/]*"
        elif part == "?":
            out += "[^/]"
        else:
            out += re.escape(part)
    return re.compile(rf"(?:^|/){out}$")


class FlowFilter:
    """Selects flows by their endpoints; a flow matches if either endpoint does.

    Without ports and filters every flow is accepted.

    Args:
        ports: Listening ports.
        filters: `address:port`, `[address]:port`, `address` or `:port`.
        sensors: How the sensor is found, which is part of a flow's key.

    Raises:
        ValueError: A filter cannot be parsed.
    """

    def __init__(
        self,
        ports: Iterable[int] = (),
        filters: Iterable[str] = (),
        sensors: SensorNaming | None = None,
    ) -> None:
        self.ports = frozenset(ports)
        self.sensors = sensors or SensorNaming()
        self._wanted = [_parse(text) for text in filters]

    def accepts(self, flow: bytes) -> bool:
        """Whether the flow with this key is selected."""
        if not self.ports and not self._wanted:
            return True
        ends = flow_endpoints(flow)
        if any(port in self.ports for _, port in ends):
            return True
        return any(
            (address is None or address == end[0]) and (port is None or port == end[1])
            for address, port in self._wanted
            for end in ends
        )


def _parse(text: str) -> tuple[str | None, int | None]:
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            raise ValueError(f"filter {text!r}: write [address]:port")
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = str(ipaddress.ip_address(host)) if host and host != "*" else None
    except ValueError:
        raise ValueError(
            f"filter {text!r}: {host!r} is not an IP address; write address:port"
        ) from None
    if port and (not port.isdecimal() or int(port) > 65535):
        raise ValueError(f"filter {text!r}: {port!r} is not a port")
    if address is None and not port:
        raise ValueError(f"filter {text!r} names neither address nor port")
    return address, int(port) if port else None
