"""Says in the log when queries begin to fail because of Redis and when that is over, not once a query."""

from indexer import clock, log

QUIET_SECONDS = 5.0
"""Without a failure for so long, it is over: single time-outs under load would else fill the log."""

_log = log.get(__name__)


class Outage:
    """What one process saw of Redis being away."""

    def __init__(self) -> None:
        self._failed = 0
        self._began = self._last = 0.0

    def failed(self, error: Exception) -> None:
        """A query failed because of Redis."""
        self._last = clock.monotonic()
        if not self._failed:
            self._began = self._last
            _log.warning("queries fail", error=str(error))
        self._failed += 1

    def answered(self) -> None:
        """A query was answered from Redis."""
        if self._failed and clock.monotonic() - self._last >= QUIET_SECONDS:
            _log.info(
                "queries are answered again", failed=self._failed, seconds=round(self._last - self._began, 1)
            )
            self._failed = 0
