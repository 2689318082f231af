"""Checks for protocol implementations: those of polymux, or one of your own.

`check_protocol("mplex", runs=1000)` runs simulated connections and raises `PropertyFailed`, with
the seed, if a property does not hold. `honest_conversations` and `faulty_conversations` compare the
reports of an observer with model peers that have their own encoders. Imports only `protocols` and
`core`.
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
