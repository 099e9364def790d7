"""One query process: a listening socket, the application on it, and an orderly end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

from aiohttp import web

from indexer import log
from indexer.api.app import create_app
from indexer.api.connection import Connection, connection_factory
from indexer.clock import monotonic
from indexer.config import Config, Http
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.query import Query, build_pools

_BACKLOG = 2048
_DRAIN_LOOK = 0.02
_log = log.get(__name__)


def listen(limits: Http) -> socket.socket:
    """The listening socket of `http.addr`; every interface, IPv4 and IPv6, when it names no host."""
    if limits.host is None and socket.has_dualstack_ipv6():
        sock = socket.create_server(
            ("", limits.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    else:
        host = limits.host or ""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, limits.port), family=family, backlog=_BACKLOG)
    sock.setblocking(False)
    return sock


async def serve(config: Config, sock: socket.socket, stop: asyncio.Event) -> None:
    """Answer on `sock` until `stop`; then finish what runs within http.shutdownTimeout. Closes `sock`.

    Needs no Redis to start or to end: without it, queries are answered 500 and /readyz is 503.
    """
    async with AsyncExitStack() as stack:
        stack.callback(sock.close)
        query = await stack.enter_async_context(open_query(config))
        runner = web.AppRunner(create_app(query, config.http), handle_signals=False)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        factory = connection_factory(runner.server, config.http)
        server = await asyncio.get_running_loop().create_server(factory, sock=sock)
        _log.info("query service listens", addr=config.http.addr)
        try:
            await stop.wait()
        finally:
            await _accept_waiting(sock, factory)
            server.close()
            await _drain(runner.server, config.http.shutdown_timeout)
        _log.info("query service ends")


@asynccontextmanager
async def open_query(config: Config) -> AsyncIterator[Query]:
    """A query core over the configured Redis, with one client for all pools."""
    client = await connect(config.redis, read=True)
    try:
        readers = {pool.name: IndexReader(client, pool.name, config.redis.timeout) for pool in config.pools}
        yield Query(build_pools(config.pools, readers), config.redis.timeout)
    finally:
        await client.aclose()


async def _accept_waiting(sock: socket.socket, factory: Callable[[], Connection]) -> None:
    """Take the connections that the kernel accepted already: closing the socket would reset them."""
    loop = asyncio.get_running_loop()
    for _ in range(_BACKLOG):  # clients that never stop coming must not keep us
        try:
            waiting, _ = sock.accept()
        except OSError:  # nobody waits, or gave up while waiting
            return
        await loop.connect_accepted_socket(factory, waiting)


async def _drain(server: web.Server, seconds: float) -> None:
    """Close idle connections, let running requests end, then cut what is left when time is up."""
    deadline = monotonic() + seconds
    while server.connections and monotonic() < deadline:
        for connection in server.connections:  # each time: one may just have been accepted
            cast(Connection, connection).drain()
        await asyncio.sleep(_DRAIN_LOOK)
    if server.connections:
        _log.warning(
            "requests were cut at the end of http.shutdownTimeout", connections=len(server.connections)
        )
    await server.shutdown(_DRAIN_LOOK)
