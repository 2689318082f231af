"""What writes captures: the tap, a recording proxy between two peers.

Imports `aio`, `capture` and what is below them.
"""

from .leftovers import Leftovers, recover_left
from .tap import Tap, TapCounts
from .tls import BadCertificate

__all__ = ["BadCertificate", "Leftovers", "Tap", "TapCounts", "recover_left"]
