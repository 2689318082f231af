"""`polymux doctor`: check the installation and say how to fix what is missing."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polymux.cli.support.exit_codes import EXIT_FINDINGS
from polymux.cli.support.output import format_value


@click.command(epilog="Example: polymux doctor --master spark://host:7077")
@click.option("--master", help="Also run a task on every worker of this Spark master.")
@click.option(
    "--class-archive",
    is_flag=True,
    help="First create the archive of Spark's classes, so that Spark starts faster: once, in about "
    "half a minute, 160 MB in the cache.",
)
@click.pass_context
def doctor(context: click.Context, master: str | None, class_archive: bool) -> None:
    """Check Python, the compiled core, the extras, Java, memory and the cache."""
    from polymux.spark.runtime.doctor import checks

    if class_archive:
        create_class_archive()
    table = Table(show_header=False, box=None)
    results = checks(master)
    for check in results:
        mark = "ok" if check.ok else "--"
        cells = (mark, check.name, check.text, "" if check.ok else check.remedy)
        table.add_row(*(Text(format_value(cell)) for cell in cells))
    Console().print(table)
    if not all(check.ok for check in results if check.needed):
        context.exit(EXIT_FINDINGS)


def create_class_archive() -> None:
    """Create the archive, or say why it cannot be."""
    from polymux.spark.runtime.class_data_sharing import create_archive, failure_reason
    from polymux.spark.runtime.java import NoJava, find_java

    try:
        java = find_java()
    except NoJava as problem:
        raise click.ClickException(str(problem)) from None
    if not create_archive(java, requested=True):
        reason = failure_reason(java) or "another process creates it, or the cache is not writable"
        raise click.ClickException(f"the archive of Spark's classes was not created: {reason}")
