"""An Airflow DAG: every day, what is new among the captures into a lake of tables, and its upkeep.

`POLYMUX_CAPTURES` is a directory or URL to which captures are added, `POLYMUX_LAKE` the directory
or URL of the lake, of `POLYMUX_FORMAT`; days older than `POLYMUX_KEEP_DAYS` leave it. What is empty
is left out: `POLYMUX_EXCHANGE`, a directory that all workers share, which a lake on an object store
needs on a cluster; `POLYMUX_CATALOG`, the SQL catalog of Iceberg tables, without which that is a
file of this machine; `POLYMUX_KEYS`, the key logs of TLS sessions.

A run that fails changes nothing, and can be run again, as can one that has succeeded. A damaged
capture fails no run: the version is committed, the capture is a row of `captures`, and the command
ends with the exit code 3, as it does if packets were left out, of sessions whose captures are gone.
The same code without a new version is an error.
"""

import os
from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator

APPEND = """
set -u
newest() { polymux lake history "$POLYMUX_LAKE" --json 2>/dev/null | tail -n 1; }
before="$(newest)"
code=0
polymux analyze "$POLYMUX_CAPTURES" --out "$POLYMUX_LAKE" --append --format "$POLYMUX_FORMAT" \
    --master "$POLYMUX_MASTER" ${POLYMUX_EXCHANGE:+--exchange "$POLYMUX_EXCHANGE"} \
    ${POLYMUX_CATALOG:+--catalog "$POLYMUX_CATALOG"} ${POLYMUX_KEYS:+--keys "$POLYMUX_KEYS"} \
    || code=$?
if [ "$code" -eq 3 ] && [ "$(newest)" != "$before" ]; then
    echo "some captures could not be read to their end, or packets were left out; see above"
    code=0
fi
exit "$code"
"""

MAINTAIN = """
set -eu
upkeep() { polymux lake "$@" ${POLYMUX_CATALOG:+--catalog "$POLYMUX_CATALOG"}; }
upkeep compact "$POLYMUX_LAKE"
upkeep expire "$POLYMUX_LAKE" --keep "$POLYMUX_KEEP_DAYS"
upkeep vacuum "$POLYMUX_LAKE"
"""

SETTINGS = {
    "POLYMUX_CAPTURES": "/captures",
    "POLYMUX_LAKE": "/lake",
    "POLYMUX_FORMAT": "parquet",
    "POLYMUX_MASTER": "local[*]",
    "POLYMUX_KEEP_DAYS": "30",
    "POLYMUX_EXCHANGE": "",
    "POLYMUX_CATALOG": "",
    "POLYMUX_KEYS": "",
}

with DAG(
    dag_id="polymux_lake",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=10),
        "append_env": True,
        "env": {name: os.environ.get(name, value) for name, value in SETTINGS.items()},
    },
) as dag:
    append = BashOperator(task_id="append", bash_command=APPEND)
    maintain = BashOperator(task_id="maintain", bash_command=MAINTAIN)
    append >> maintain
