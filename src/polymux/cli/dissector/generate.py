"""The dissector's script: the Lua template with tables made from the protocol classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from polymux.core.limits import Limits
from polymux.core.msgpack import MAX_SKIPPED_VALUES
from polymux.core.websocket.handshake import MAX_HEAD_BYTES
from polymux.protocols.minmux.profile import Profile, StreamFormat
from polymux.protocols.minmux.protocol import Minmux
from polymux.protocols.nerdbank.codec import MAGIC, MAX_CONTROL_CODE
from polymux.protocols.nerdbank.protocol import MAX_RECEIVED_PAYLOAD
from polymux.protocols.omnistreams.protocol import DEFAULT_MAX_MESSAGE_BYTES
from polymux.protocols.omnistreams.rules import LEGACY_KINDS
from polymux.protocols.registry import create, parse_protocol, protocol_names

# The protocols and variants that have a preference for their ports.
VARIANTS = (
    "mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3", "omnistreams",
    "omnistreams:numbering=legacy", "streamux", "minmux", "yamux",
)  # fmt: skip
_SPEC_TYPES = 7  # of omnistreams
_MARK = "--@TABLES@"


def dissector_script(
    protocols: Sequence[str] = (), ports: Mapping[str, Iterable[int]] | None = None
) -> str:
    """The Lua script.

    Args:
        protocols: protocol strings that it knows besides `VARIANTS`, such as
            `minmux:profile=FILE.toml`, whose profile is written into the script; a comment of a
            capture that names the same string is understood.
        ports: default ports by protocol string.

    Raises:
        BadProtocolString: One of the strings is invalid.
    """
    ports = ports or {}
    texts = list(dict.fromkeys([*VARIANTS, *protocols, *ports]))
    preferences = []
    for text in texts:
        create(text)  # checks it
        listed = ",".join(str(port) for port in sorted(ports.get(text, ())))
        preferences.append(
            f"  {{ preference = {_quoted(preference_name(text))}, protocol = {_quoted(text)}, "
            f"text = {_quoted(text)}, ports = {_quoted(listed)} }},"
        )
    limits = Limits()
    lines = [
        "local KINDS = {",
        *(_kinds_table(name) for name in protocol_names()),
        "}",
        "local PORT_PREFERENCES = {",
        *preferences,
        "}",
        "local PROFILES = {",
        *_profiles(texts),
        "}",
        f"local SPEC_KINDS = {{ {_pairs(range(_SPEC_TYPES))} }}",
        f"local LEGACY_KINDS = {{ {_pairs(LEGACY_KINDS)} }}",
        f"local NERDBANK_MAGIC = {_quoted_bytes(MAGIC)}",
        f"local NERDBANK_MAX_CODE = {MAX_CONTROL_CODE}",
        f"local NERDBANK_MAX_FRAME_BYTES = {MAX_RECEIVED_PAYLOAD}",
        f"local OMNISTREAMS_MAX_MESSAGE_BYTES = {DEFAULT_MAX_MESSAGE_BYTES + 2}",
        f"local MAX_METADATA_BYTES = {limits.max_metadata_bytes}",
        f"local MAX_CONTROL_BYTES = {limits.max_control_bytes}",
        f"local MAX_SKIPPED_VALUES = {MAX_SKIPPED_VALUES}",
        f"local MAX_HEAD_BYTES = {MAX_HEAD_BYTES}",
    ]
    template = files("polymux.cli.dissector").joinpath("polymux.lua").read_text("utf-8")
    return template.replace(_MARK, "\n".join(lines))


def preference_name(protocol: str) -> str:
    """The name of the preference with the ports of a protocol: `nerdbank_version_1`."""
    return re.sub("[^a-z0-9]+", "_", protocol.lower()).strip("_")


def _kinds_table(name: str) -> str:
    kinds = create(name).kinds
    entries = ", ".join(f"[{number}] = {_quoted(kinds[number].name)}" for number in sorted(kinds))
    return f"  {name} = {{ {entries} }},"


def _profiles(texts: Iterable[str]) -> list[str]:
    """The profiles of Minmux by the file that names them; "" for the built-in one."""
    made: dict[str, str] = {}
    for text in texts:
        spec = parse_protocol(text)
        protocol = create(text)
        if isinstance(protocol, Minmux):
            made[spec.options.get("profile", "")] = _profile_table(protocol.profile)
    return [f"  [{_quoted(name)}] = {table}," for name, table in made.items()]


def _profile_table(profile: Profile) -> str:
    streams = ", ".join(
        f"[{_quoted(str(number))}] = {_format_table(profile.format_of(_key(number)))}"
        for number in profile.assigned_ids
    )
    default = _format_table(profile.default)
    reuse = "true" if profile.reuse else "false"
    return f"{{ reuse = {reuse}, default = {default}, streams = {{ {streams} }} }}"


def _key(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _format_table(form: StreamFormat | None) -> str:
    if form is None:
        return "nil"
    return f"{{ item = {form.item_size}, last = {form.last_item_size} }}"


def _pairs(values: Iterable[int]) -> str:
    return ", ".join(f"[{number}] = {value}" for number, value in enumerate(values))


def _quoted(text: str) -> str:
    return _quoted_bytes(text.encode())


def _quoted_bytes(data: bytes) -> str:
    r"""A string of Lua, with everything but plain characters as `\ddd`."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03d}" for b in data)
    return '"' + "".join(plain) + '"'
