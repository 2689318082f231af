"""The bit constants of each protocol stand for the rules they are named after."""

import ast
import re
from pathlib import Path

import pytest

import polymux.protocols
from polymux.protocols.registry import create, protocol_names

FOLDER = Path(polymux.protocols.__file__).parent


def bits(protocol: str) -> dict[str, int]:
    """Every constant given in hexadecimal in the protocol's files, by name."""
    found: dict[str, int] = {}
    for path in sorted((FOLDER / protocol).glob("*.py")):
        for match in re.finditer(
            r"^([A-Z_]+): Final\[i64\] = (0x[0-9A-F]+)$", path.read_text(), re.M
        ):
            if not match[1].startswith("MAX_"):
                found[match[1]] = ast.literal_eval(match[2])
    return found


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank", "omnistreams", "streamux", "yamux"])
def test_each_bit_stands_for_the_rule_it_is_named_after(protocol: str) -> None:
    rules = create(protocol).rules
    for name, bit in bits(protocol).items():
        index = bit.bit_length() - 1
        assert bit == 2**index
        expected = name.lower().replace("_", "-")
        assert rules[index].name == f"{protocol}.{expected}"


@pytest.mark.parametrize("protocol", protocol_names())
def test_no_two_rules_have_one_name_and_all_fit_a_verdict(protocol: str) -> None:
    rules = create(protocol).rules
    assert len({rule.name for rule in rules}) == len(rules) <= 61
