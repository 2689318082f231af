"""Under POLYMUX_NO_SKIP=1 a skipped test is a failed one: CI has every outside tool.

Property tests try the same cases every time, however slow the machine is; with POLYMUX_SOAK they
try others each time.

The outputs of every module are searched for the secrets of its TLS sessions (`secret_watch`).

In several processes (`-n`) tests are shared out as `processes` says.
"""

import gc
import os
import signal
from typing import Any

import hypothesis
import pytest
from tests.processes import Units, rank
from tests.secret_watch import no_output_has_a_secret, note_report

__all__ = ["no_output_has_a_secret"]  # a fixture of every module
ALLOWED_SKIPS = ("runs interpreted", "only in the soak")


def pytest_configure() -> None:
    """A shell starts what it runs in the background deaf to interrupts, and so would be every
    program that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # in a process of pytest-xdist
        items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units:
    return Units(config, log)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # later collections skip what exists by now


if hypothesis.settings.get_current_profile_name() != "mutants":  # which tools.mutants has chosen
    hypothesis.settings.register_profile(
        "suite",
        deadline=None,
        derandomize=not os.environ.get("POLYMUX_SOAK"),
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    note_report(report)
    if report.skipped and os.environ.get("POLYMUX_NO_SKIP") == "1":
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"skipped where no skip is allowed: {reason}"
    return report
