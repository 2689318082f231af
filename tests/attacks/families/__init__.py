"""Attacks by family: each module lists its attacks; `ALL` is every one of them."""

from tests.attacks.families import (
    answers,
    budgets,
    credit,
    floods,
    manners,
    openings,
    sizes,
    yamux,
)
from tests.attacks.runner import Attack

FAMILIES = (openings, answers, credit, sizes, floods, manners, yamux, budgets)
ALL: list[Attack] = sorted(
    (attack for family in FAMILIES for attack in family.attacks()),
    key=lambda attack: attack.number,
)
