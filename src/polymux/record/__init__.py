"""What writes captures: the tap, a recording proxy, the recorder inside a live process, and the
collector, which takes in whatever is sent to it.

Imports `aio`, `capture` and what is below them.
"""

from polymux.record.collector import Collector, CollectorLimits, CollectorStats, collect
from polymux.record.crash_recovery import RecoveryResult, recover_partial_captures
from polymux.record.durable_log import DurableLog, NotDurable
from polymux.record.proxy import ProxyStats, RecordingProxy
from polymux.record.session_recorder import Recorder
from polymux.record.tls_contexts import BadCertificate

__all__ = [
    "BadCertificate",
    "Collector",
    "CollectorLimits",
    "CollectorStats",
    "DurableLog",
    "NotDurable",
    "ProxyStats",
    "Recorder",
    "RecordingProxy",
    "RecoveryResult",
    "collect",
    "recover_partial_captures",
]
