"""The count of accesses to private names of other objects."""

from pathlib import Path

from tools.private_access import accesses


def test_names_of_other_modules_count_and_own_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "class Own:\n"
        "    __slots__ = ('_slot',)\n"
        "    def __init__(self, other):\n"
        "        self._own = other._theirs\n"
        "        other._slot = super()._base\n"
        "    @classmethod\n"
        "    def make(cls, pair):\n"
        "        return cls._made, pair._replace(), pair.__class__\n"
        "def peek(own):\n"
        "    return own._own, own._hidden\n"
    )
    assert accesses(tmp_path) == ["module.py:4: other._theirs", "module.py:10: own._hidden"]
