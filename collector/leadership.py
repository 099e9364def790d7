"""Who writes a pool's index: a lease in Redis, and the rule that any doubt means not to lead.

Every write shows the lease's token, so a leader that was deposed without knowing is refused by Redis itself;
what is decided here is only who tries, and when. A candidate that heard the streams for long enough to go
on where the last leader stopped ("warm") tries as soon as the lease is gone; another one holds back, because
a cold leader leaves gaps that nobody can fill any more.
"""

import asyncio
from collections.abc import Awaitable, Callable

from collector.aio import end
from collector.metrics import Metrics
from indexer import clock, log
from indexer.errors import CacheIndexerError, FencedError
from indexer.index.state import Lease
from indexer.index.writer import IndexWriter

POLL_SECONDS = 0.2
"""How often a standby looks for a lease that has run out."""
COLD_SECONDS = 0.7
"""How much longer a cold one waits."""

_log = log.get(__name__)


class Reign:
    """One leadership, from taking the lease to the first doubt."""

    def __init__(self, pool: str, lease: Lease) -> None:
        self.pool = pool
        self.token = lease.token
        self.term = lease.term
        self.rev = lease.rev
        self.warm_standbys = 0
        self.went_back = asyncio.Event()
        """Set when Redis was found at an earlier state than it had been at."""
        self.over = asyncio.Event()
        self.why = ""
        self.release = False
        """Whether the lease should be given back: it is ours, but another should take over."""

    def saw(self, before: int, rev: int) -> None:
        """A write returned `rev`; `before` is what `self.rev` was when it was sent."""
        if rev < before:
            self.rev = rev
            self.went_back.set()
        else:
            self.rev = max(self.rev, rev)

    def end(self, why: str, *, release: bool = False) -> None:
        """Stop leading."""
        if not self.over.is_set():
            self.why, self.release = why, release
            self.over.set()


class Leadership:
    """Stands by, leads, stands by again, until cancelled; then gives the lease back at once.

    `warm()`: whether a takeover now would lose nothing. `observe()`: read where the streams stand, called
    while standing by. `lead(reign)`: the leader's work, which ends when cancelled.
    """

    def __init__(
        self,
        index: IndexWriter,
        pool: str,
        member: str,
        ttl: float,
        metrics: Metrics,
        *,
        warm: Callable[[], bool],
        observe: Callable[[float | None], Awaitable[None]],
        lead: Callable[[Reign], Awaitable[None]],
    ) -> None:
        self._index = index
        self._pool = pool
        self._member = member
        self._ttl = ttl
        self._metrics = metrics
        self._warm = warm
        self._observe = observe
        self._lead = lead
        self.reign: Reign | None = None

    @property
    def leading(self) -> bool:
        """Whether this process believes to lead."""
        return self.reign is not None

    async def run(self) -> None:
        """Never returns by itself."""
        lease: Lease | None = None
        try:
            while True:
                lease = await self._stand_by()
                while lease is not None:
                    lease = await self._reign(lease)
        finally:
            await self._leave(lease)

    async def _stand_by(self) -> Lease:
        vacant: float | None = None
        while True:
            warm = False
            try:
                left = await self._index.stand_by(self._member, self._warm())
                await self._observe(left)
                warm = self._warm()
                self._metrics.warm.labels(self._pool).set(warm)
                vacant = None if left is not None else vacant or clock.monotonic()
                if vacant is not None and (warm or clock.monotonic() - vacant >= COLD_SECONDS):
                    lease = await self._index.acquire(self._member, warm, self._ttl)
                    if lease is not None:
                        return lease
                    vacant = None
            except CacheIndexerError as error:
                vacant = None
                _log.debug("standing by, Redis does not answer", pool=self._pool, error=str(error))
            await asyncio.sleep(POLL_SECONDS)

    async def _reign(self, lease: Lease) -> Lease | None:
        """Lead; the lease to go on with, or None to stand by."""
        reign = self.reign = Reign(self._pool, lease)
        self._metrics.leader.labels(self._pool).set(1)
        self._metrics.term.labels(self._pool).set(lease.term)
        _log.info("leading", pool=self._pool, member=self._member, term=lease.term)
        work = asyncio.create_task(self._work(reign))
        renewing = asyncio.create_task(self._renew(reign))
        try:
            await reign.over.wait()
        finally:
            self.reign = None
            self._metrics.leader.labels(self._pool).set(0)
            await end((work, renewing))
        _log.warning("not leading any more", pool=self._pool, term=lease.term, why=reign.why)
        if reign.release:
            await self._leave(lease)
            return None
        return await self._take_up_again(lease, reign.rev)

    async def _work(self, reign: Reign) -> None:
        try:
            await self._lead(reign)
        except FencedError:
            reign.end("another collector leads")
        except CacheIndexerError as error:
            reign.end(str(error))
        except Exception as error:
            _log.exception("leading failed", pool=self._pool)
            reign.end(repr(error))

    async def _renew(self, reign: Reign) -> None:
        try:
            while True:
                await asyncio.sleep(self._ttl / 3)
                before = reign.rev
                renewal = await self._index.renew(reign.token, self._ttl)
                reign.warm_standbys = renewal.warm_standbys
                reign.saw(before, renewal.rev)
        except Exception as error:
            reign.end(f"the lease could not be renewed: {error}")

    async def _take_up_again(self, lease: Lease, rev: int) -> Lease | None:
        """A lease that is still ours after a doubt is as good as before; found out within its time."""
        until = clock.monotonic() + self._ttl
        while clock.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._index.renew(lease.token, self._ttl)
            except FencedError:
                return None
            except CacheIndexerError:
                continue
            return Lease(lease.token, lease.term, rev)
        return None

    async def _leave(self, lease: Lease | None) -> None:
        try:
            if lease is not None:
                await self._index.release(lease.token)
            await self._index.withdraw(self._member)
        except CacheIndexerError as error:
            _log.warning("the lease could not be given back", pool=self._pool, error=str(error))
