"""Commands run in this process as the main command runs them."""

from collections.abc import Sequence

import click
from click.testing import CliRunner, Result


def invoke(command: click.Command, arguments: Sequence[str], **options: bool) -> Result:
    """Run a command as its group does: click keeps the names of the help option in the command."""
    return CliRunner().invoke(
        command, list(arguments), help_option_names=["-h", "--help"], **options
    )
