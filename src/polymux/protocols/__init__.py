"""The rule books: one file a protocol (frames, rules, wire, law, bookkeeping, verbs), and the
registry that turns a protocol string such as `nerdbank:version=2` into one of them.

Imports only `core`. Everything above may import this.
"""
