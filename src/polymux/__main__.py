"""`python -m polymux` is the command `polymux`."""

from .cli import main

main()
