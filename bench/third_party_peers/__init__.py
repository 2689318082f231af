"""Programs of the benchmark that run packages of others, in an environment of their own.

They may import nothing of polymux: that environment does not have it. `link.py` is the line
between them and the benchmark.
"""
