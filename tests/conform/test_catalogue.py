"""Requirements and cases: complete, consistent, and written in a notation that can be encoded."""

from __future__ import annotations

from collections import Counter

import pytest

from polymux.conform.catalogue import NoSuchRequirement, all_requirements, cases_of, select
from polymux.conform.notation.payload import parse_frame
from polymux.conform.notation.selection import NOTATIONS
from polymux.core.conformance import Case, Outcome
from polymux.protocols.registry import create, protocol_names

# Rules that no requirement names, and why.
WITHOUT_REQUIREMENT = {
    "minmux.bad-item": "the items of a stream are a matter of the profile",
    "minmux.item-too-long": "the items of a stream are a matter of the profile",
}
WORDS = (">", "<", "!", "?", "alive", "react", "eof", "split", "mirror", "bare")


def all_cases() -> list[tuple[str, Case]]:
    return [(name, case) for name in protocol_names() for case in cases_of(name)]


def test_there_are_167_requirements_and_most_have_a_case() -> None:
    found = all_requirements()
    examined = {case.requirement for _, case in all_cases()}
    assert len(found) == 167
    assert len(examined) >= 130
    assert [one.id for one, count in Counter(found).items() if count > 1] == []


def test_a_requirement_has_a_case_or_says_why_it_cannot_have_one() -> None:
    examined = {case.requirement for _, case in all_cases()}
    for requirement in all_requirements():
        has_case = requirement.id in examined
        assert has_case != bool(requirement.without_case), requirement.id


def test_every_case_belongs_to_a_requirement_of_its_protocol() -> None:
    for name in protocol_names():
        known = {requirement.id for requirement, _ in select(name)}
        assert {case.requirement for case in cases_of(name)} <= known


def test_the_ids_of_cases_are_unique() -> None:
    for name in protocol_names():
        counts = Counter(case.id for case in cases_of(name))
        assert [case for case, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("name", protocol_names())
def test_every_rule_belongs_to_a_requirement(name: str) -> None:
    rules = {rule.name for rule in create(name).rules}
    named = {rule for requirement in all_requirements() for rule in requirement.rules}
    assert rules - named == {rule for rule in WITHOUT_REQUIREMENT if rule.startswith(f"{name}.")}
    known = {rule for other in protocol_names() for rule in map(str, rule_names(other))}
    assert named <= known


def rule_names(name: str) -> list[str]:
    return [rule.name for rule in create(name).rules]


@pytest.mark.parametrize("name", protocol_names())
def test_a_case_breaks_only_rules_of_its_protocol_and_knows_all_outcomes(name: str) -> None:
    rules = set(rule_names(name))
    for case in cases_of(name):
        assert set(case.breaks) <= rules, case.id
        assert set(case.verdicts) == set(Outcome), case.id
        assert case.level in (0, 1, 2), case.id


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", protocol_names())
def test_every_step_of_every_script_is_understood(name: str, side: int) -> None:
    for case in cases_of(name):
        options = {key: values[0] for key, values in case.options.items()}
        notation = NOTATIONS[name](options, side)
        for line in filter(None, map(str.strip, case.script.splitlines())):
            word, _, rest = line.partition(" ")
            assert word in WORDS, (case.id, line)
            if word == ">" and not rest.startswith("hex "):
                words = parse_frame(rest)
                if words.stream not in ("p", "pp"):
                    assert notation.encode(words), (case.id, line)
            elif word == ">":
                bytes.fromhex(rest[4:])
            elif word in "<!?" and rest != "closed":
                parse_frame(rest)


def test_requirements_are_chosen_by_id_group_case_and_rule() -> None:
    assert [found.id for found, _ in select("mplex", ["MPLEX-HDR-2"])] == ["MPLEX-HDR-2"]
    assert [found.id for found, _ in select("mplex", ["mplex-hdr"])] == [
        "MPLEX-HDR-1", "MPLEX-HDR-2", "MPLEX-HDR-3",
    ]  # fmt: skip
    [(requirement, [case])] = select("mplex", ["MPLEX-HDR-3/ten-bytes"])
    assert (requirement.id, case.name) == ("MPLEX-HDR-3", "ten-bytes")
    assert "MPLEX-HDR-2" in [found.id for found, _ in select("mplex", ["mplex.bad-flag"])]


def test_a_name_that_nothing_has_is_refused() -> None:
    with pytest.raises(NoSuchRequirement, match="no requirement, case or rule 'MPLEX-XYZ'"):
        select("mplex", ["MPLEX-XYZ"])


def test_cases_of_another_version_are_not_chosen() -> None:
    chosen = {case.id for _, cases in select("nerdbank:version=1") for case in cases}
    assert "NB-HS-1/wrong-magic" in chosen
    assert "NB-BP-1/window-of-10" not in chosen
