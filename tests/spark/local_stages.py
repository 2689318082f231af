"""The stages of the batch pipeline in this process, without Spark."""

from collections.abc import Sequence
from pathlib import Path

from polymux.analysis.options import AnalysisOptions
from polymux.capture import CaptureLimits
from polymux.spark.batch.analyze_stage import (
    FewNames,
    StageResult,
    analyze_task,
    plan_local_tasks,
)
from polymux.spark.batch.reference_shuffle import FlowSelection, IndexTotals


def analyze_here(totals: IndexTotals, staging: Path, tasks: Sequence[FlowSelection]) -> StageResult:
    """The analyze stage: these tasks, and those for the flows that they leave."""
    done = _run(totals.names, staging, tasks)
    if done.left_packets:
        done.add(_run(done.taken, staging, plan_local_tasks(totals)))
    return done


def _run(names: list[str], staging: Path, tasks: Sequence[FlowSelection]) -> StageResult:
    task = analyze_task(FewNames(names), str(staging), AnalysisOptions(), CaptureLimits())
    done = StageResult()
    for selection in tasks:
        done.add(task(selection))
    return done
