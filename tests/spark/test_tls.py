"""Sessions inside TLS on Spark: same tables from key logs and secrets blocks, and no secret leaks.

One driver with an event log runs the batch job twice, the data source and a following query; the
tests read what it left.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.tls.protocols_inside import inside_tls, talk_of
from tests.analysis.tls.tls_peers import TlsPeers, write_capture
from tests.spark.conftest import RunDriver

PROGRAM = """
import json, sys
import polymux.spark
from polymux.analysis.output.table_digest import digest_tables
from polymux.spark.runtime.session import spark_session
from polymux.spark.streaming.query import start_following
from polymux.report import write_report

folder, = sys.argv[1:]
log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": "file://" + folder + "/events",
       "spark.eventLog.compress": "false"}
told = {}
with spark_session("local[2]", conf=log) as spark:
    keys, blocks = folder + "/keys", folder + "/blocks"
    done = polymux.spark.analyze(spark, folder + "/bare", folder + "/one", keys=keys, content=True)
    told["conserved"] = done.conserved
    polymux.spark.analyze(spark, blocks, folder + "/two", content=True)
    told["one"], told["two"] = digest_tables(folder + "/one"), digest_tables(folder + "/two")
    polymux.spark.register(spark)
    for name, options in (("bare", {"keys": keys}), ("blocks", {}), ("bare", {})):
        read = spark.read.format("polymux").options(**options).option("table", "sessions")
        rows = read.load(folder + "/" + name).select("protocol", "tls", "tls_unopened").collect()
        told.setdefault("read", []).append([list(row) for row in rows])
    query = start_following(spark, folder + "/blocks", folder + "/three", available_now=True)
    query.awaitTermination()
    rows = spark.read.parquet(folder + "/three/sessions", folder + "/three/open_sessions")
    told["followed"] = [row.protocol for row in rows.select("protocol").collect()]
write_report(folder + "/one", folder + "/one/report.html")
print(json.dumps(told))
"""


class SparkRun:
    """Captures without and with secrets, what the driver said, and the secrets."""

    def __init__(self, folder: Path, run_driver: RunDriver) -> None:
        conversation = inside_tls(talk_of("mplex", 3))
        self.folder = folder
        self.secrets = [
            line.split()[2]
            for line in conversation.key_log.splitlines()
            if not line.startswith((b"#", b"EXPORTER"))
        ]
        for name in ("bare", "blocks", "keys", "events"):
            (folder / name).mkdir()
        write_capture(folder / "bare" / "talk.pcapng", conversation)
        last = len(conversation.packets())
        write_capture(
            folder / "blocks" / "talk.pcapng", conversation, secrets={last: conversation.key_log}
        )
        other = TlsPeers().finish().key_log
        for number in range(1000):
            text = conversation.key_log if number == 617 else other
            (folder / "keys" / f"{number}.log").write_bytes(text)
        self.told: dict[str, Any] = run_driver(PROGRAM, str(folder), loss=("WARN",))


@pytest.fixture(scope="module")
def spark_run(tmp_path_factory: pytest.TempPathFactory, run_driver: RunDriver) -> SparkRun:
    return SparkRun(tmp_path_factory.mktemp("tls"), run_driver)


def test_key_logs_and_secrets_blocks_give_the_same_tables(spark_run: SparkRun) -> None:
    told = spark_run.told
    assert told["conserved"]
    assert told["one"] == told["two"]


def test_the_data_source_and_following_open_sessions(spark_run: SparkRun) -> None:
    opened = [["mplex", "1.3 TLS_AES_256_GCM_SHA384", 0]]
    closed = [[None, "1.3 TLS_AES_256_GCM_SHA384", None]]
    assert spark_run.told["read"] == [opened, opened, closed]
    assert spark_run.told["followed"] == ["mplex"]


def test_no_table_report_checkpoint_or_event_log_has_a_secret(spark_run: SparkRun) -> None:
    read = 0
    for path in spark_run.folder.rglob("*"):
        if path.is_file() and path.parent.name not in ("blocks", "keys"):
            data = path.read_bytes()
            if path.suffix == ".gz":
                data = gzip.decompress(data)
            read += 1
            for secret in spark_run.secrets:
                assert secret[:24] not in data, path
                assert bytes.fromhex(secret.decode()) not in data, path
    assert read > 20
    assert any((spark_run.folder / "events").iterdir())
