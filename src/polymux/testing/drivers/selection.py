"""The driver of each protocol."""

from polymux.testing.drivers.base import Driver, DuplexDriver
from polymux.testing.drivers.minmux import MinmuxDriver
from polymux.testing.drivers.omnistreams import OmnistreamsDriver
from polymux.testing.drivers.streamux import StreamuxDriver
from polymux.testing.drivers.yamux import YamuxDriver

DRIVERS: dict[str, type[Driver]] = {
    "mplex": DuplexDriver,
    "nerdbank": DuplexDriver,
    "omnistreams": OmnistreamsDriver,
    "streamux": StreamuxDriver,
    "minmux": MinmuxDriver,
    "yamux": YamuxDriver,
}


def driver_for(protocol: str) -> type[Driver]:
    """Return the driver class for a protocol name.

    Raises:
        KeyError: there is none.
    """
    if protocol not in DRIVERS:
        raise KeyError(f"no driver for {protocol}")
    return DRIVERS[protocol]
