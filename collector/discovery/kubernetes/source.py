"""Engines and Mooncake masters of one pool, as the pods of a namespace tell of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from collector.discovery.base import Snapshot
from collector.discovery.kubernetes import selectors
from collector.discovery.kubernetes.access import connect
from collector.discovery.kubernetes.feed import Feed
from collector.discovery.kubernetes.pods import read_engine, read_master
from collector.discovery.kubernetes.table import Engines, Table
from indexer import log
from indexer.config.pool import Discovery

logger = log.get(__name__)


class KubernetesSource:
    """Follows two selectors. `scheme`: of the masters' HTTP API, `http` or `https`."""

    def __init__(self, discovery: Discovery, scheme: str) -> None:
        self._discovery, self._scheme = discovery, scheme
        self._engines = Engines(lambda pod: read_engine(pod, discovery.vllm))
        self._masters = Table()
        self._problems: dict[str, str] = {}

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """See `collector.discovery.base.Source`. Raises ConfigError when there is no way to reach an API."""
        discovery = self._discovery
        api = await connect(discovery.kubeconfig, discovery.namespace)
        changed = asyncio.Event()
        feeds = [
            Feed(api, selector, table, discovery.refresh_interval, changed.set)
            for selector, table in (
                (selectors.engines(discovery.labels), self._engines),
                (selectors.masters(discovery.labels), self._masters),
            )
        ]
        tasks = [asyncio.create_task(feed.run()) for feed in feeds]
        last = None
        try:
            while True:
                await _first(changed, tasks)
                changed.clear()
                if not all(feed.known for feed in feeds):
                    continue
                snapshot = self._snapshot(feeds)
                if snapshot != last:
                    yield snapshot
                last = snapshot
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await api.close()

    def _snapshot(self, feeds: Iterable[Feed]) -> Snapshot:
        engines, gone, problems = self._engines.announce()
        self._complain(problems)
        pods = self._masters.pods.values()
        masters = {read_master(pod, self._discovery.mooncake_master, self._scheme) for pod in pods}
        known = sorted((m for m in masters if m is not None), key=lambda master: master.http)
        error = next((feed.error for feed in feeds if feed.error is not None), None)
        return Snapshot(engines, tuple(known), complete=error is None, error=error, gone=gone)

    def _complain(self, problems: dict[str, str]) -> None:
        for pod, problem in problems.items():
            if self._problems.get(pod) != problem:
                logger.warning("engine pod is not set up as expected", pod=pod, problem=problem)
        self._problems = problems


async def _first(changed: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for a change. A feed that ends does so by a fault of ours: let it be seen."""
    waiting = asyncio.create_task(changed.wait())
    try:
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
