"""Whether an engine's hashes are what the pool's configuration makes of its tokens.

A wrong seed, algorithm or block size shows nowhere else: every query is answered, with 0. So a sample of what
each stream stores is hashed again. The first events of a life are all looked at, later ones now and then.
"""

from collector.metrics import Metrics
from indexer import clock, log
from indexer.engines.base import Engine
from indexer.engines.events import Stored
from indexer.index.state import StreamKey

FIRST = 16
"""Events of a new life that are all checked."""
EVERY_SECONDS = 2.0
"""Afterwards, one in this time."""
WRONG_SECONDS = 5.0
"""After a mismatch: to find its cause costs hundreds of times as much as a check that succeeds."""
LOG_EVERY_SECONDS = 300.0

_log = log.get(__name__)


class SelfCheck:
    """The check of one stream. `cause` says what is wrong; empty while nothing is known to be."""

    def __init__(self, engine: Engine, metrics: Metrics, pool: str, key: StreamKey) -> None:
        self.cause = ""
        self._engine = engine
        self._checks = metrics.checks
        self._pool = pool
        self._key = key
        self._checker = engine.checker()
        self._seen = 0
        self._next = 0.0
        self._logged: tuple[str, float] | None = None

    def reset(self) -> None:
        """A new life begins: another process, perhaps configured in another way."""
        self.cause = ""
        self._checker = self._engine.checker()
        self._seen = 0
        self._next = 0.0

    def see(self, stored: Stored) -> None:
        """An event that was applied."""
        self._seen += 1
        now = clock.monotonic()
        if now < self._next:
            return
        try:
            verdict = self._checker.check(stored)
        except Exception:
            # A check that fails says nothing about the engine, and is no reason to stop indexing.
            _log.exception("self-check failed", pool=self._pool, ip=self._key.ip, rank=self._key.rank)
            verdict = None
        if verdict is None:
            self._checks.labels(self._pool, "not_checkable").inc()
            return
        if not verdict.ok:
            self._next = now + WRONG_SECONDS
        elif self._seen > FIRST:
            self._next = now + EVERY_SECONDS
        self._checks.labels(self._pool, "ok" if verdict.ok else "mismatch").inc()
        self.cause = "" if verdict.ok else verdict.cause
        if self.cause:
            self._report(now)

    def _report(self, now: float) -> None:
        if self._logged is None or self._logged[0] != self.cause or now - self._logged[1] > LOG_EVERY_SECONDS:
            self._logged = (self.cause, now)
            _log.error(
                "the engine's block hashes do not follow from the configuration",
                pool=self._pool,
                ip=self._key.ip,
                rank=self._key.rank,
                cause=self.cause,
            )
