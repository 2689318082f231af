"""Why peers in other languages may be ahead: a sentence for each, shown where a target is missed.

A reason holds for every line that its peer is compared in. What holds for one line only belongs to
its floor (`Floor.why`).
"""

from __future__ import annotations

GO = (
    "Both of its ends are compiled Go, whose goroutines run on all cores and cost no interpreter; "
    "each end of polymux is one thread, in which tasks in Python await every stream and message."
)
REASONS = {
    "Go HTTP/2": GO,
    "Go hashicorp/yamux": GO,
    "Go xtaci/smux": GO,
    "nghttp2 (h2load, nghttpd)": (
        "Both of its ends are C without an application: h2load has no task, future or object for a "
        "request, and nghttpd answers from its cache. A request of polymux is awaited by a task in "
        "Python and answered by another."
    ),
    "ssh -L": (
        "Both of its ends are C, which moves bytes between two sockets in one loop; each end of "
        "the tunnel is one thread of Python, in which tasks await every piece of a connection."
    ),
}


def reason_for(peer: str) -> str:
    """Why this peer may be ahead; "" if that is not known."""
    return REASONS.get(peer, "")
