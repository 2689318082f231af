"""Captures: reading and writing pcapng, indexing, TCP reassembly.

`read_sessions` is the main entry point: it takes capture files and yields `TcpSession` objects. Its
steps can be used separately, which is what the Spark pipeline does: `plan_ranges` divides a file
into ranges, `index_range` turns a range into `FlowRefs` rows, and `sessions_of` turns all rows of
one flow into sessions.

Imports only `core` and `malloc`. Modules that handle every packet are compiled.
"""

from polymux.capture.io.discovery import find_captures
from polymux.capture.io.file_pool import FilePool
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.file_summary import FileSummary, merge_summaries
from polymux.capture.packets.flows import FlowFilter, SensorNaming, endpoint_text, flow_endpoints
from polymux.capture.packets.indexer import FileIndex, FileRange, FlowRefs, index_file, index_range
from polymux.capture.pcapng.comments import hint_comment, read_hint
from polymux.capture.pcapng.repair import Repair, recover, repair
from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.split_index import plan_ranges, write_index
from polymux.capture.pcapng.writer import PcapngWriter, WriteLoss
from polymux.capture.reader import CaptureReader, read_sessions
from polymux.capture.synthesis.tcp_connection import TcpConnectionWriter
from polymux.capture.tcp.sessions import StreamBatch, StreamPiece, TcpSession, sessions_of

__all__ = [
    "CaptureLimits",
    "CaptureReader",
    "FileIndex",
    "FilePool",
    "FileRange",
    "FileSummary",
    "FlowFilter",
    "FlowRefs",
    "PcapngWriter",
    "Repair",
    "RotatingWriter",
    "SensorNaming",
    "StreamBatch",
    "StreamPiece",
    "TcpConnectionWriter",
    "TcpSession",
    "WriteLoss",
    "endpoint_text",
    "find_captures",
    "flow_endpoints",
    "hint_comment",
    "index_file",
    "index_range",
    "merge_summaries",
    "plan_ranges",
    "read_hint",
    "read_sessions",
    "recover",
    "repair",
    "sessions_of",
    "write_index",
]
