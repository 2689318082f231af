# mypyc: compiled
"""Labels of streams that rows name by their place."""

from mypy_extensions import i64


class LabelPlaces:
    """Each label once, in the order they came: a dictionary that is written must not repeat itself.
    `octets` is how long they are together."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.places: dict[str, int] = {}
        self.octets: i64 = 0

    def of(self, label: str) -> i64:
        """Where a label stands, at the end if it is new."""
        place = self.places.get(label)
        if place is None:
            place = len(self.labels)
            self.places[label] = place
            self.labels.append(label)
            self.octets += len(label)
        return place
