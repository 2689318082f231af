"""yamux: its rules, its state machine, and the signs by which its two dialects are told apart."""
