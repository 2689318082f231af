"""Attacks by family: each module lists its attacks; `ALL` is every one of them."""

from tests.attacks.families import answers, credit, floods, manners, openings, sizes
from tests.attacks.runner import Attack

FAMILIES = (openings, answers, credit, sizes, floods, manners)
ALL: list[Attack] = sorted(
    (attack for family in FAMILIES for attack in family.attacks()),
    key=lambda attack: attack.number,
)
