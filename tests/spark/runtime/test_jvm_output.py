"""What Java prints becomes log records, and the reason why it did not start."""

import logging
import os

import pytest

from polymux.spark.runtime.jvm_output import (
    MAX_LINE_BYTES,
    JvmOutput,
    failure_reason,
    level_of,
    on_interrupt,
)


def printed(text: bytes) -> JvmOutput:
    """The output after a Java has printed this and ended."""
    output = JvmOutput()
    with output.descriptor() as out:
        os.write(out, text)
    output.reason()  # waits for the end
    return output


def test_lines_keep_the_level_java_gave_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "polymux.spark")
    printed(b"ERROR Shell: no disk\n\tat a.b.C\nCaused by: x\nWARN Utils: slow\nhello\n")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", "ERROR Shell: no disk"),
        ("ERROR", "\tat a.b.C"),
        ("ERROR", "Caused by: x"),
        ("WARNING", "WARN Utils: slow"),
        ("INFO", "hello"),
    ]


def test_errors_of_tasks_that_ctrl_c_has_cancelled_are_no_errors_for_the_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "polymux.spark")
    output = JvmOutput()
    with output.descriptor() as out:
        on_interrupt()
        os.write(out, b"ERROR TaskContextImpl: Error in TaskCompletionListener\nat a.b.C\n")
    output.reason()  # waits for the end
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_the_note_about_incubator_modules_is_no_warning() -> None:
    line = "WARNING: Using incubator modules: jdk.incubator.vector"
    assert level_of(line, logging.ERROR) == logging.DEBUG


def test_sparks_own_layout_is_read_too() -> None:
    assert level_of("26/11/15 21:06:10 WARN Master: x", logging.INFO) == logging.WARNING


def test_a_line_without_end_does_not_grow() -> None:
    lines = printed(b"x" * (2 * MAX_LINE_BYTES - 5) + b"\nend\n").lines
    assert [len(line) for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES - 5, 3]


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert printed(b"\xff\n").lines[0] == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], ""),
        (["", "all is well"], "all is well"),
        (
            ["Error occurred during initialization of VM", "Could not reserve enough space"],
            "Error occurred during initialization of VM: Could not reserve enough space",
        ),
        (
            ["Using Spark", "Exception in thread main java.io.IOException: gone", "\tat x"],
            "Exception in thread main java.io.IOException: gone",
        ),
        (["java.net.BindException: Cannot assign", "bye"], "java.net.BindException: Cannot assign"),
    ],
)
def test_the_first_complaint_is_the_reason(lines: list[str], reason: str) -> None:
    assert failure_reason(lines) == reason
