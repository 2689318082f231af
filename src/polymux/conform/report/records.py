"""Results as plain data: the JSON of `polymux conform`, and of the runs in a folder of pages."""

from __future__ import annotations

from polymux.conform.catalogue import applies, cases_of, requirements_of
from polymux.conform.results import CaseResult, Results
from polymux.core.conformance import GENERIC_REQUIREMENTS, Case, Requirement
from polymux.protocols.registry import parse_protocol

Record = dict[str, object]


def case_record(result: CaseResult) -> Record:
    """One case, without its log."""
    case = result.case
    return {
        "case": case.id,
        "requirement": case.requirement,
        "level": case.level,
        "verdict": result.verdict.value,
        "outcome": result.outcome.value if result.outcome is not None else None,
        "detail": result.detail,
        "closing": result.closing or None,
        "seconds": round(result.seconds, 3),
        "capture": result.capture or None,
        "violations": [{"sender": sender, "rule": rule} for sender, rule in result.violations],
    }


def log_record(result: CaseResult) -> list[Record]:
    """The wire log of a case."""
    return [
        {"seconds": round(line.seconds, 6), "sender": line.sender, "text": line.text}
        for line in result.log
    ]


def summary_record(results: Results) -> Record:
    """The whole run: what was run, and how many cases have which verdict."""
    return {
        "peer": results.peer,
        "protocol": results.protocol,
        "role": results.role,
        "level": results.level,
        "cooperation": results.cooperation,
        "cases": len(results.cases),
        "verdicts": {verdict.value: count for verdict, count in results.counts().items()},
        "note": results.note or None,
        "seconds": round(results.seconds, 3),
    }


def run_record(results: Results) -> Record:
    """A run with all its cases and their logs."""
    return {
        **summary_record(results),
        "results": [
            {**case_record(result), "script": result.case.script.strip(), "log": log_record(result)}
            for result in results.cases
        ],
    }


def catalogue_records(protocol: str) -> list[Record]:
    """The requirements of a protocol string, with their cases or why there are none."""
    name = parse_protocol(protocol).name
    return [
        requirement_record(requirement, name, protocol)
        for requirement in (*GENERIC_REQUIREMENTS, *requirements_of(name))
    ]


def requirement_record(requirement: Requirement, name: str, protocol: str) -> Record:
    own = [case for case in cases_of(name) if case.requirement == requirement.id]
    usable = [case for case in own if applies(case, protocol)]
    reason = requirement.without_case
    if own and not usable:
        reason = f"its cases are for {option_text(own)}"
    return {
        "requirement": requirement.id,
        "obligation": requirement.obligation.value,
        "sentence": requirement.sentence,
        "rules": list(requirement.rules),
        "cases": [{"case": case.id, "level": case.level} for case in usable],
        "without_case": reason or None,
    }


def option_text(cases: list[Case]) -> str:
    """The protocol options for which cases apply: `version=1 or 2`."""
    found = {
        f"{key}={' or '.join(values)}" for case in cases for key, values in case.options.items()
    }
    return ", ".join(sorted(found))
