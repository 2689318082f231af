"""multiplex / mplex: its rules, its state machine, and the history of ids that are used again."""
