"""The compiled part of the batteries."""
