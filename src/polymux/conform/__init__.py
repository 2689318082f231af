"""The conformance tester: examines a peer by cases, as dialer or as acceptor.

The cases are data in `polymux.protocols`, next to the rules they belong to. An engine runs their
scripts over a connection that an observer watches; each connection can be written as a capture.
`polymux.testing.conform` is the interface for Python programs, `polymux conform` the command.

Imports `aio`, `capture` and what is below them; the report of a run as HTML needs jinja2.
"""
