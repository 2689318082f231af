"""omnistreams Multiplexer: state, id history, payloads, rules and the protocol itself."""
