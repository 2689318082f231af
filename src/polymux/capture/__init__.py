"""Captures: reading and writing pcapng, indexing, TCP reassembly.

`read_sessions` is the usual door: capture files in, `TcpSession` objects out. The pieces of it
can be used apart, which is what Spark does: `plan` cuts a file into ranges, `index_range` turns
a range into `FlowRefs` rows, `sessions_of` turns the rows of one flow back into sessions.

Imports only `core`. What touches every packet lives in `hot` and is compiled.
"""

from polymux.capture.io.file_pool import Files, find_captures
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.file_summary import FileSummary, combine
from polymux.capture.packets.flow_filter import FlowFilter, endpoint_text, flow_endpoints
from polymux.capture.packets.indexer import FileIndex, FlowRefs, Range, index_file, index_range
from polymux.capture.pcapng.comments import hint_comment, read_hint
from polymux.capture.pcapng.repair import Repair, recover, repair
from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.split_index import plan, write_index
from polymux.capture.pcapng.writer import Missed, PcapngWriter
from polymux.capture.reader import Reading, read_sessions
from polymux.capture.synthesis.tcp_connection import TcpScribe
from polymux.capture.tcp.sessions import Batch, Piece, TcpSession, sessions_of

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
