"""Writing captures of live traffic.

- `RecordingProxy` forwards connections and records them;
- `Recorder` records the sessions of this process;
- `Collector` accepts sessions, records them, and confirms data when it is durable.

Imports `aio`, `capture` and what is below them.
"""

from polymux.record.audit_log import AuditLog
from polymux.record.collector import Collector, CollectorLimits, CollectorStats, collect
from polymux.record.crash_recovery import RecoveryResult, recover_partial_captures
from polymux.record.durable_log import DurableLog, NotDurable
from polymux.record.proxy import ProxyStats, RecordingProxy
from polymux.record.session_recorder import Recorder
from polymux.record.tls_contexts import BadCertificate

__all__ = [
    "AuditLog",
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
