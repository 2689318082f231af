"""The session class of each protocol that has operations of its own."""
