"""Sessions and streams have the same names whichever way they are used."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import polymux
import polymux.anyio
import polymux.sync

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ENTRY = re.compile(
    r"^\.\. autoclass:: polymux\.(\w+)\(\)\n   :members: ((?:.*\n)(?:      .*\n)*)", re.M
)
DOCUMENTED = {name: re.findall(r"\w+", members) for name, members in ENTRY.findall(API)}


@pytest.mark.parametrize("door", [polymux.sync, polymux.anyio], ids=lambda door: door.__name__)
@pytest.mark.parametrize("kind", [name for name in DOCUMENTED if hasattr(polymux.sync, name)])
def test_a_class_has_what_it_has_in_polymux(door: object, kind: str) -> None:
    assert not [name for name in DOCUMENTED[kind] if not hasattr(getattr(door, kind), name)]


@pytest.mark.parametrize("door", [polymux.sync, polymux.anyio], ids=lambda door: door.__name__)
def test_the_keywords_of_a_call_are_those_of_polymux(door: object) -> None:
    for kind in DOCUMENTED:
        for name in DOCUMENTED[kind]:
            theirs = getattr(getattr(polymux, kind), name)
            ours = getattr(getattr(door, kind, None), name, None)
            if inspect.isfunction(theirs) and inspect.isfunction(ours):
                expected = set(inspect.signature(theirs).parameters)
                renamed = {"data", "item", "timeout"}  # anyio has `item`
                assert expected - set(inspect.signature(ours).parameters) <= renamed, (kind, name)


def test_every_class_of_a_door_is_in_the_others() -> None:
    extra = {"AnyStream"}
    assert set(polymux.anyio.__all__) - extra == set(polymux.sync.__all__)
    assert set(polymux.sync.__all__) <= set(polymux.__all__)
