"""`polymux doctor`: what is installed, what is missing, and what to do about it."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polymux.cli.support.output import format_value


@click.command(epilog="Example: polymux doctor --master spark://host:7077")
@click.option("--master", help="Also run a task on every worker of this Spark master.")
@click.pass_context
def doctor(context: click.Context, master: str | None) -> None:
    """Look at Python, the compiled core, the extras, Java and memory."""
    from polymux.spark.runtime.doctor import checks

    table = Table(show_header=False, box=None)
    found = checks(master)
    for check in found:
        mark = "ok" if check.ok else "--"
        cells = (mark, check.name, check.text, "" if check.ok else check.remedy)
        table.add_row(*(Text(format_value(cell)) for cell in cells))
    Console().print(table)
    if not all(check.ok for check in found if check.needed):
        context.exit(1)
