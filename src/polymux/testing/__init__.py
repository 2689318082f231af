"""Public batteries: what any protocol of polymux, or one of your own, can be checked with.

`check_protocol("mplex", runs=1000)` raises `Broken` with a seed when a property fails.
`honest_conversations` and `faulty_conversations` compare an observer with model peers that have
encoders of their own. Imports `protocols` and `core` only.
"""

from polymux.testing.conversations import MODELS, Tally, faulty_conversations, honest_conversations
from polymux.testing.properties import PROPERTIES, check_protocol
from polymux.testing.simulator import PropertyFailed, Simulation

__all__ = [
    "MODELS",
    "PROPERTIES",
    "PropertyFailed",
    "Simulation",
    "Tally",
    "check_protocol",
    "faulty_conversations",
    "honest_conversations",
]
