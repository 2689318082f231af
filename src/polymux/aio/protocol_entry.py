"""What the doors in `typed` share: a protocol's name, its options as text, a full signature."""

import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

from polymux.aio.connect import ConnectOptions, connect
from polymux.aio.pending import Pending
from polymux.aio.server import ServeOptions, Server, serve
from polymux.aio.session.session import Session
from polymux.aio.transports.memory import PipeOptions, pipe
from polymux.protocols.registry import BadProtocolString

S = TypeVar("S", bound=Session)
F = TypeVar("F", bound=Callable[..., object])

OptionValue = str | int | float | os.PathLike[str] | Sequence[int] | None


def with_explicit_keywords(general: Callable[..., object], options: type) -> Callable[[F], F]:
    """Have `help` show the keywords of `general` in place of `**arguments: Unpack[options]`."""
    parameters = inspect.signature(general).parameters
    common = [parameters[name] for name in options.__annotations__]

    def spell(door: F) -> F:
        own = inspect.signature(door)
        kept = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
        spelled = own.replace(parameters=[*kept, *common])
        door.__signature__ = spelled  # type: ignore[attr-defined]  # as PEP 362 has it
        return door

    return spell


class ProtocolEntry(Generic[S]):
    """One protocol, to connect, to serve and to try out. `options` is what may follow its name in a
    protocol string, such as `version=2`; keywords say the same. One that is None has the
    protocol's default."""

    def __init__(self, name: str, kind: type[S]) -> None:
        self.name = name
        self.kind = kind

    def __repr__(self) -> str:
        return f"<polymux protocol {self.name}>"

    def _connect(self, url: str, text: str, arguments: ConnectOptions) -> Pending[S]:
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
        return cast(tuple[S, S], await pipe(text, **arguments))

    def _text(self, options: str, **named: OptionValue) -> str:
        """The protocol string of these options."""
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
    """An option as a protocol string has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return "+".join(map(str, value or ()))
