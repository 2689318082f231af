"""Tests of the commands, run as a user runs them."""
