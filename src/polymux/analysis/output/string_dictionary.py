# mypyc: compiled
"""Labels of streams that rows name by their place."""

from mypy_extensions import i64


class StringDictionary:
    """Each label once, in the order they came: a dictionary that is written must not repeat itself.
    `bytes` is how long they are together."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self.indices: dict[str, int] = {}
        self.total_length: i64 = 0

    def index_of(self, string: str) -> i64:
        """Where a label stands, at the end if it is new."""
        place = self.indices.get(string)
        if place is None:
            place = len(self.strings)
            self.indices[string] = place
            self.strings.append(string)
            self.total_length += len(string)
        return place
