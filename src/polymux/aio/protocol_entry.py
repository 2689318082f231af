"""Base class of the per-protocol entry points: option texts and complete signatures."""

import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

from polymux.aio.connect import ConnectOptions, connect
from polymux.aio.server import ServeOptions, Server, serve
from polymux.aio.transports.memory import pipe
from polymux.live.factory import PipeOptions
from polymux.live.pending import Pending
from polymux.live.session.session import Session
from polymux.protocols.registry import BadProtocolString

S = TypeVar("S", bound=Session)
F = TypeVar("F", bound=Callable[..., object])

OptionValue = str | int | float | os.PathLike[str] | Sequence[int] | None


def with_explicit_keywords(general: Callable[..., object], options: type) -> Callable[[F], F]:
    """Show the keywords of `general` in place of `**arguments: Unpack[options]`, for `help`."""
    parameters = inspect.signature(general).parameters
    common = [parameters[name] for name in options.__annotations__]

    def decorate(method: F) -> F:
        own = inspect.signature(method)
        kept = [item for item in own.parameters.values() if item.kind != item.VAR_KEYWORD]
        explicit = own.replace(parameters=[*kept, *common])
        method.__signature__ = explicit  # type: ignore[attr-defined]  # PEP 362 allows it
        return method

    return decorate


class ProtocolEntry(Generic[S]):
    """`connect`, `serve` and `pipe` for one protocol.

    `options` is what follows the name in a protocol string, such as `version=2`. The keywords of
    the subclasses mean the same; None stands for the protocol's default.
    """

    def __init__(self, name: str, kind: type[S]) -> None:
        self.name = name
        self.kind = kind

    def __repr__(self) -> str:
        return f"<polymux protocol {self.name}>"

    def _connect(self, url: str, text: str, arguments: ConnectOptions) -> Pending[S]:
        # The protocol string decides on the class, which a type checker cannot see here.
        return cast(Pending[S], connect(url, protocol=text, **arguments))

    def _serve(
        self,
        handler: Callable[[S], Awaitable[None]],
        url: str,
        text: str,
        arguments: ServeOptions,
    ) -> Pending[Server]:
        return serve(handler, url, protocol=text, **arguments)

    async def _pipe(self, text: str, arguments: PipeOptions) -> tuple[S, S]:
        # As in `_connect`.
        return cast(tuple[S, S], await pipe(text, **arguments))

    def _text(self, options: str, **named: OptionValue) -> str:
        """Return the protocol string with these options."""
        pairs = [options] if options else []
        for key, value in named.items():
            if value is not None:
                text = option_text(value)
                if "," in text or text != text.strip():
                    raise BadProtocolString(
                        f"{key}={text!r}: no option may hold a comma, or begin or end with a space"
                    )
                pairs.append(f"{key}={text}")
        return f"{self.name}:{','.join(pairs)}" if pairs else self.name


def option_text(value: OptionValue) -> str:
    """Return an option's value as it is written in a protocol string."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return "+".join(map(str, value or ()))
