"""A rate limit for opening streams, for peers that close sessions which open too many at once."""

from polymux.live.runtime import Runtime, sleep


class OpenRateLimiter:
    """Spaces `open` calls evenly, `per_second` of them; 0 means no limit."""

    def __init__(self, runtime: Runtime, per_second: float) -> None:
        self._runtime = runtime
        self.interval = 1 / per_second if per_second > 0 else 0.0
        self._next_at = 0.0

    async def wait(self) -> None:
        """Wait until the next stream may be opened. If cancelled, the slot stays unused."""
        now = self._runtime.time()
        slot = max(now, self._next_at)
        self._next_at = slot + self.interval
        if slot > now:
            await sleep(self._runtime, slot - now)
