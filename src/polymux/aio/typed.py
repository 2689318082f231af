"""A door for each protocol, so that type checkers know its own session class.

polymux.streamux.connect(url) is polymux.connect(url, protocol="streamux") with a better type.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

from .connect import Connecting, connect
from .minmux import MinmuxSession
from .nerdbank import NerdbankSession
from .omnistreams import OmnistreamsSession
from .server import Server, serve
from .session import Session
from .streamux import StreamuxSession

S = TypeVar("S", bound=Session)


class Protocol(Generic[S]):
    """One protocol, to connect and to serve. `options` is what follows its name in a protocol
    string: `version=2`, `length_bits=10,id_bits=4`. The other arguments are those of
    `polymux.connect` and `polymux.serve`."""

    def __init__(self, name: str, kind: type[S]) -> None:
        self.name = name
        self.kind = kind

    def __repr__(self) -> str:
        return f"<polymux protocol {self.name}>"

    def connect(self, url: str, options: str = "", **arguments: Any) -> Connecting[S]:
        made = connect(url, protocol=self._text(options), **arguments)
        return cast(Connecting[S], made)

    async def serve(
        self,
        handler: Callable[[S], Awaitable[None]],
        url: str,
        options: str = "",
        **arguments: Any,
    ) -> Server:
        return await serve(handler, url, protocol=self._text(options), **arguments)

    def _text(self, options: str) -> str:
        return f"{self.name}:{options}" if options else self.name


mplex = Protocol("mplex", Session)
nerdbank = Protocol("nerdbank", NerdbankSession)
omnistreams = Protocol("omnistreams", OmnistreamsSession)
streamux = Protocol("streamux", StreamuxSession)
minmux = Protocol("minmux", MinmuxSession)
