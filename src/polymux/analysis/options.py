"""Analysis options: which protocol a session is read as, and which tables are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polymux.analysis.detection.sample import preamble_bytes
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.schema.tables import TABLES
from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import SensorNaming, TcpSession
from polymux.protocols.registry import BadProtocolString, create, parse_protocol

AUTO = "auto"
DEFAULT_TABLES = frozenset(TABLES) - {"captures", "content"}


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """What the caller asks of an analysis.

    Args:
        protocol: `auto` (detect it) or a protocol string for every session.
        ports: protocol string or `auto` by TCP port; takes precedence over `protocol`.
        tables: names of the tables to write.
        content_stream: key of the only stream whose content is collected (`d1`); "" for all.
        keys: secrets of sessions inside TLS; None for none.
        sensors: how the sensor of a capture is found.
        only_protocols: names of protocols: sessions of others have no rows; empty: all have.
        layout: how rows are laid out in files, where they are written to files.

    Raises:
        BadProtocolString: a protocol string cannot be used.
    """

    protocol: str = AUTO
    ports: Mapping[int, str] = field(default_factory=dict)
    tables: frozenset[str] = DEFAULT_TABLES
    content_stream: str = ""
    keys: KeyLog | None = field(default=None, repr=False, compare=False)
    sensors: SensorNaming = field(default_factory=SensorNaming)
    only_protocols: frozenset[str] = frozenset()
    layout: TableLayout = field(default_factory=TableLayout)

    def __post_init__(self) -> None:
        for text in (self.protocol, *self.ports.values()):
            if text != AUTO:
                check_protocol_string(text)

    def with_content(self) -> AnalysisOptions:
        """Return the same options with the `content` table added."""
        return replace(self, tables=self.tables | {"content"})

    def with_run(self, run: str) -> AnalysisOptions:
        """Return the same options with a layout that records the run and these options in files."""
        told: dict[str, object] = {
            "protocol": self.protocol,
            "ports": dict(self.ports),
            "tables": sorted(self.tables),
            "sensor": self.sensors.name,
            "sensor_from": self.sensors.pattern,
        }
        text = json.dumps({name: value for name, value in told.items() if value})
        return replace(self, layout=replace(self.layout, run=run, options=text))

    def with_secrets(self, blocks: Iterable[bytes]) -> AnalysisOptions:
        """Return the same options with the secrets blocks of captures added to the keys."""
        texts = list(blocks)
        return replace(self, keys=(self.keys or KeyLog()).merged(texts)) if texts else self

    def protocol_for(self, session: TcpSession) -> str:
        """Return the protocol string given for this session, or `auto`.

        The acceptor's port is looked up first, then the dialer's.
        """
        for endpoint in (session.acceptor, session.dialer) if self.ports else ():
            text = self.ports.get(int(endpoint.rpartition(":")[2]))
            if text is not None:
                return text
        return self.protocol


def check_protocol_string(text: str) -> None:
    """Raise BadProtocolString if this protocol string cannot be used."""
    create(text)
    try:
        preamble_bytes(parse_protocol(text).options.get("preamble", ""))
    except ValueError as problem:
        raise BadProtocolString(f"{text!r}: {problem}") from None


def protocol_string(name: str, options: dict[str, str]) -> str:
    """`mplex`, `nerdbank:version=3`: the protocol string of a name and options."""
    pairs = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}:{pairs}" if pairs else name


def parse_ports(pairs: Iterable[str]) -> dict[int, str]:
    """Parse `9000=mplex` and plain `9000` (detect the protocol) into `AnalysisOptions.ports`.

    Raises:
        ValueError: a text is neither; the message says how to write it.
    """
    ports: dict[int, str] = {}
    for pair in pairs:
        number, equals, text = pair.partition("=")
        if not number.isdecimal() or not 0 < int(number) < 65536 or (equals and not text):
            raise ValueError(f"port {pair!r}: write 9000=mplex, or 9000 to have it detected")
        ports[int(number)] = text or AUTO
    return ports
