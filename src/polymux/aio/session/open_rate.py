"""Openings kept apart, for peers that end a session which opens too many streams at once."""

import asyncio


class OpenRateLimiter:
    """Lets one opening pass at a time, `per_second` of them; 0: all of them."""

    def __init__(self, per_second: float) -> None:
        self.interval = 1 / per_second if per_second > 0 else 0.0
        self._next_at = 0.0

    async def wait(self) -> None:
        """Wait for our turn."""
        now = asyncio.get_running_loop().time()
        turn = max(now, self._next_at)
        self._next_at = turn + self.interval
        if turn > now:
            await asyncio.sleep(turn - now)
