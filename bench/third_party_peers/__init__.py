"""Programs that run third-party packages for the benchmark, in an environment of their own.

They cannot import polymux, which that environment does not have. `link.py` connects them to the
benchmark.
"""
