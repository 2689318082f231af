"""Honest applications that act at random on an endpoint, one for each shape of protocol."""
