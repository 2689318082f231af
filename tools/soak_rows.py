"""The rows of the reliability table that a soak covers: the tests of each, and its figures.

A figure that depends on the duration of the soak is counted from what the tests print, and printed
beside the figure that the table requires.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A number in the lines that tests print: the pattern to find it, and the required value."""

    pattern: str  # its first group is the number
    unit: str
    required: int
    use_minimum: bool = False  # use the smallest match instead of the sum

    def of(self, output: str) -> str:
        numbers = [int(float(match)) for match in re.findall(self.pattern, output, re.M)]
        reached = (min(numbers) if self.use_minimum else sum(numbers)) if numbers else 0
        return f"{reached} {self.unit} of {self.required} required"


@dataclass(frozen=True)
class Row:
    """A row of the table: its tests and figures."""

    name: str
    title: str
    tests: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    alone: bool = False  # it measures time or memory: no other such row runs at the same time
    times: int = 1  # repetitions
    only_by_name: bool = False  # it takes too long: run only when it is named with --only


ATTACKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "R1": ("rapid open and reset", (1,)),
    "R2": ("provoked answers, socket unread", (2, 4)),
    "R3": ("streams opened and never accepted", (3,)),
    "R6": ("credit overrun", (6,)),
    "R8": ("oversized lengths", (8, 27)),
    "R9": ("stalled headers and handshakes", (9, 18)),
    "R10": ("dribble, empty and control floods", (10, 11, 12)),
    "R11": ("duplicate, reused and dead ids", (13, 14)),
    "R12": ("msgpack bombs", (16,)),
    "R20": ("decompression bomb", (22, 23)),
    "R24": ("budgets of a session and a server", (30,)),
    "ATK": ("credit arithmetic, slow readers, names, roles, texts, wrong wires",
            (5, 7, 17, 19, 20, 26, 28, 29)),
}  # fmt: skip

