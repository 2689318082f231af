"""What writes captures: the tap, a recording proxy, and the recorder inside a live process.

Imports `aio`, `capture` and what is below them.
"""

from .leftovers import Leftovers, recover_left
from .recorder import Recorder
from .tap import Tap, TapCounts
from .tls import BadCertificate

__all__ = ["BadCertificate", "Leftovers", "Recorder", "Tap", "TapCounts", "recover_left"]
