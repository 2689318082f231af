"""JUnit XML of a run, as CI systems read it: a test for each case, grouped by requirement."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from polymux.capture.io.atomic_write import write_atomically
from polymux.conform.results import CaseResult, Results
from polymux.core.conformance import Verdict
from polymux.core.errors import UnwritableOutput
from polymux.text.sanitize import escape_hidden

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """Text without characters that XML cannot hold, or that hide others."""
    lines = [escape_hidden(line) for line in text.split("\n")]
    return NOT_XML.sub("?", "\n".join(lines))


def junit_xml(results: Results, strict: bool = False) -> bytes:
    """The XML of one run. FAILED and WEDGED are failures; NON-STRICT too if `strict`."""
    failures = {id(result) for result in results.failures(strict)}
    skipped = [result for result in results.cases if result.verdict is Verdict.UNIMPLEMENTED]
    suite = ElementTree.Element(
        "testsuite",
        name=xml_text(f"polymux conform {results.protocol}, {results.role}"),
        tests=str(len(results.cases)),
        failures=str(len(failures)),
        errors="0",
        skipped=str(len(skipped)),
        time=f"{results.seconds:.3f}",
    )
    for result in results.cases:
        add_case(suite, result, id(result) in failures, results.peer)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root)


def add_case(suite: ElementTree.Element, result: CaseResult, failed: bool, peer: str) -> None:
    test = ElementTree.SubElement(
        suite,
        "testcase",
        classname=xml_text(f"{peer}.{result.case.requirement}"),
        name=result.case.id,
        time=f"{result.seconds:.3f}",
    )
    text = f"{result.verdict.value}: {result.detail}"
    if failed:
        failure = ElementTree.SubElement(test, "failure", message=xml_text(text),
                                         type=result.verdict.value)  # fmt: skip
        failure.text = xml_text(
            "\n".join(f"{line.seconds:9.6f} {line.sender:6} {line.text}" for line in result.log)
        )
    elif result.verdict is Verdict.UNIMPLEMENTED:
        ElementTree.SubElement(test, "skipped", message=xml_text(text))
    else:
        ElementTree.SubElement(test, "system-out").text = xml_text(text)


def check_junit(path: Path) -> None:
    """Find out whether `write_junit` could write there.

    Raises:
        UnwritableOutput: it could not.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        check_folder(path.parent)
    except OSError as problem:
        raise UnwritableOutput(f"{path}: cannot be written: {problem.strerror}") from None


def check_folder(folder: Path) -> None:
    """Find out whether a file can be made in a folder.

    Raises:
        OSError: it cannot.
    """
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_junit(path: Path, results: Results, strict: bool = False) -> None:
    """Write the XML of a run.

    Raises:
        UnwritableOutput: it cannot be written.
    """
    try:
        write_atomically(str(path), junit_xml(results, strict))
    except OSError as problem:
        raise UnwritableOutput(f"{path}: cannot be written: {problem.strerror}") from None
