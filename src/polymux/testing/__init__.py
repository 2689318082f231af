"""Public batteries: what any protocol of polymux, or one of your own, can be checked with.

`check_protocol("mplex", runs=1000)` raises `Broken` with a seed when a property fails. Imports
`protocols` and `core` only.
"""

from .checks import CHECKS, check_protocol
from .simulator import Broken, World

__all__ = ["CHECKS", "Broken", "World", "check_protocol"]
