"""An Airflow DAG: every day, the captures of the day before as tables.

`POLYMUX_CAPTURES` and `POLYMUX_TABLES` are directories with a folder for each day, named like
2026-11-18. A day that is run again replaces its tables, all at once or not at all; a run that fails
leaves the former ones. A damaged capture fails no run: the tables are published, it is a row of
`captures`, and the command ends with the exit code 3. The same code without new tables is an error.
"""

import os
from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator

COMMAND = """
set -u
captures="$POLYMUX_CAPTURES/{{ ds }}"
if [ ! -d "$captures" ]; then
    echo "no captures of {{ ds }}"
    exit 99
fi
began="$(mktemp)"
code=0
polymux analyze "$captures" --out "$POLYMUX_TABLES/{{ ds }}" --master "$POLYMUX_MASTER" || code=$?
if [ "$code" -eq 3 ] && [ "$POLYMUX_TABLES/{{ ds }}/manifest.json" -nt "$began" ]; then
    echo "some captures could not be read to their end; see the table captures"
    code=0
fi
rm "$began"
exit "$code"
"""

with DAG(
    dag_id="polymux_daily",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
) as dag:
    BashOperator(
        task_id="analyze",
        bash_command=COMMAND,
        skip_on_exit_code=99,
        append_env=True,
        env={
            "POLYMUX_CAPTURES": os.environ.get("POLYMUX_CAPTURES", "/captures"),
            "POLYMUX_TABLES": os.environ.get("POLYMUX_TABLES", "/tables"),
            "POLYMUX_MASTER": os.environ.get("POLYMUX_MASTER", "local[*]"),
        },
    )
