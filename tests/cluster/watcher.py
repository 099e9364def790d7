"""Runs a source and waits for what it says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from collector.discovery.base import Gone, Snapshot
from collector.discovery.kubernetes import KubernetesSource
from indexer.config.pool import Discovery

SECONDS = 20.0


class Watcher:
    """What a source said so far: the last snapshot, and every deletion."""

    def __init__(self) -> None:
        self.last = Snapshot()
        self.all: list[Snapshot] = []
        self.gone: list[Gone] = []
        self.news = asyncio.Condition()

    async def until(self, what: Callable[[Snapshot], bool]) -> Snapshot:
        """Wait for a snapshot that is as asked, at once if the last one is; fails showing the last one."""
        async with self.news:
            try:
                async with asyncio.timeout(SECONDS):
                    await self.news.wait_for(lambda: bool(self.all) and what(self.last))
            except TimeoutError:
                raise AssertionError(f"never came; last: {self.last}, gone: {self.gone}") from None
            return self.last

    async def ips(self, *ips: str) -> Snapshot:
        """Wait until exactly these engines are listed in a complete snapshot."""
        return await self.until(lambda s: s.complete and sorted(e.ip for e in s.engines) == sorted(ips))


@asynccontextmanager
async def watching(discovery: Discovery) -> AsyncIterator[Watcher]:
    """A running source. An error of its own fails the test."""
    watcher = Watcher()

    async def follow() -> None:
        async with aclosing(KubernetesSource(discovery, "http").snapshots()) as snapshots:  # type: ignore[type-var]
            async for snapshot in snapshots:
                async with watcher.news:
                    watcher.last = snapshot
                    watcher.all.append(snapshot)
                    watcher.gone += snapshot.gone
                    watcher.news.notify_all()

    task = asyncio.create_task(follow())
    try:
        yield watcher
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
