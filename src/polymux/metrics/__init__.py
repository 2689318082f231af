"""Metrics of live sessions: a meter that sessions report to, and its Prometheus text.

    meter = polymux.metrics.Meter()
    server = await polymux.serve(handle, url, protocol="mplex", meter=meter)
    print(polymux.metrics.prometheus_text(meter).decode())

Labels are names of protocols, sides, limits and rules, never data that a peer has sent, so a peer
cannot increase their number.

`StateSocket` lets `polymux top` look at the sessions of a meter:

    async with polymux.metrics.StateSocket("unix:///run/user/1000/app.sock", meter.state):
        ...

Imports `aio` and `core` only.
"""

from polymux.metrics.families import Family, Sample
from polymux.metrics.meter import Meter
from polymux.metrics.prometheus import prometheus_text, register
from polymux.metrics.state_socket import StateSocket

__all__ = ["Family", "Meter", "Sample", "StateSocket", "prometheus_text", "register"]
