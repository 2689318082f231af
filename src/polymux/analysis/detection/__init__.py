"""Which protocol a session speaks: detection with evidence, and selection by the caller."""
