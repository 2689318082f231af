"""Reading ends that give one piece at a time: a message, an item."""

from polymux.aio.streams.duplex import Stream
from polymux.core.errors import LimitExceeded, StreamEnded, Unsupported


class PieceStream(Stream):
    """A stream whose `receive` gives the next piece, which may be empty, and raises StreamEnded
    after the last one; so an end is never told by an empty piece."""

    __slots__ = ()

    async def receive_parts(self) -> list[bytes | memoryview]:
        """The next piece, as a list of one; an empty list after the last one."""
        try:
            return [await self.receive()]
        except StreamEnded:
            return []

    async def receive_all(self, limit: int = 16 * 1024 * 1024) -> bytes:
        """All pieces to the end, joined. Past `limit` bytes the stream is given up."""
        parts: list[bytes] = []
        size = 0
        async for part in self:
            parts.append(part)
            size += len(part)
            if size > limit:
                self.abort_with_reason(f"more than {limit} bytes came")
                raise LimitExceeded(
                    f"{self}: more than {limit} bytes came; raise receive_all(limit=...)"
                )
        return b"".join(parts)

    async def readline(self, limit: int = 64 * 1024) -> bytes:
        """Unsupported: the pieces are what there is to read."""
        raise Unsupported(f"{self} has pieces, not lines: read them with receive()")

    async def readexactly(self, size: int, limit: int = 16 * 1024 * 1024) -> bytes:
        """Unsupported: the pieces are what there is to read."""
        raise Unsupported(f"{self} has pieces of their own sizes: read them with receive()")
