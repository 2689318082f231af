"""`LogLimiter`: warnings that a peer can cause as often as it likes, logged once in a while."""

import logging
import time

WARNING_INTERVAL_SECONDS = 60.0


class LogLimiter:
    """Logs each kind of warning at most once in `WARNING_INTERVAL_SECONDS`.

    The next one says how many were left out.

    Args:
        logger: Where the warnings go.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, kind: str, text: str) -> None:
        """Log a warning, unless one of the same kind was logged a short while ago."""
        now = time.monotonic()
        if now - self._logged_at.get(kind, -WARNING_INTERVAL_SECONDS) < WARNING_INTERVAL_SECONDS:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._logged_at[kind] = now
        left_out = self._left_out.pop(kind, 0)
        more = f" ({left_out} more since the last such line)" if left_out else ""
        self._logger.warning("%s%s", text, more)
