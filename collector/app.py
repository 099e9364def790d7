"""The write side as one program: a collector for each pool, and a small HTTP server that shows its health."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence

import zmq
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from collector.aio import until_first
from collector.discovery import source
from collector.metrics import Metrics
from collector.mooncake.duty import MooncakeDuties, MooncakeMetrics
from collector.pool import PoolCollector
from indexer import log
from indexer.config import Config
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.index.writer import IndexWriter

_log = log.get(__name__)


async def run_collector(config: Config, *, stop: asyncio.Event) -> None:
    """Collect for all pools until `stop` is set; then give leadership back and return.

    OSError: `collector.addr` can't be listened on. ConfigError: the hash configuration or discovery of a pool
    can't be had.
    """
    _allow_many_sockets()
    metrics = Metrics()
    member = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    client = await connect(config.redis)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))
    try:
        masters = MooncakeMetrics()
        metrics.registry.register(masters)
        pools = []
        for pool in config.pools:
            index = IndexWriter(client, pool.name, config.redis.timeout)
            reader = IndexReader(client, pool.name, config.redis.timeout)
            l3 = MooncakeDuties(index, reader, pool, config.ingest.l3)
            masters.pools[pool.name] = l3
            found = source(pool.discovery, config.ingest.l3.scheme)
            pools.append(PoolCollector(config, pool, index, found, member, context, metrics, (l3,)))
        async with _served(config, pools, metrics):
            await until_first(_until(stop), *(pool.run() for pool in pools))
    finally:
        await client.aclose()
        context.destroy(linger=0)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


@contextlib.asynccontextmanager
async def _served(config: Config, pools: Sequence[PoolCollector], metrics: Metrics):  # type: ignore[no-untyped-def]
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        waiting = [pool.name for pool in pools if not pool.ready]
        if waiting:
            return web.Response(status=503, text=f"not yet warm: {', '.join(waiting)}\n")
        return web.Response(text="ok\n")

    async def show(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.collector.host, config.collector.port).start()
        _log.info("collector listens", addr=config.collector.addr)
        yield
    finally:
        await runner.cleanup()


def _allow_many_sockets() -> None:
    """Each stream takes several descriptors; the soft limit is often 1,024."""
    try:
        import resource
    except ImportError:  # not on every platform
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
