"""`polymux demo`: record real peers with planted faults, analyze them, show what was found."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from polymux.capture.pcapng.writer import PcapngWriter
from polymux.cli.commands.analyze import analyze
from polymux.cli.demo.scenes import SCENES, record_scene
from polymux.cli.support.output import format_value
from polymux.core.errors import MissingExtra

REQUIRED_EXTRAS = ("captures", "spark", "websocket", "report")


@click.command(epilog="Example: polymux demo --out demo-out")
@click.option("--out", default="demo-out", show_default=True, help="Directory to write to.")
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.pass_context
def demo(context: click.Context, out: str, master: str) -> None:
    """Run real peers on loopback, record them, analyze the capture and show the findings."""
    check_extras()
    folder = Path(out)
    capture = folder / "demo.pcapng"
    if folder.exists() and any(folder.iterdir()) and not capture.exists():
        raise click.UsageError(f"--out {out}: holds something that is not a demo's")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    click.echo("Real peers on loopback, through a recording proxy:")
    with PcapngWriter(str(capture)) as sink:
        for scene in SCENES:
            click.echo(f"  {scene.protocol.split(',')[0]:<20} {scene.story}")
            takes = record_scene(scene, sink)
            if takes > 1:
                click.echo(f"  {'':<20} (take {takes}: this machine was busy)")
    click.echo(f"recorded: {format_value(capture)} ({capture.stat().st_size} bytes)\n")
    context.invoke(
        analyze, captures=(str(capture),), out=str(folder / "tables"), protocol="auto", ports=(),
        filters=(), content=False, master=master, confs=(), memory="1g", with_report=True,
    )  # fmt: skip


def check_extras() -> None:
    """Check that every part of the demo can run, before anything is written.

    Raises:
        MissingExtra: An extra is not installed.
        NoJava: There is no Java that Spark supports.
    """
    from polymux.spark.runtime.doctor import missing_distributions
    from polymux.spark.runtime.java import find_java

    missing = [extra for extra in REQUIRED_EXTRAS if missing_distributions(extra)]
    if missing:
        raise MissingExtra(",".join(missing), "the demo")
    find_java()
