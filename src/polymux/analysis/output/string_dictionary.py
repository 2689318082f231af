# mypyc: compiled
"""Dictionary encoding of stream labels."""

from mypy_extensions import i64


class StringDictionary:
    """Distinct strings in order of first use, as an Arrow dictionary requires.

    `total_length` is the sum of their lengths.
    """

    def __init__(self) -> None:
        self.strings: list[str] = []
        self.indices: dict[str, int] = {}
        self.total_length: i64 = 0

    def index_of(self, string: str) -> i64:
        """The index of a string, which is appended if it is new."""
        index = self.indices.get(string)
        if index is None:
            index = len(self.strings)
            self.indices[string] = index
            self.strings.append(string)
            self.total_length += len(string)
        return index
