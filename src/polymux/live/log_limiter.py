"""Warnings that a peer can cause as often as it likes: `LogLimiter` and `LevelLimiter`."""

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


class LevelLimiter:
    """Says at which level to log what each peer can cause: as a warning once in a while."""

    def __init__(self) -> None:
        self._warned_at = -WARNING_INTERVAL_SECONDS

    def level(self, now: float) -> int:
        """WARNING if none was logged within `WARNING_INTERVAL_SECONDS` before `now`, else INFO."""
        if now - self._warned_at < WARNING_INTERVAL_SECONDS:
            return logging.INFO
        self._warned_at = now
        return logging.WARNING
