"""Drivers: honest applications that use an endpoint at random, one per protocol shape."""
