"""Benchmarks: every figure with its floors and its peers, measured in the same run.

`python -m bench [kernels|captures|live|...]` prints a table and writes `bench/out/*.json`. A floor
is the fastest way to do the same work (C, memcpy, raw sockets). Floors and candidates alternate
within a run, so that other load on the machine affects them equally: ratios are more reliable than
absolute figures.
"""
