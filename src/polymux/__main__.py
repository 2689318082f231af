"""`python -m polymux` is the command `polymux`."""

from _polymux_entry import main

main()
