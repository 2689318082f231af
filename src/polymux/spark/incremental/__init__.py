"""Adding captures to a lake: only what is new is read, and what had not ended is taken up again."""
