"""The properties of `polymux.testing`, for Minmux with every item format and with reuse."""

from pathlib import Path

import pytest

from polymux.core import connection
from polymux.testing import PROPERTIES

FOLDER = Path(__file__).parent.parent.parent / "vectors" / "minmux"
RUNS = 200 if not connection.__file__.endswith(".py") else 12


@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
@pytest.mark.parametrize("profile", ["shapes", "named", "reuse"])
def test_the_battery(profile: str, check: object) -> None:
    assert callable(check)
    check(f"minmux:profile={FOLDER}/{profile}.toml", range(RUNS))
