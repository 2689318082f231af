"""`python -m polymux` is the command `polymux`."""

from polymux.cli import main

main()
