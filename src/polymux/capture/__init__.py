"""Captures: reading and writing pcapng, indexing, TCP reassembly.

`read_sessions` is the usual door: capture files in, `TcpSession` objects out. The pieces of it
can be used apart, which is what Spark does: `plan` cuts a file into ranges, `index_range` turns
a range into `FlowRefs` rows, `sessions_of` turns the rows of one flow back into sessions.

Imports only `core`. What touches every packet lives in `hot` and is compiled.
"""

from polymux.capture.files import Files, find_captures
from polymux.capture.flows import FlowFilter, endpoint_text, flow_endpoints
from polymux.capture.hints import hint_comment, read_hint
from polymux.capture.index import FileIndex, FlowRefs, Range, index_file, index_range
from polymux.capture.limits import CaptureLimits
from polymux.capture.ranges import plan, write_index
from polymux.capture.reading import Reading, read_sessions
from polymux.capture.repair import Repair, recover, repair
from polymux.capture.rotation import RotatingWriter
from polymux.capture.scribe import TcpScribe
from polymux.capture.sessions import Batch, Piece, TcpSession, sessions_of
from polymux.capture.summary import FileSummary, combine
from polymux.capture.writer import Missed, PcapngWriter

__all__ = [
    "Batch",
    "CaptureLimits",
    "FileIndex",
    "FileSummary",
    "Files",
    "FlowFilter",
    "FlowRefs",
    "Missed",
    "PcapngWriter",
    "Piece",
    "Range",
    "Reading",
    "Repair",
    "RotatingWriter",
    "TcpScribe",
    "TcpSession",
    "combine",
    "endpoint_text",
    "find_captures",
    "flow_endpoints",
    "hint_comment",
    "index_file",
    "index_range",
    "plan",
    "read_hint",
    "read_sessions",
    "recover",
    "repair",
    "sessions_of",
    "write_index",
]
