"""Streamux: initiator negotiation, validation, state, rules and the protocol itself."""
