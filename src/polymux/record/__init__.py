"""What writes captures: the tap, a recording proxy between two peers.

Imports `aio`, `capture` and what is below them.
"""

from .tap import Tap, TapCounts

__all__ = ["Tap", "TapCounts"]
