"""All requirements and cases, and the choice of those that a run needs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module

from polymux.core.conformance import GENERIC_REQUIREMENTS, Case, Requirement
from polymux.core.errors import PolymuxError
from polymux.protocols.registry import parse_protocol, protocol_names

# The values that an option has if a protocol string does not name it.
DEFAULT_OPTIONS = {
    "nerdbank": {"version": "3"},
    "omnistreams": {"numbering": "spec", "carrier": "length"},
    "yamux": {"dialect": "hashicorp"},
}


class NoSuchRequirement(PolymuxError):
    """A requirement, case or rule was named that the protocol does not have."""


@cache
def requirements_of(protocol: str) -> tuple[Requirement, ...]:
    """The requirements of a protocol, without the generic ones."""
    found: tuple[Requirement, ...] = _module(protocol).REQUIREMENTS
    return found


@cache
def cases_of(protocol: str) -> tuple[Case, ...]:
    """The cases of a protocol, those of generic requirements too."""
    found: tuple[Case, ...] = _module(protocol).CASES
    return found


def _module(protocol: str):  # type: ignore[no-untyped-def]  # a module has no better type
    return import_module(f"polymux.protocols.{protocol}.cases")


def all_requirements() -> list[Requirement]:
    """Every requirement, the generic ones first."""
    return [*GENERIC_REQUIREMENTS,
            *(found for name in protocol_names() for found in requirements_of(name))]  # fmt: skip


def applies(case: Case, protocol: str) -> bool:
    """Whether a case is for this protocol string: some are for one version or dialect only."""
    spec = parse_protocol(protocol)
    options = {**DEFAULT_OPTIONS.get(spec.name, {}), **spec.options}
    return all(options.get(name, "") in values for name, values in case.options.items())


def select(protocol: str, names: Iterable[str] = ()) -> list[tuple[Requirement, list[Case]]]:
    """The requirements of a protocol string with their cases, in the order of the catalogue.

    Args:
        protocol: the protocol string.
        names: ids of requirements or cases, beginnings of such ids (`MPLEX-HDR`), or names of
            rules; empty: all.

    Raises:
        NoSuchRequirement: nothing has one of these names.
    """
    name = parse_protocol(protocol).name
    cases = [case for case in cases_of(name) if applies(case, protocol)]
    wanted = list(names)
    chosen: list[tuple[Requirement, list[Case]]] = []
    matched: set[str] = set()
    for requirement in (*GENERIC_REQUIREMENTS, *requirements_of(name)):
        own = [case for case in cases if case.requirement == requirement.id]
        if wanted:
            hits = {text for text in wanted if _names(text, requirement)}
            single = {text for text in wanted for case in own if case.id == text}
            matched |= hits | single
            if not hits:
                own = [case for case in own if case.id in single]
                if not own:
                    continue
        chosen.append((requirement, own))
    for text in wanted:
        if text not in matched:
            raise NoSuchRequirement(
                f"{name} has no requirement, case or rule {text!r}; "
                f"polymux conform --list --protocol {name} shows them"
            )
    return chosen


def _names(text: str, requirement: Requirement) -> bool:
    """Whether the text names the requirement, a group that it belongs to, or a rule of it."""
    upper = text.upper()
    return (
        requirement.id == upper
        or requirement.id.startswith(upper.rstrip("-") + "-")
        or text in requirement.rules
    )
