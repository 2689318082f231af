"""Entry points for each protocol: its options as keywords, and its session class as result type.

`polymux.nerdbank.connect(url, version=2)` is `polymux.connect(url, protocol="nerdbank:version=2")`.
The other keywords are those of `polymux.connect`, `polymux.serve` and `polymux.pipe`.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Unpack

from polymux.aio.connect import ConnectOptions, connect
from polymux.aio.protocol_entry import ProtocolEntry, with_explicit_keywords
from polymux.aio.server import ServeOptions, Server, serve
from polymux.aio.transports.memory import pipe
from polymux.live.factory import PipeOptions
from polymux.live.pending import Pending
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.protocols.streamux import StreamuxSession
from polymux.live.protocols.yamux import YamuxSession
from polymux.live.session.session import Session


class MplexEntry(ProtocolEntry[Session]):
    """`connect`, `serve` and `pipe` for mplex, with its options as keywords.

    `ids`: how this side numbers its streams. `max_frame`: largest content of a frame that is
    accepted, in bytes. `preamble`: `multistream` (libp2p's multistream-select) or bytes in hex that
    both sides exchange before the first frame.
    """

    @with_explicit_keywords(connect, ConnectOptions)
    def connect(
        self,
        url: str,
        options: str = "",
        *,
        ids: Literal["parity", "counting"] | None = None,
        max_frame: int | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ConnectOptions],
    ) -> Pending[Session]:
        """Open a session to `url`; the other keywords are those of `polymux.connect`."""
        text = self._text(options, ids=ids, max_frame=max_frame, preamble=preamble)
        return self._connect(url, text, arguments)

    @with_explicit_keywords(serve, ServeOptions)
    def serve(
        self,
        handler: Callable[[Session], Awaitable[None]],
        url: str,
        options: str = "",
        *,
        ids: Literal["parity", "counting"] | None = None,
        max_frame: int | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ServeOptions],
    ) -> Pending[Server]:
        """Serve sessions at `url`; the other keywords are those of `polymux.serve`."""
        text = self._text(options, ids=ids, max_frame=max_frame, preamble=preamble)
        return self._serve(handler, url, text, arguments)

    @with_explicit_keywords(pipe, PipeOptions)
    async def pipe(
        self,
        options: str = "",
        *,
        ids: Literal["parity", "counting"] | None = None,
        max_frame: int | None = None,
        preamble: str | None = None,
        **arguments: Unpack[PipeOptions],
    ) -> tuple[Session, Session]:
        """Connect two sessions in this process; see `polymux.pipe`."""
        text = self._text(options, ids=ids, max_frame=max_frame, preamble=preamble)
        return await self._pipe(text, arguments)


class NerdbankEntry(ProtocolEntry[NerdbankSession]):
    """`connect`, `serve` and `pipe` for nerdbank, with its options as keywords.

    `version`: 1, 2 or 3 (the default); both sides must use the same. `window`: receive window of a
    channel in bytes. `seeded`: windows of the channels that both sides are configured with (v3).
    `preamble`: bytes in hex that both sides exchange before the first frame.
    """

    @with_explicit_keywords(connect, ConnectOptions)
    def connect(
        self,
        url: str,
        options: str = "",
        *,
        version: Literal[1, 2, 3] | None = None,
        window: int | None = None,
        seeded: Sequence[int] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ConnectOptions],
    ) -> Pending[NerdbankSession]:
        """Open a session to `url`; the other keywords are those of `polymux.connect`."""
        text = self._text(options, version=version, window=window, seeded=seeded, preamble=preamble)
        return self._connect(url, text, arguments)

    @with_explicit_keywords(serve, ServeOptions)
    def serve(
        self,
        handler: Callable[[NerdbankSession], Awaitable[None]],
        url: str,
        options: str = "",
        *,
        version: Literal[1, 2, 3] | None = None,
        window: int | None = None,
        seeded: Sequence[int] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ServeOptions],
    ) -> Pending[Server]:
        """Serve sessions at `url`; the other keywords are those of `polymux.serve`."""
        text = self._text(options, version=version, window=window, seeded=seeded, preamble=preamble)
        return self._serve(handler, url, text, arguments)

    @with_explicit_keywords(pipe, PipeOptions)
    async def pipe(
        self,
        options: str = "",
        *,
        version: Literal[1, 2, 3] | None = None,
        window: int | None = None,
        seeded: Sequence[int] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[PipeOptions],
    ) -> tuple[NerdbankSession, NerdbankSession]:
        """Connect two sessions in this process; see `polymux.pipe`."""
        text = self._text(options, version=version, window=window, seeded=seeded, preamble=preamble)
        return await self._pipe(text, arguments)


class OmnistreamsEntry(ProtocolEntry[OmnistreamsSession]):
    """`connect`, `serve` and `pipe` for omnistreams, with its options as keywords.

    `numbering`: message type numbers, `spec` (the default) or `legacy` (npm omnistreams).
    `carrier`: encapsulation of the messages, `websocket` or `length`; by default the URL's scheme
    decides. `preamble`: bytes in hex that both sides exchange before the first frame.
    """

    @with_explicit_keywords(connect, ConnectOptions)
    def connect(
        self,
        url: str,
        options: str = "",
        *,
        numbering: Literal["spec", "legacy"] | None = None,
        carrier: Literal["websocket", "length"] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ConnectOptions],
    ) -> Pending[OmnistreamsSession]:
        """Open a session to `url`; the other keywords are those of `polymux.connect`."""
        text = self._text(options, numbering=numbering, carrier=carrier, preamble=preamble)
        return self._connect(url, text, arguments)

    @with_explicit_keywords(serve, ServeOptions)
    def serve(
        self,
        handler: Callable[[OmnistreamsSession], Awaitable[None]],
        url: str,
        options: str = "",
        *,
        numbering: Literal["spec", "legacy"] | None = None,
        carrier: Literal["websocket", "length"] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ServeOptions],
    ) -> Pending[Server]:
        """Serve sessions at `url`; the other keywords are those of `polymux.serve`."""
        text = self._text(options, numbering=numbering, carrier=carrier, preamble=preamble)
        return self._serve(handler, url, text, arguments)

    @with_explicit_keywords(pipe, PipeOptions)
    async def pipe(
        self,
        options: str = "",
        *,
        numbering: Literal["spec", "legacy"] | None = None,
        carrier: Literal["websocket", "length"] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[PipeOptions],
    ) -> tuple[OmnistreamsSession, OmnistreamsSession]:
        """Connect two sessions in this process; see `polymux.pipe`."""
        text = self._text(options, numbering=numbering, carrier=carrier, preamble=preamble)
        return await self._pipe(text, arguments)


class StreamuxEntry(ProtocolEntry[StreamuxSession]):
    """`connect`, `serve` and `pipe` for streamux, with its options as keywords.

    What this side announces: `length_bits` and `id_bits` (together 14 or 30; give both), and
    `reply_timeout`, the seconds it waits for a reply (0 to 25.5, default 5; called `timeout` in a
    protocol string). `preamble`: bytes in hex that both sides exchange before the first frame.
    """

    @with_explicit_keywords(connect, ConnectOptions)
    def connect(
        self,
        url: str,
        options: str = "",
        *,
        length_bits: int | None = None,
        id_bits: int | None = None,
        reply_timeout: float | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ConnectOptions],
    ) -> Pending[StreamuxSession]:
        """Open a session to `url`; the other keywords are those of `polymux.connect`."""
        text = self._text(
            options,
            length_bits=length_bits,
            id_bits=id_bits,
            timeout=reply_timeout,
            preamble=preamble,
        )
        return self._connect(url, text, arguments)

    @with_explicit_keywords(serve, ServeOptions)
    def serve(
        self,
        handler: Callable[[StreamuxSession], Awaitable[None]],
        url: str,
        options: str = "",
        *,
        length_bits: int | None = None,
        id_bits: int | None = None,
        reply_timeout: float | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ServeOptions],
    ) -> Pending[Server]:
        """Serve sessions at `url`; the other keywords are those of `polymux.serve`."""
        text = self._text(
            options,
            length_bits=length_bits,
            id_bits=id_bits,
            timeout=reply_timeout,
            preamble=preamble,
        )
        return self._serve(handler, url, text, arguments)

    @with_explicit_keywords(pipe, PipeOptions)
    async def pipe(
        self,
        options: str = "",
        *,
        length_bits: int | None = None,
        id_bits: int | None = None,
        reply_timeout: float | None = None,
        preamble: str | None = None,
        **arguments: Unpack[PipeOptions],
    ) -> tuple[StreamuxSession, StreamuxSession]:
        """Connect two sessions in this process; see `polymux.pipe`."""
        text = self._text(
            options,
            length_bits=length_bits,
            id_bits=id_bits,
            timeout=reply_timeout,
            preamble=preamble,
        )
        return await self._pipe(text, arguments)


class MinmuxEntry(ProtocolEntry[MinmuxSession]):
    """`connect`, `serve` and `pipe` for minmux, with its options as keywords.

    `profile`: the TOML file that defines the streams. `canonical=False` also accepts numbers in
    more bytes than necessary. `oops="ignore"` keeps credit that the reader asks to have returned.
    `preamble`: bytes in hex that both sides exchange before the first frame.
    """

    @with_explicit_keywords(connect, ConnectOptions)
    def connect(
        self,
        url: str,
        options: str = "",
        *,
        profile: str | os.PathLike[str] | None = None,
        canonical: bool | None = None,
        oops: Literal["answer", "ignore"] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ConnectOptions],
    ) -> Pending[MinmuxSession]:
        """Open a session to `url`; the other keywords are those of `polymux.connect`."""
        text = self._text(
            options, profile=profile, canonical=canonical, oops=oops, preamble=preamble
        )
        return self._connect(url, text, arguments)

    @with_explicit_keywords(serve, ServeOptions)
    def serve(
        self,
        handler: Callable[[MinmuxSession], Awaitable[None]],
        url: str,
        options: str = "",
        *,
        profile: str | os.PathLike[str] | None = None,
        canonical: bool | None = None,
        oops: Literal["answer", "ignore"] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ServeOptions],
    ) -> Pending[Server]:
        """Serve sessions at `url`; the other keywords are those of `polymux.serve`."""
        text = self._text(
            options, profile=profile, canonical=canonical, oops=oops, preamble=preamble
        )
        return self._serve(handler, url, text, arguments)

    @with_explicit_keywords(pipe, PipeOptions)
    async def pipe(
        self,
        options: str = "",
        *,
        profile: str | os.PathLike[str] | None = None,
        canonical: bool | None = None,
        oops: Literal["answer", "ignore"] | None = None,
        preamble: str | None = None,
        **arguments: Unpack[PipeOptions],
    ) -> tuple[MinmuxSession, MinmuxSession]:
        """Connect two sessions in this process; see `polymux.pipe`."""
        text = self._text(
            options, profile=profile, canonical=canonical, oops=oops, preamble=preamble
        )
        return await self._pipe(text, arguments)


class YamuxEntry(ProtocolEntry[YamuxSession]):
    """`connect`, `serve` and `pipe` for yamux, with its options as keywords.

    `dialect`: `hashicorp` (the default) or `libp2p`. `window`: receive window of a stream in bytes,
    at least 262144. `max_frame`: largest content of a frame that is accepted, in bytes. `preamble`:
    `multistream` (libp2p's multistream-select) or bytes in hex that both sides exchange before the
    first frame.
    """

    @with_explicit_keywords(connect, ConnectOptions)
    def connect(
        self,
        url: str,
        options: str = "",
        *,
        dialect: Literal["hashicorp", "libp2p"] | None = None,
        window: int | None = None,
        max_frame: int | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ConnectOptions],
    ) -> Pending[YamuxSession]:
        """Open a session to `url`; the other keywords are those of `polymux.connect`."""
        text = self._text(
            options, dialect=dialect, window=window, max_frame=max_frame, preamble=preamble
        )
        return self._connect(url, text, arguments)

    @with_explicit_keywords(serve, ServeOptions)
    def serve(
        self,
        handler: Callable[[YamuxSession], Awaitable[None]],
        url: str,
        options: str = "",
        *,
        dialect: Literal["hashicorp", "libp2p"] | None = None,
        window: int | None = None,
        max_frame: int | None = None,
        preamble: str | None = None,
        **arguments: Unpack[ServeOptions],
    ) -> Pending[Server]:
        """Serve sessions at `url`; the other keywords are those of `polymux.serve`."""
        text = self._text(
            options, dialect=dialect, window=window, max_frame=max_frame, preamble=preamble
        )
        return self._serve(handler, url, text, arguments)

    @with_explicit_keywords(pipe, PipeOptions)
    async def pipe(
        self,
        options: str = "",
        *,
        dialect: Literal["hashicorp", "libp2p"] | None = None,
        window: int | None = None,
        max_frame: int | None = None,
        preamble: str | None = None,
        **arguments: Unpack[PipeOptions],
    ) -> tuple[YamuxSession, YamuxSession]:
        """Connect two sessions in this process; see `polymux.pipe`."""
        text = self._text(
            options, dialect=dialect, window=window, max_frame=max_frame, preamble=preamble
        )
        return await self._pipe(text, arguments)


mplex = MplexEntry("mplex", Session)
nerdbank = NerdbankEntry("nerdbank", NerdbankSession)
omnistreams = OmnistreamsEntry("omnistreams", OmnistreamsSession)
streamux = StreamuxEntry("streamux", StreamuxSession)
minmux = MinmuxEntry("minmux", MinmuxSession)
yamux = YamuxEntry("yamux", YamuxSession)
