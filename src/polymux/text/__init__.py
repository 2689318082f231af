"""Text for people: units for sizes, rates and durations, and escaping of text from the wire.

Imports nothing else of polymux.
"""
