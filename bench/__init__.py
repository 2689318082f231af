"""Every figure beside its floor and its peers, measured in one run.

`python -m bench [kernels|captures|live|...]` prints a table and writes `bench/out/*.json`. Floors
(C, memcpy, raw sockets) and candidates take turns within the run, so that a busy machine slows all
of them alike: a ratio is worth more than any figure alone.
"""
