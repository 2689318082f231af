"""Commands that run in several processes (`--processes`): their parent, and its workers.

The parent binds the addresses and starts the same command again, once for each worker, which
inherits the listening sockets and a socket to its parent, the link. The parent serves nothing
itself: it starts workers that have died again, adds up what they count, and ends them.

The link has lines of JSON (`worker`, `supervisor`). Its end in a worker is the request to stop,
so workers stop in good order also when their parent was killed.
"""
