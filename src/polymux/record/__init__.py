"""What writes captures: the tap, a recording proxy, the recorder inside a live process, and the
collector, which takes in whatever is sent to it.

Imports `aio`, `capture` and what is below them.
"""

from .collector import Bounds, Collector, Counts, collect
from .journal import Journal, NotDurable
from .leftovers import Leftovers, recover_left
from .recorder import Recorder
from .tap import Tap, TapCounts
from .tls import BadCertificate

__all__ = [
    "BadCertificate", "Bounds", "Collector", "Counts", "Journal", "Leftovers", "NotDurable",
    "Recorder", "Tap", "TapCounts", "collect", "recover_left",
]  # fmt: skip
