"""Two Minmux endpoints and a link that delivers when asked."""

from polymux.core.endpoint import Endpoint
from polymux.core.events import Credit, Data, Event
from polymux.core.limits import Limits
from polymux.protocols.minmux.item_codecs import Codec
from polymux.protocols.minmux.profile import Profile, byte_profile
from polymux.protocols.minmux.protocol import Minmux

DIALER, ACCEPTOR = 0, 1


class Pair:
    """Two endpoints and a link that delivers when asked. The dialer reads even streams."""

    def __init__(self, profile: Profile | None = None, yielding: bool = True) -> None:
        self.profile = profile if profile is not None else byte_profile()
        implementations = [Minmux(Limits(), side, self.profile, True, yielding) for side in (0, 1)]
        self.implementations = implementations
        self.dialer, self.acceptor = (
            Endpoint(implementation, side) for side, implementation in enumerate(implementations)
        )

    def pass_on(self) -> tuple[list[Event], list[Event]]:
        """Deliver everything. Return the events of the dialer and of the acceptor."""
        seen: tuple[list[Event], list[Event]] = ([], [])
        while True:
            there, back = self.dialer.data_to_send(), self.acceptor.data_to_send()
            if not there and not back:
                return seen
            for end, data, events in (
                (self.acceptor, there, seen[1]),
                (self.dialer, back, seen[0]),
            ):
                if data:
                    came = end.receive(data, 0.0)
                    events += came
                    for event in came:
                        if isinstance(event, Credit) and event.stream is not None:
                            end.resume(event.stream)


def profile_of(items: Codec, last: Codec | None = None, endless: bool = False) -> Profile:
    profile = Profile()
    profile.assign(0, items, last, endless)
    return profile


def content(events: list[Event]) -> list[bytes]:
    return [bytes(event.data) for event in events if isinstance(event, Data)]
