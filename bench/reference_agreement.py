"""Check that the C reference agrees with polymux: a floor that validates less is no floor."""

from __future__ import annotations

from bench.byte_traffic import Step, Traffic, random_frames
from bench.reference import Reference

from polymux.core.observer import Observer
from polymux.protocols.registry import create


def observe(protocol: str, steps: list[Step]) -> tuple[dict[str, int], list[int]]:
    """Violations by rule and rows by verdict, from polymux."""
    observer = Observer(create(protocol), True)
    for side, data in steps:
        observer.feed(side, data, 0)
    found: dict[str, int] = {}
    for violation in observer.take_violations():
        found[violation.rule.name] = found.get(violation.rule.name, 0) + 1
    verdicts = [0, 0, 0]
    assert observer.rows is not None
    for batch in observer.rows.take():
        for row in range(batch.used):
            verdicts[batch.verdict[row]] += 1
    return found, verdicts


def observe_in_c(
    reference: Reference, protocol: str, steps: list[Step]
) -> tuple[dict[str, int], list[int]]:
    """The same from the C reference."""
    book = create(protocol)
    loop = reference.loop(protocol, book.finding_mask)
    try:
        for side, data in steps:
            loop.feed(side, data, 0)
        counts, verdicts = loop.counts()
    finally:
        loop.close()
    found = {rule.name: count for rule, count in zip(book.rules, counts, strict=False) if count}
    return found, verdicts


def check_agreement(reference: Reference, traffic: Traffic) -> int:
    """Raise AssertionError if the two differ. Return the number of violations."""
    total = 0
    name = traffic.protocol
    for steps in (random_frames(name), [*traffic.opening, (0, traffic.content)]):
        ours, theirs = observe(name, steps), observe_in_c(reference, name, steps)
        assert ours == theirs, f"{name}: polymux found {ours}, the C reference {theirs}"
        total += sum(ours[0].values())
    return total
