"""Live sessions without an event loop: what every door to them has in common.

A session is fed with bytes and timers, and its verbs are coroutines that wait for nothing but what
`runtime.Runtime` makes. A door (`polymux.aio` is one) implements a `Runtime`, opens connections,
and runs the coroutines. This package imports `protocols`, `core`, `text` and `malloc`.
"""
