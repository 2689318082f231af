"""`pipe`: two sessions in one process, connected without a network."""

from typing import Unpack, overload

from polymux.aio.runtime import current_runtime
from polymux.core.limits import Limits, Timeouts
from polymux.live.factory import MINMUX, NERDBANK, OMNISTREAMS, STREAMUX, YAMUX, PipeOptions
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.protocols.streamux import StreamuxSession
from polymux.live.protocols.yamux import YamuxSession
from polymux.live.session.session import Session
from polymux.live.transports.memory import pipe_maker


@overload
async def pipe(
    protocol: NERDBANK, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[NerdbankSession, NerdbankSession]: ...
@overload
async def pipe(
    protocol: OMNISTREAMS, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[OmnistreamsSession, OmnistreamsSession]: ...
@overload
async def pipe(
    protocol: STREAMUX, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[StreamuxSession, StreamuxSession]: ...
@overload
async def pipe(
    protocol: MINMUX, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[MinmuxSession, MinmuxSession]: ...
@overload
async def pipe(
    protocol: YAMUX, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[YamuxSession, YamuxSession]: ...
@overload
async def pipe(
    protocol: str, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[Session, Session]: ...
async def pipe(
    protocol: str,
    *,
    other: str | None = None,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
) -> tuple[Session, Session]:
    """Connect two sessions in this process, without a network.

    Busy polling is off. If the call is cancelled or raises, both sessions are aborted.

    Args:
        protocol: Protocol string of the dialer, and of the acceptor unless `other` is given.
        other: Protocol string of the acceptor.
        limits: Limits of both sessions; `Limits()` by default.
        timeouts: Timeouts of both sessions in seconds; `Timeouts()` by default.

    Returns:
        The dialer's session and the acceptor's, after their handshake.

    Raises:
        SessionClosed: The handshake failed, for instance because the two strings do not match.
        PolymuxError: A protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    return await pipe_maker(protocol, other, limits, timeouts, runtime=current_runtime)()
