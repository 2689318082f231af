"""What writes captures: the tap, a recording proxy, the recorder inside a live process, and the
collector, which takes in whatever is sent to it.

Imports `aio`, `capture` and what is below them.
"""

from polymux.record.collector import Bounds, Collector, Counts, collect
from polymux.record.crash_recovery import Leftovers, recover_left
from polymux.record.durable_log import Journal, NotDurable
from polymux.record.proxy import Tap, TapCounts
from polymux.record.session_recorder import Recorder
from polymux.record.tls_contexts import BadCertificate

__all__ = [
    "BadCertificate", "Bounds", "Collector", "Counts", "Journal", "Leftovers", "NotDurable",
    "Recorder", "Tap", "TapCounts", "collect", "recover_left",
]  # fmt: skip
