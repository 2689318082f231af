"""`OneOf`: one of several processes that do the same work, and its share of what they have."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OneOf:
    """Which of several processes this one is: `index`, from 0, of `count`."""

    index: int = 0
    count: int = 1

    def share(self, total: int) -> int:
        """Return this process's part of `total`. The parts of all processes add up to it."""
        return total // self.count + (self.index < total % self.count)


ALONE = OneOf()
