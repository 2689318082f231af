"""`polymux dissector`: write a Wireshark dissector for all protocols."""

from __future__ import annotations

import sys

import click

from polymux.analysis.options import AUTO, parse_ports
from polymux.capture.io.atomic_write import write_atomically
from polymux.cli.dissector.generate import dissector_script
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import format_value
from polymux.cli.support.progress import print_line


@click.command(epilog="Example: polymux dissector --port 9000=mplex -o polymux.lua")
@click.option(
    "-o", "--out", default="-", show_default=True, help="The file; - for standard output."
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    help="A port and its protocol: 9000=mplex; a preference of the dissector can change it.",
)
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    shell_complete=protocol_names,
    help="One more variant to know: minmux:profile=FILE.toml; its profile goes into the script.",
)
def dissector(out: str, ports: tuple[str, ...], protocols: tuple[str, ...]) -> None:
    """Write a dissector in Lua with which Wireshark shows the frames of every protocol.

    It belongs into Wireshark's folder of personal Lua plugins (Help > About > Folders), mostly
    `~/.local/lib/wireshark/plugins`, or after `tshark -X lua_script:`. Recordings of polymux name
    their protocol; of other captures, name ports here or in the preferences of the protocol
    `polymux`. Its filter fields begin with `polymux.`.
    """
    try:
        by_port = parse_ports(ports)
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    by_protocol: dict[str, list[int]] = {}
    for port, protocol in by_port.items():
        if protocol == AUTO:
            raise click.UsageError(f"--port {port}: name its protocol, such as {port}=mplex")
        by_protocol.setdefault(protocol, []).append(port)
    script = dissector_script(protocols, by_protocol)
    if out == "-":
        sys.stdout.write(script)
        return
    write_atomically(out, script.encode())
    print_line(format_value(f"{out}: try it with `tshark -X lua_script:{out} -r CAPTURE`"))