FLOWS = "tests/spark/streaming/test_open_sessions.py"
ROWS = [
    Row("R4", "slow reader without flow control", ("tests/attacks/test_hogs.py",),
        (Figure(r"^R4 .* in ([\d.]+) s$", "s a protocol", 60, use_minimum=True),), alone=True),
    Row("R17", "silent death", ("tests/attacks/test_silence.py",), alone=True),
    # The longest first, of those that run two at a time.
    Row("R13", "any bytes into any decoder; R14 wedges",
        ("tests/fuzz/test_fuzz.py",),
        (Figure(r"^pass .* inputs in (\d+) s", "s a target", 120, use_minimum=True),
         Figure(r"^R14 .*?: (\d+) mutations", "mutations for wedges", 1_000_000))),
    Row("R5", "hostile schedules", ("tests/stateful/test_hostile_schedules.py",
                                    "tests/stateful/test_starvation.py"),
        (Figure(r"^R5 .*?: (\d+) schedules", "schedules", 100_000),)),
    Row("R11", "ids exhausted (ATK-15)", ("tests/attacks/test_exhaustion.py",)),
    Row("R8", "lengths refused at the header; R10 work counted", ("tests/attacks/test_costs.py",)),
    Row("R7", "credit at the edges of 64 bits", ("tests/fuzz/test_credit.py",),
        (Figure(r"^R7 .*?: (\d+) inputs", "inputs", 10_000_000),)),
    Row("R15", "vectors cut at every byte", ("tests/protocols/test_vectors.py",)),
    Row("R16", "teardown races", ("tests/stateful/test_teardown_races.py",),
        (Figure(r"to depth (\d+)$", "deep", 8, use_minimum=True),)),
    Row("R18", "cancelled at every suspension", ("tests/aio/test_cancellation.py",)),
    Row("R22", "interop with the npm peers; ids used again",
        ("tests/interop", "tests/protocols/mplex/test_id_reuse.py")),
    Row("R23", "simulated conversations, 2,500 honest and 2,500 faulty a protocol",
        ("tests/testing/test_conversations.py",),
        (Figure(r"^R23 .*?: (\d+) honest", "honest", 12_500),
         Figure(r"^R23 .*?, (\d+) found", "faults found", 12_500))),
    Row("R24", "what a peer can make a session and a server hold",
        ("tests/aio/session/test_memory_bounds.py",)),
    Row("R25", "Minmux streams that only have credit, in a collector",
        ("tests/record/test_connection_floods.py::"
         "test_minmux_streams_that_only_have_credit_cost_a_collector_little",
         "tests/record/test_connection_floods.py::"
         "test_the_buffer_of_a_collector_bounds_streams_too"),
        (Figure(r"^R25 .*?: (\d+) streams", "streams", 32_000),), alone=True),
    Row("R26", "silent connections; caps on sessions in all and by address",
        ("tests/record/test_connection_floods.py::"
         "test_silent_connections_do_not_lock_out_newcomers",
         "tests/aio/test_connection_gate.py"),
        (Figure(r"^R26 .*?: (\d+) silent", "silent connections", 1000, use_minimum=True),),
        alone=True),
    Row("R27", "unfinished and silent TLS handshakes",
        ("tests/record/test_connection_floods.py::test_unfinished_tls_handshakes_are_bounded",
         "tests/record/test_connection_floods.py::test_silent_tls_connections_cost_little"),
        (Figure(r"^R27 .*?: (\d+) unfinished", "handshakes", 1000),), alone=True),
    Row("R28", "no descriptors: server, recorder, collector",
        ("tests/aio/transports/test_descriptors.py",
         "tests/record/test_connection_floods.py::"
         "test_at_the_limit_of_descriptors_a_recorder_forwards_what_it_accepts",
         "tests/record/test_connection_floods.py::"
         "test_at_the_limit_of_descriptors_a_collector_stays_durable"), alone=True),
    Row("R31", "connections that arrive together", ("tests/aio/transports/test_backlog.py",),
        (Figure(r"^R31 .*?: (\d+) connections", "connections", 600),), alone=True),
    Row("R32", "processes that share an address, and are killed one after another under load",
        ("tests/record/test_killed_workers.py", "tests/cli/test_processes.py",
         "tests/record/test_processes.py", "tests/record/collector/test_processes.py",
         "tests/aio/test_reuse_port.py"),
        (Figure(r"^R32 \w+: (\d+) kills", "kills", 300),), alone=True),
    Row("R33", "servers that take a Unix path", ("tests/aio/transports/test_unix_path.py",),
        (Figure(r"^R33 .*?: (\d+) races", "races", 1000),)),
    Row("R34", "the same sessions on asyncio, uvloop, trio and in threads",
        ("tests/doors", "tests/aio/test_uvloop.py", "tests/record/test_uvloop.py")),
    Row("R35", "relays, and what a replay repeats",
        ("tests/relay/test_bridge.py", "tests/relay/test_engine.py",
         "tests/relay/test_replay.py")),
    Row("R36", "properties of every protocol, of the scheduler, of 10,000 requests",
        ("tests/testing/test_properties.py", "tests/core/test_send_scheduler.py",
         "tests/core/test_compiled_equals_interpreted.py",
         "tests/aio/protocols/test_streamux_soak.py"), only_by_name=True),
    Row("D1", "recorder killed 100 times, collector 40 times",
        ("tests/record/test_kill.py", "tests/record/collector/test_kill.py")),
    Row("D2", "power loss", ("tests/capture/pcapng/test_power_loss.py",)),
    Row("D3", "full and failing disks, limits on disk space",
        ("tests/record/test_disk.py", "tests/record/collector/test_limits.py")),
    Row("D4", "torn and flipped captures; D5", ("tests/capture/pcapng/test_damaged_files.py",)),
    Row("D6", "rotation under kill", ("tests/record/test_rotation.py",
                                      "tests/capture/pcapng/test_rotation.py")),
    Row("D7", "replayed batches, 300 histories of kills and replays; D9 arrival orders, copies",
        (FLOWS, "tests/spark/sink/test_sink.py")),
    Row("D8", "collector, driver and workers killed, 10 times each",
        ("tests/record/collector/test_end_to_end.py",
         "tests/spark/batch/test_cluster_pipeline.py"), times=2),
    Row("D10", "split independence; D11 conservation",
        ("tests/analysis/session/test_splits.py", "tests/analysis/session/test_analyzer.py",
         "tests/spark/batch/test_conservation.py")),
    Row("D12", "clocks that step", ("tests/capture/tcp/test_reassembly.py",
                                    "tests/capture/tcp/test_sessions.py",
                                    "tests/capture/tcp/test_recording_order.py")),
    Row("D13", "memory of a worker, 4 GB with a session of 2 GB",
        ("tests/spark/batch/test_worker_memory.py",)),
    Row("D14", "two recorders and two collectors that share a directory, killed",
        ("tests/record/test_shared_directory.py", "tests/record/test_shared_kills.py"),
        (Figure(r"^D14 .*?: (\d+) kills", "kills", 200),)),
    Row("D15", "peers lost while the disk is full", ("tests/record/test_lost_peers.py",),
        (Figure(r"^D15 .*?: (\d+) lost peers", "lost peers", 50),)),
    Row("D16", "lakes that grow by runs, and runs that are killed",
        ("tests/spark/lake", "tests/spark/incremental"), only_by_name=True),
    Row("D17", "clusters that are killed, object stores, Spark Connect",
        ("tests/spark/batch/test_kills.py", "tests/spark/batch/test_object_store.py",
         "tests/spark/test_connect.py"), only_by_name=True),
    Row("R29", "output that is not read", ("tests/cli/test_stuck_output.py",),
        (Figure(r"^R29 .*?: (\d+) command", "commands", 6),)),
    Row("S1", "hostile names in the report; S2 self-contained",
        ("tests/report/test_browser.py", "tests/report/render/test_hostile_page.py",
         "tests/report/render/test_html.py", "tests/text/test_sanitize.py")),
    Row("S3", "report of 10^4 to 10^7 frames", ("tests/report/test_size.py",)),
    # Without what is in other rows.
    Row("S4", "special names; S5",
        ("tests/cli", *(f"--ignore=tests/cli/test_{name}.py" for name in
                        ("many_flows", "processes", "stuck_output")))),
    Row("S13", "10^6 flows of one packet", ("tests/cli/test_many_flows.py",),
        (Figure(r"^S13 .*? of (\d+) flows", "flows", 1_000_000, use_minimum=True),), alone=True),
    Row("S14", "web pages, allow lists, shared tokens, an audit log",
        ("tests/aio/transports/test_origin.py", "tests/aio/test_peer_identity.py",
         "tests/aio/test_token.py", "tests/cli/test_token_file.py",
         "tests/record/test_audit_log.py", "tests/cli/test_listening_options.py")),
    Row("S6", "hostile captures; S7", ("tests/capture/pcapng/test_scanner.py",
                                       "tests/capture/io/test_sources.py",
                                       "tests/analysis/session/test_hostile_captures.py")),
    Row("S8", "TLS matrix", ("tests/attacks/test_tls.py", "tests/aio/test_bad_input.py",
                             "tests/record/test_tls_contexts.py")),
    Row("S9", "audit", ("tests/tools/test_audit.py",)),
    Row("S10", "no secrets in captures or logs", ("tests/attacks/test_secrets.py",)),
    Row("S11", "limits explain themselves", ("tests/aio/test_limits.py",
                                             "tests/core/test_flood_guard.py")),
]  # fmt: skip
NOT_HERE = {"R19": "fairness: make bench"}
